// The architectures of this release, found by the name a model file gives itself.

import { ModelError } from "../errors.ts";
import { gemma3 } from "./gemma3.ts";
import { llama } from "./llama.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen3 } from "./qwen3.ts";
import type { Arch } from "./types.ts";

const ARCHS: readonly Arch[] = [llama, qwen2, qwen3, gemma3];

/** The architecture of a config.json. @param field where the name stood, for the message. */
export function archOfModelType(modelType: string, field: string): Arch {
  return found(
    ARCHS.find((a) => a.modelTypes.includes(modelType)),
    modelType,
    field,
    ARCHS.flatMap((a) => a.modelTypes),
  );
}

/** The architecture of GGUF metadata. */
export function archOfGguf(name: string, field: string): Arch {
  return found(
    ARCHS.find((a) => a.ggufName === name),
    name,
    field,
    ARCHS.map((a) => a.ggufName),
  );
}

function found(arch: Arch | undefined, name: string, field: string, known: string[]): Arch {
  if (arch !== undefined) return arch;
  throw new ModelError(
    `${field}: unknown architecture ${name}; this release knows ${known.join(", ")}`,
  );
}
