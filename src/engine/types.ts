// What the server and the terminal know of the engine: submit a prompt, iterate over its tokens.
// Implementation: client.ts (this side), worker.ts (the other).

/** Validated sampling settings; every field present. seed is a fresh one when none was asked for. */
export interface SamplingParams {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  /** 0 .. 2^64-1 */
  readonly seed: bigint;
}

export interface GenerationRequest {
  readonly ids: Int32Array;
  /** Most tokens to generate, at least 1; the context also ends a reply. */
  readonly maxTokens: number;
  /** Tokens that end the reply; empty for ignore_eos. */
  readonly stopIds: readonly number[];
  readonly sampling: SamplingParams;
}

export type GenerationEvent =
  /** The prompt entered the engine. cachedTokens: positions reused from a held row. */
  | { readonly kind: "started"; readonly cachedTokens: number }
  | { readonly kind: "tokens"; readonly ids: readonly number[] }
  /** The end token is in no event. "stop": an end token; "length": maxTokens or the context. */
  | { readonly kind: "done"; readonly reason: "stop" | "length" };

/** The engine failed (status 500) or has stopped (503). */
export class EngineError extends Error {
  readonly stopped: boolean;
  constructor(message: string, stopped: boolean) {
    super(message);
    this.name = "EngineError";
    this.stopped = stopped;
  }
}

/**
 * Tokens that several prompts of one request begin with. The engine keeps what it computed of them,
 * so that each later prompt starts there, whatever ran in between.
 */
export interface SharedPrefix {
  readonly id: number;
  /** Tokens; every prompt read with this prefix begins with the same ones, and has more. */
  readonly length: number;
}

/** One prompt whose next token is only looked at (System One). */
export interface ReadRequest {
  readonly prompt: Int32Array;
  /** Tokens whose logits are wanted. */
  readonly ids: Int32Array;
  readonly prefix: SharedPrefix | null;
}

export interface Reading {
  /** Of ReadRequest.ids, in their order, after the prompt's last token. */
  readonly logits: Float32Array;
  /** Positions of the prompt that needed no computing. */
  readonly cachedTokens: number;
}

export interface EngineClient {
  readonly maxRows: number;
  readonly context: number;
  /**
   * Queues a generation. Ends by "done", by throwing EngineError, or, after signal aborts or the
   * iterator is returned early, by ending without "done"; the row is free within one step.
   */
  submit(request: GenerationRequest, signal: AbortSignal): AsyncIterable<GenerationEvent>;
  /**
   * Queues a reading. Rejects with EngineError, or with the signal's reason once it aborts.
   * @param started called when the prompt enters the engine
   */
  read(request: ReadRequest, signal: AbortSignal, started?: () => void): Promise<Reading>;
  /**
   * A prefix of `length` tokens for readings to come. It is kept if the engine has a place for it;
   * nothing but speed depends on that. The caller must drop it.
   */
  sharePrefix(length: number): SharedPrefix;
  dropPrefix(prefix: SharedPrefix): void;
  stats(): { readonly waiting: number; readonly running: number; readonly stopped: boolean };
  /** Stops the engine: waits for the running step, frees the library's memory. */
  close(): Promise<void>;
}
