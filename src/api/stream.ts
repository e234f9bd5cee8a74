// A server-sent event body that is written only when the client reads: frames are pulled, never
// pushed, and a comment goes out when nothing else did for a while. Called by generate.ts.

import { WAITING_FRAME } from "./respond.ts";

/** Proxies and clients cut connections that are silent; 10 s is the promise, so a little less. */
const WAITING_MS = 9_000;

/** Frames the runtime may hold for a client that reads slowly, before pulling stops. */
const QUEUED_FRAMES = 16;

export const STREAM_HEADERS: Readonly<Record<string, string>> = {
  "content-type": "text/event-stream",
  "cache-control": "no-cache",
  // nginx buffers answers unless told not to.
  "x-accel-buffering": "no",
};

/**
 * A body made of the generator's frames. The generator must not throw: it writes its own error
 * frame. It is returned early when the client goes.
 * @param gone called when the client stopped reading
 * @param waitingMs longest silence
 */
export function frameStream(
  frames: AsyncGenerator<string, void, undefined>,
  gone: () => void,
  waitingMs = WAITING_MS,
): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  let pending: Promise<IteratorResult<string, void>> | null = null;

  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        pending ??= frames.next();
        const next = await within(pending, waitingMs);
        if (next === null) {
          controller.enqueue(encoder.encode(WAITING_FRAME));
          return;
        }
        pending = null;
        if (next.done) controller.close();
        else controller.enqueue(encoder.encode(next.value));
      },
      async cancel() {
        gone();
        await frames.return();
      },
    },
    { highWaterMark: QUEUED_FRAMES },
  );
}

/** The promise's value, or null when it takes longer than `ms`. */
async function within<T>(promise: Promise<T>, ms: number): Promise<T | null> {
  const { promise: late, resolve } = Promise.withResolvers<null>();
  const timer = setTimeout(resolve, ms, null);
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
