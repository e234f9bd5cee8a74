// The queue between the engine's events and one consumer. A slow consumer's tokens wait here, joined
// into one event; they never number more than the request's limit. Used by client.ts only.

import type { StepEvent } from "./protocol.ts";
import { EngineError, type GenerationEvent } from "./types.ts";

/** The two ends of a queue: the consumer's iterable, and what the client calls. */
export interface Stream {
  readonly iterable: AsyncIterable<GenerationEvent>;
  readonly take: (event: StepEvent) => void;
  readonly fail: (error: EngineError) => void;
  /** Ends without "done"; what has not been read is dropped. */
  readonly end: () => void;
  /** Called once when nothing more can come. */
  readonly onEnd: (listener: () => void) => void;
  /** Called when the consumer leaves early. */
  readonly onReturn: (listener: () => void) => void;
}

/** An empty queue. */
export function createStream(): Stream {
  let queue: GenerationEvent[] = [];
  let joined: number[] | null = null;
  let ended = false;
  let error: EngineError | null = null;
  const readers: PromiseWithResolvers<IteratorResult<GenerationEvent, undefined>>[] = [];
  let endListener = (): void => {};
  let returnListener = (): void => {};

  function serve(): void {
    while (readers.length > 0) {
      const event = queue.shift();
      if (event !== undefined) {
        if (queue.length === 0) joined = null;
        readers.shift()!.resolve({ done: false, value: event });
      } else if (error !== null) {
        readers.shift()!.reject(error);
        error = null;
      } else if (ended) {
        readers.shift()!.resolve({ done: true, value: undefined });
      } else {
        return;
      }
    }
  }

  function finish(): void {
    if (ended) return;
    ended = true;
    endListener();
  }

  function take(event: StepEvent): void {
    if (ended) return;
    switch (event.kind) {
      case "started":
        queue.push({ kind: "started", cachedTokens: event.cachedTokens });
        break;
      case "tokens":
        if (joined === null) {
          joined = [...event.ids];
          queue.push({ kind: "tokens", ids: joined });
        } else {
          joined.push(...event.ids);
        }
        break;
      case "done":
        queue.push({ kind: "done", reason: event.reason });
        finish();
        break;
      case "failed":
        error = new EngineError(event.message, false);
        finish();
        break;
      case "ended":
        finish();
        break;
      case "read":
        return;
      default:
        event satisfies never;
    }
    serve();
  }

  function fail(reason: EngineError): void {
    if (ended) return;
    error = reason;
    finish();
    serve();
  }

  function end(): void {
    queue = [];
    joined = null;
    error = null;
    finish();
    serve();
  }

  const iterator: AsyncIterator<GenerationEvent, undefined> = {
    next() {
      const reader = Promise.withResolvers<IteratorResult<GenerationEvent, undefined>>();
      readers.push(reader);
      serve();
      return reader.promise;
    },
    async return() {
      if (!ended) returnListener();
      end();
      return { done: true, value: undefined };
    },
  };
  return {
    iterable: { [Symbol.asyncIterator]: () => iterator },
    take,
    fail,
    end,
    onEnd: (listener) => {
      endListener = listener;
    },
    onReturn: (listener) => {
      returnListener = listener;
    },
  };
}
