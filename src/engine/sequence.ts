// One request inside the engine: its tokens so far and how many of them the model has seen.
// It is waiting (row -1), running, or finished and forgotten; scheduler.ts moves it along.

import type { SamplingParams, SharedPrefix } from "./types.ts";

/** What a sequence is for: a reply, or the logits after its prompt. */
export type Purpose =
  | {
      readonly kind: "generate";
      readonly maxTokens: number;
      readonly stopIds: readonly number[];
      readonly sampling: SamplingParams;
    }
  | {
      readonly kind: "read";
      readonly ids: readonly number[];
      readonly prefix: SharedPrefix | null;
    };

export interface Sequence {
  readonly id: number;
  readonly purpose: Purpose;
  readonly promptLength: number;
  /** Most tokens of its reply; 0 for a reading. */
  readonly limit: number;
  /** Prompt and reply; the first `length` are known. */
  readonly tokens: Int32Array;
  length: number;
  /** Tokens whose keys and values are in its row. */
  computed: number;
  row: number;
}

/**
 * A waiting sequence. The context ends a reply even when maxTokens does not.
 * @param prompt 1 to context - 1 token ids
 */
export function createSequence(
  id: number,
  prompt: Int32Array,
  purpose: Purpose,
  context: number,
): Sequence {
  const room = context - prompt.length;
  const limit = purpose.kind === "generate" ? Math.min(purpose.maxTokens, room) : 0;
  const tokens = new Int32Array(prompt.length + limit);
  tokens.set(prompt);
  return {
    id,
    purpose,
    promptLength: prompt.length,
    limit,
    tokens,
    length: prompt.length,
    computed: 0,
    row: -1,
  };
}

/** Tokens of the reply so far; also the draw of the next one. */
export function generated(sequence: Sequence): number {
  return sequence.length - sequence.promptLength;
}
