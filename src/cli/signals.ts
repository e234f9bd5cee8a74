// SIGINT and SIGTERM as the commands see them. One Ctrl-C may arrive several times: from the
// terminal, and from an npm that passes it on to its children; that counts as one.

/** Signals closer together than this are one; a person's second Ctrl-C comes later. */
const MERGE_MS = 250;

/** What a shell expects of a program that Ctrl-C ended. */
export const EXIT_INTERRUPTED = 130;

export type StopSignal = "SIGINT" | "SIGTERM";

/**
 * Calls back for each signal, with its number (1 for the first).
 * @returns what ends the watching
 */
export function watchSignals(onSignal: (signal: StopSignal, count: number) => void): () => void {
  let last = Number.NEGATIVE_INFINITY;
  let count = 0;
  const handle = (signal: StopSignal) => {
    const now = performance.now();
    if (now - last < MERGE_MS) return;
    last = now;
    onSignal(signal, ++count);
  };
  const onInt = () => handle("SIGINT");
  const onTerm = () => handle("SIGTERM");
  process.on("SIGINT", onInt);
  process.on("SIGTERM", onTerm);
  return () => {
    process.off("SIGINT", onInt);
    process.off("SIGTERM", onTerm);
  };
}

/** Work that the first signal stops, and which one it was. */
export interface Stoppable {
  readonly signal: AbortSignal;
  /** Stops the work without a signal. */
  stop(): void;
  /** The signal that stopped it, or null. */
  by(): StopSignal | null;
  /** Ends the watching. */
  unwatch(): void;
}

/** Watches for the signal that stops the work at hand. */
export function stopOnSignal(): Stoppable {
  const controller = new AbortController();
  let by: StopSignal | null = null;
  const unwatch = watchSignals((signal) => {
    if (!controller.signal.aborted) by = signal;
    controller.abort();
  });
  return { signal: controller.signal, stop: () => controller.abort(), by: () => by, unwatch };
}
