// What an architecture file offers to open.ts, and the two sources it reads a model from.

import type { JsonObject } from "../model/json-file.ts";
import type { Metadata } from "../model/metadata.ts";
import type { BuiltPlan } from "../model/plan.ts";
import type { Weights } from "../model/weights.ts";

/** A model folder with config.json, or a GGUF file. `where` names the config in messages. */
export type ModelSource =
  | {
      readonly kind: "hf";
      readonly config: JsonObject;
      readonly where: string;
      readonly weights: Weights;
    }
  | { readonly kind: "gguf"; readonly metadata: Metadata; readonly weights: Weights };

export interface ArchPlan {
  readonly plan: BuiltPlan;
  readonly vocabSize: number;
  readonly contextLength: number;
}

export interface Arch {
  readonly id: string;
  /** model_type in config.json. */
  readonly modelTypes: readonly string[];
  /** general.architecture in GGUF metadata. */
  readonly ggufName: string;
  /** @throws ModelError naming the field or tensor that does not fit. */
  build(source: ModelSource): ArchPlan;
}
