// A model ready to be run: the plan blob for the C library and what text and serving need, and the
// tensor tables that the two file parsers (gguf.ts, safetensors.ts) hand to the plan builder.

import type { DeciderConfig } from "../decide/decider-config.ts";
import type { ChatTemplate, Tokenizer } from "../text/types.ts";

/** A file with weights, as its header parser saw it. */
export interface WeightFile {
  /** Absolute path. */
  readonly path: string;
  /** Size in bytes. */
  readonly bytes: number;
}

/** One tensor of a weight file; its bytes lie inside the file and no other tensor shares them. */
export interface TensorInfo {
  readonly name: string;
  /** Index into TensorTable.files. */
  readonly file: number;
  /** GGUF number of the element type, or null for one that this release cannot compute with. */
  readonly dtype: number | null;
  /** The type as the file spells it, for messages. */
  readonly dtypeName: string;
  /** Rows first, the fastest dimension last. */
  readonly shape: readonly number[];
  /** Bytes from the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

/** Every tensor of a model, by name. */
export interface TensorTable {
  readonly format: "gguf" | "safetensors";
  /** What messages call the source: the path as the user gave it. */
  readonly where: string;
  readonly files: readonly WeightFile[];
  readonly tensors: ReadonlyMap<string, TensorInfo>;
}

/** A register of the plan; its index in LoadedModel.registers is the one cx_read takes. */
export interface PlanRegister {
  readonly name: string;
  readonly width: number;
  /** "step": one row a token of the step; "out": one row a wanted output. */
  readonly rows: "step" | "out";
}

export interface LoadedModel {
  /** Served name by default: repo id, directory name, or file name without .gguf. */
  readonly name: string;
  /** Architecture id of src/arch ("llama", "qwen2", "qwen3", "gemma3"). */
  readonly arch: string;
  /** The plan blob of csrc/caldrix.h. */
  readonly plan: ArrayBuffer;
  /** Registers of the plan in index order, for reading them by name. */
  readonly registers: readonly PlanRegister[];
  /** Width of the logits; may exceed tokenizer.vocabSize. */
  readonly vocabSize: number;
  /** Positions the model was made for. */
  readonly contextLength: number;
  /** Every end-of-sequence token, at least one. */
  readonly eosIds: readonly number[];
  readonly tokenizer: Tokenizer;
  /** null for a base model. */
  readonly template: ChatTemplate | null;
  /** How a decider reads decisions; null for every other model. */
  readonly decider: DeciderConfig | null;
}
