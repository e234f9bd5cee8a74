// An EngineClient without a model: replies come from a function, so the HTTP and terminal tests know
// every token beforehand. It keeps the real client's rules: FIFO over maxRows slots, one event a
// token, cancellation by signal or early return, EngineError on failure. Used by tests only.

import {
  type EngineClient,
  EngineError,
  type GenerationEvent,
  type GenerationRequest,
} from "../../src/engine/types.ts";

export interface FakeEngineOptions {
  /** Every token the "model" would produce for a prompt; its end counts as an end token. */
  reply: (ids: Int32Array, request: GenerationRequest) => readonly number[];
  /** Logit of a token after a prompt, for read(); 0 for every token when absent. */
  logit?: (prompt: Int32Array, id: number) => number;
  context?: number;
  maxRows?: number;
  /** Wait before each token, in milliseconds; none when absent. */
  delayMs?: number;
  cachedTokens?: number;
  /** Makes every generation fail after that many tokens; stopped also refuses later requests. */
  failure?: { readonly afterTokens: number; readonly message: string; readonly stopped: boolean };
}

/** A fake engine, and what its tests may look at. */
export interface FakeEngine extends EngineClient {
  /** Every request submitted so far, in order. */
  readonly requests: readonly GenerationRequest[];
  /** Every prompt read so far, in order. */
  readonly readings: readonly Int32Array[];
  /** Whose shared prefix is kept; null: nobody's. */
  readonly prefixOwner: () => number | null;
  /** Tokens produced so far over all requests: shows whether cancelled work went on. */
  readonly produced: () => number;
}

/** Makes a deterministic in-process engine. */
export function fakeEngine(options: FakeEngineOptions): FakeEngine {
  const context = options.context ?? 4096;
  const maxRows = options.maxRows ?? 1;
  const requests: GenerationRequest[] = [];
  const queue: (() => void)[] = [];
  let running = 0;
  let stopped = false;
  let produced = 0;
  const readings: Int32Array[] = [];
  let prefixes = 0;
  let prefixOwner: number | null = null;

  /** Waits for a slot; false when the signal aborted first. */
  function acquire(signal: AbortSignal): Promise<boolean> {
    if (signal.aborted) return Promise.resolve(false);
    if (running < maxRows) {
      running++;
      return Promise.resolve(true);
    }
    return new Promise((resolve) => {
      const grant = (): void => {
        signal.removeEventListener("abort", leave);
        running++;
        resolve(true);
      };
      const leave = (): void => {
        queue.splice(queue.indexOf(grant), 1);
        resolve(false);
      };
      queue.push(grant);
      signal.addEventListener("abort", leave, { once: true });
    });
  }

  function release(): void {
    running--;
    queue.shift()?.();
  }

  function refuse(prompt: Int32Array): void {
    if (stopped) throw new EngineError("the engine has stopped", true);
    if (prompt.length < 1 || prompt.length > context - 1) {
      throw new EngineError(
        `a prompt has 1 to ${context - 1} tokens in a context of ${context}, got ${prompt.length}`,
        false,
      );
    }
  }

  async function* generate(
    request: GenerationRequest,
    signal: AbortSignal,
    slot: Promise<boolean>,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    if (!(await slot)) return;
    try {
      refuse(request.ids);
      yield { kind: "started", cachedTokens: options.cachedTokens ?? 0 };
      const limit = Math.min(request.maxTokens, context - request.ids.length);
      let made = 0;
      for (const id of options.reply(request.ids, request)) {
        await pause(options.delayMs ?? 0, signal);
        if (signal.aborted) return;
        if (options.failure !== undefined && made >= options.failure.afterTokens) {
          stopped = options.failure.stopped;
          throw new EngineError(options.failure.message, stopped);
        }
        produced++;
        if (request.stopIds.includes(id)) break;
        made++;
        yield { kind: "tokens", ids: [id] };
        if (signal.aborted) return;
        if (made >= limit) {
          yield { kind: "done", reason: "length" };
          return;
        }
      }
      yield { kind: "done", reason: "stop" };
    } finally {
      release();
    }
  }

  return {
    maxRows,
    context,
    requests,
    readings,
    produced: () => produced,
    submit(request, signal) {
      requests.push(request);
      const cancel = new AbortController();
      const both = AbortSignal.any([signal, cancel.signal]);
      const slot = acquire(both);
      const iterator = generate(request, both, slot);
      let begun = false;
      // A generator that never ran has no finally: its slot is given back here.
      const abandon = async (): Promise<void> => {
        if (begun) return;
        begun = true;
        await iterator.return(undefined);
        if (await slot) release();
      };
      both.addEventListener("abort", abandon, { once: true });
      const iterable: AsyncIterable<GenerationEvent> = {
        [Symbol.asyncIterator]: () => ({
          next: () => {
            begun = true;
            return iterator.next();
          },
          return: async () => {
            cancel.abort();
            return iterator.return(undefined);
          },
        }),
      };
      return iterable;
    },
    async read({ prompt, ids, prefix }, signal, started) {
      if (!(await acquire(signal))) throw signal.reason;
      try {
        refuse(prompt);
        readings.push(prompt);
        started?.();
        // As with one row for prefixes: the first to ask has it until it is dropped.
        const cachedTokens = prefix !== null && prefix.id === prefixOwner ? prefix.length : 0;
        prefixOwner ??= prefix?.id ?? null;
        await pause(options.delayMs ?? 0, signal);
        signal.throwIfAborted();
        const logits = Float32Array.from(ids, (id) => options.logit?.(prompt, id) ?? 0);
        if (!logits.every(Number.isFinite)) throw new EngineError("not finite", false);
        return { logits, cachedTokens };
      } finally {
        release();
      }
    },
    sharePrefix: (length) => ({ id: prefixes++, length }),
    dropPrefix({ id }) {
      if (prefixOwner === id) prefixOwner = null;
    },
    prefixOwner: () => prefixOwner,
    stats: () => ({ waiting: queue.length, running, stopped }),
    async close() {
      stopped = true;
    },
  };
}

/** Resolves after ms or as soon as the signal aborts; always lets other tasks run once. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
}
