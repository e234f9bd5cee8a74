// Shows how far a fetch has come (a bar that is drawn over on a terminal, else a line now and then) and
// the loading of weights.

import type { Progress } from "../model/sink.ts";

const BAR_WIDTH = 24;
/** Redraws on a terminal: often enough to look alive. */
const DRAW_EVERY_MS = 100;
/** Lines in a log: few enough to read. */
const LINE_EVERY_MS = 5_000;

export interface ProgressOutput {
  readonly isTTY?: boolean;
  write(text: string): unknown;
}

/**
 * Makes a progress display.
 * @param now milliseconds that only grow; a parameter for tests
 */
export function createProgress(output: ProgressOutput, now = () => performance.now()): Progress {
  let label = "";
  let total = 0;
  let shown = 0;
  let started = 0;
  let startBytes: number | null = null;
  let drawn = Number.NEGATIVE_INFINITY;

  const draw = () => {
    drawn = now();
    const share = total > 0 ? Math.min(1, shown / total) : 1;
    const percent = `${Math.floor(share * 100)}`.padStart(3);
    const size = `${megabytes(shown)} of ${megabytes(total)}`;
    if (!output.isTTY) {
      output.write(`caldrix: ${label} ${percent.trim()} %, ${size}\n`);
      return;
    }
    const seconds = (drawn - started) / 1000;
    const speed = seconds > 0.5 ? `, ${megabytes((shown - (startBytes ?? 0)) / seconds)}/s` : "";
    const full = Math.round(share * BAR_WIDTH);
    const bar = "#".repeat(full).padEnd(BAR_WIDTH, "-");
    output.write(`\r\x1b[K${label} [${bar}] ${percent} % ${size}${speed}`);
  };

  return {
    begin(name, totalBytes) {
      label = name;
      total = totalBytes;
      shown = 0;
      started = now();
      startBytes = null;
      // A log gets its first line after the wait, a terminal its empty bar at once.
      drawn = output.isTTY ? Number.NEGATIVE_INFINITY : now();
      if (output.isTTY) draw();
    },
    at(bytes) {
      // What an earlier run left is not speed.
      startBytes ??= bytes;
      if (bytes <= shown) return;
      shown = bytes;
      if (now() - drawn >= (output.isTTY ? DRAW_EVERY_MS : LINE_EVERY_MS)) draw();
    },
    end() {
      if (!output.isTTY) return;
      draw();
      output.write("\n");
    },
  };
}

/** Loads shorter than this flash by: no line for them. */
const LOAD_SHOWN_AFTER_MS = 500;

/** How far the loading of weights has come: one line on a terminal that goes when it is done. */
export function createLoadProgress(
  output: ProgressOutput,
  name: string,
  now = () => performance.now(),
) {
  const started = now();
  let drawn = false;
  return {
    at(share: number): void {
      if (!output.isTTY || now() - started < LOAD_SHOWN_AFTER_MS) return;
      drawn = true;
      output.write(`\r\x1b[Kloading ${name} ${Math.floor(share * 100)} %`);
    },
    end(): void {
      if (drawn) output.write("\r\x1b[K");
    },
  };
}

/** Bytes as people read them: 92.9 MB (of a million bytes each), 1.50 GB. */
export function megabytes(bytes: number): string {
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}
