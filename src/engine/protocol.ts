// Every message between the main thread (client.ts) and the engine's worker (worker.ts).

import type { Counters, EngineLimits, ModelOptions } from "../native/engine.ts";
import type { Purpose } from "./sequence.ts";

/** Main thread to worker. "open" comes first and once, "close" last and once. */
export type Command =
  | {
      readonly kind: "open";
      /** The library that the main thread has loaded. */
      readonly library: string;
      readonly plan: ArrayBuffer;
      readonly model: ModelOptions;
      readonly limits: EngineLimits;
      /** KV rows that sequences run in; one more in `limits` keeps a shared prefix. */
      readonly maxRows: number;
    }
  | {
      readonly kind: "submit";
      readonly id: number;
      readonly prompt: Int32Array;
      readonly purpose: Purpose;
    }
  | { readonly kind: "cancel"; readonly id: number }
  /** Gives up a shared prefix. */
  | { readonly kind: "dropPrefix"; readonly id: number }
  | { readonly kind: "close" };

/** Worker to main thread. */
export type Report =
  /** handle: the engine's address, for interrupt() only. */
  | { readonly kind: "opened"; readonly handle: number; readonly counters: Counters }
  | { readonly kind: "refused"; readonly code: number; readonly message: string }
  /** What one step, or a cancellation between two, brought: one message for all requests. */
  | { readonly kind: "events"; readonly events: readonly StepEvent[] }
  /** The engine has failed and steps no more; it waits for "close". */
  | { readonly kind: "stopped"; readonly message: string }
  | { readonly kind: "closed" };

/** Something that happened to one request; "ended" answers a cancellation. */
export type StepEvent =
  | { readonly kind: "started"; readonly id: number; readonly cachedTokens: number }
  | { readonly kind: "tokens"; readonly id: number; readonly ids: readonly number[] }
  | { readonly kind: "done"; readonly id: number; readonly reason: "stop" | "length" }
  | { readonly kind: "read"; readonly id: number; readonly logits: Float32Array }
  | { readonly kind: "failed"; readonly id: number; readonly message: string }
  | { readonly kind: "ended"; readonly id: number };
