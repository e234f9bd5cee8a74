// Hands tensors of a model to an arch file, each checked for presence, type and shape, and refuses a
// model with tensors nobody asked for: a tensor left out is a wrong answer. Called by src/arch.

import { ModelError } from "../errors.ts";
import { F32, USABLE_TYPES } from "./dtypes.ts";
import { readBytes } from "./file.ts";
import type { TensorInfo, TensorTable } from "./types.ts";

export type Weights = ReturnType<typeof createWeights>;

/** Wraps the tensor table of a model. */
export function createWeights(table: TensorTable) {
  const used = new Set<string>();
  const take = (name: string, shape: readonly number[]): TensorInfo => {
    const tensor = table.tensors.get(name);
    if (tensor === undefined) throw new ModelError(`${table.where}: tensor ${name} is missing`);
    used.add(name);
    if (tensor.shape.join() !== shape.join()) {
      throw new ModelError(
        `${table.where}: tensor ${name} has shape [${tensor.shape.join(", ")}], wanted [${shape.join(", ")}]`,
      );
    }
    if (tensor.dtype === null) {
      const kind = table.format === "gguf" ? "type" : "dtype";
      throw new ModelError(
        `${table.where}: tensor ${name} is of ${kind} ${tensor.dtypeName}; this release computes with ${USABLE_TYPES}`,
      );
    }
    return tensor;
  };
  return {
    format: table.format,
    where: table.where,
    files: table.files,
    has: (name: string): boolean => table.tensors.has(name),
    /** First dimension of a tensor whose size a file states nowhere else. */
    rows(name: string): number {
      const tensor = table.tensors.get(name);
      if (tensor === undefined) throw new ModelError(`${table.where}: tensor ${name} is missing`);
      return tensor.shape[0] ?? 0;
    },
    /** The tensor, after its shape and type are checked. */
    take,
    /** The numbers of a small F32 tensor. */
    floats(name: string, shape: readonly number[]): Float32Array {
      const tensor = take(name, shape);
      return readFloats(table, tensor);
    },
    /** @param ignorable tensors that may stay unused because they change nothing. */
    refuseUnused(ignorable: (name: string) => boolean): void {
      for (const name of table.tensors.keys()) {
        if (!used.has(name) && !ignorable(name)) {
          throw new ModelError(
            `${table.where}: tensor ${name} has no place in this architecture, so the model would answer wrongly without it`,
          );
        }
      }
    },
  };
}

/** Converters write vectors as F32, whatever the matrices are. */
function readFloats(table: TensorTable, tensor: TensorInfo): Float32Array {
  if (tensor.dtype !== F32) {
    throw new ModelError(
      `${table.where}: tensor ${tensor.name} is of type ${tensor.dtypeName}, wanted F32`,
    );
  }
  const path = table.files[tensor.file]!.path;
  const bytes = readBytes(path, tensor.offset, tensor.bytes, `tensor ${tensor.name}`);
  return new Float32Array(bytes.buffer);
}
