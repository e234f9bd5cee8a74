// How many requests may wait. Counters only: the engine keeps the queue itself. A request is waiting
// from its admission until the engine starts it, and running from then on. Called by generate.ts.

import { overloaded } from "./errors.ts";

/** One admitted request; leave() must be called once, whatever became of it. */
export interface Ticket {
  started(): void;
  leave(): void;
}

export interface Admission {
  /** @throws ApiError 429 when every row and every place in the queue is taken. */
  enter(): Ticket;
  counts(): { readonly waiting: number; readonly running: number };
}

/**
 * Makes the counters of one server.
 * @param maxRows requests the engine runs at once
 * @param queueDepth requests that may wait beyond those
 */
export function createAdmission(maxRows: number, queueDepth: number): Admission {
  let waiting = 0;
  let running = 0;

  return {
    counts: () => ({ waiting, running }),
    enter() {
      // A free row is not "waiting", even in the moment before the engine takes it.
      if (waiting + running >= maxRows + queueDepth) {
        throw overloaded("the request queue is full");
      }
      waiting++;
      let state: "waiting" | "running" | "left" = "waiting";
      return {
        started() {
          if (state !== "waiting") return;
          state = "running";
          waiting--;
          running++;
        },
        leave() {
          if (state === "waiting") waiting--;
          if (state === "running") running--;
          state = "left";
        },
      };
    },
  };
}
