// A model ready to be run: the plan blob for the C library and what text and serving need.

import type { ChatTemplate, Tokenizer } from "../text/types.ts";

export interface LoadedModel {
  /** Served name by default: repo id, directory name, or file name without .gguf. */
  readonly name: string;
  /** Architecture id of src/arch ("llama", "qwen2", "qwen3", "gemma3"). */
  readonly arch: string;
  /** The plan blob of csrc/caldrix.h. */
  readonly plan: ArrayBuffer;
  /** Width of the logits; may exceed tokenizer.vocabSize. */
  readonly vocabSize: number;
  /** Positions the model was made for. */
  readonly contextLength: number;
  /** Every end-of-sequence token, at least one. */
  readonly eosIds: readonly number[];
  readonly tokenizer: Tokenizer;
  /** null for a base model. */
  readonly template: ChatTemplate | null;
}
