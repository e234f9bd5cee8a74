// Reads the headers of safetensors files, single or sharded: names, types, shapes and byte ranges.
// Not the weights: C maps those. The files are hostile input; limits are named. Called by open.ts.
// Layout: 8 bytes length N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then the data.

import { join, resolve } from "node:path";
import { z } from "zod";
import { ModelError } from "../errors.ts";
import { SAFETENSORS_TYPES } from "./dtypes.ts";
import { look, readBytes, regularFileBytes } from "./file.ts";
import { checked, decodeUtf8, duplicateKey, parseJsonObject, readTextFile } from "./json-file.ts";
import type { TensorInfo, TensorTable, WeightFile } from "./types.ts";

/** A shard of a thousand tensors has 150 KB. */
const MAX_HEADER_BYTES = 8 * 1024 * 1024;
const MAX_INDEX_BYTES = 16 * 1024 * 1024;
/** As CX_MAX_FILES. */
const MAX_SHARDS = 1024;
const MAX_DIMS = 8;
const SINGLE = "model.safetensors";
const INDEX = "model.safetensors.index.json";

/**
 * Tensor table of a model folder: model.safetensors, else the shards its index names.
 * @throws ModelError naming the file and the tensor at fault.
 */
export function readSafetensors(dir: string): TensorTable {
  const single = join(dir, SINGLE);
  const index = readTextFile(join(dir, INDEX), MAX_INDEX_BYTES);
  // transformers prefers the single file, too.
  if (index === null || hasFile(single)) {
    const bytes = regularFileBytes(single);
    return {
      format: "safetensors",
      where: dir,
      files: [{ path: resolve(single), bytes }],
      tensors: readShard(single, bytes, 0),
    };
  }
  return readShards(dir, index);
}

function hasFile(path: string): boolean {
  return look(path) !== undefined;
}

const indexSchema = z.object({
  weight_map: z.record(z.string(), z.string("wanted the name of a shard")),
});

function readShards(dir: string, text: string): TensorTable {
  const where = join(dir, INDEX);
  const { weight_map } = checked(indexSchema, parseJsonObject(text, where), where);
  const byShard = new Map<string, string[]>();
  for (const [tensor, shard] of Object.entries(weight_map)) {
    const names = byShard.get(shard);
    if (names) names.push(tensor);
    else byShard.set(shard, [tensor]);
  }
  if (byShard.size > MAX_SHARDS) {
    throw new ModelError(`${where}: ${byShard.size} shards, more than the limit of ${MAX_SHARDS}`);
  }
  for (const shard of byShard.keys()) {
    // A name with a separator or of dots could leave the folder.
    if (!/^[A-Za-z0-9_][A-Za-z0-9._-]*$/.test(shard)) {
      throw new ModelError(
        `${where}: shard ${JSON.stringify(shard)} is no plain file name: a path outside the folder is not opened`,
      );
    }
  }
  const files: WeightFile[] = [];
  const tensors = new Map<string, TensorInfo>();
  for (const [shard, names] of byShard) {
    const path = join(dir, shard);
    const bytes = regularFileBytes(path);
    const found = readShard(path, bytes, files.length);
    files.push({ path: resolve(path), bytes });
    for (const name of names) {
      const tensor = found.get(name);
      if (tensor === undefined) {
        throw new ModelError(
          `${where}: tensor ${name} is not in ${shard}, where the index puts it`,
        );
      }
      tensors.set(name, tensor);
    }
  }
  return { format: "safetensors", where: dir, files, tensors };
}

const tensorSchema = z.object({
  dtype: z.string("wanted the name of a type"),
  shape: z
    .array(
      z
        .number("wanted a list of dimensions")
        .int("wanted whole dimensions")
        .nonnegative("a dimension of the shape is negative"),
    )
    .max(MAX_DIMS, `more than ${MAX_DIMS} dimensions`),
  data_offsets: z.tuple([
    z.number("wanted two offsets").int("an offset is no exact integer").nonnegative("negative"),
    z.number("wanted two offsets").int("an offset is no exact integer").nonnegative("negative"),
  ]),
});

function readShard(path: string, fileBytes: number, file: number): Map<string, TensorInfo> {
  const { header, dataAt } = readHeaderText(path, fileBytes);
  const entries = parseJsonObject(header, `${path}: header`);
  const twice = duplicateKey(header);
  if (twice !== null) throw new ModelError(`${path}: header: ${twice} occurs twice`);
  const tensors: TensorInfo[] = [];
  for (const [name, entry] of Object.entries(entries)) {
    if (name === "__metadata__") continue;
    tensors.push(readTensor(path, name, entry, file, dataAt, fileBytes));
  }
  tensors.sort((a, b) => a.offset - b.offset || a.bytes - b.bytes);
  checkContiguous(path, tensors, dataAt, fileBytes);
  return new Map(tensors.map((t) => [t.name, t]));
}

function readHeaderText(path: string, fileBytes: number): { header: string; dataAt: number } {
  if (fileBytes < 8) {
    throw new ModelError(`${path}: truncated: ${fileBytes} bytes, too short for the header length`);
  }
  const length = new DataView(readBytes(path, 0, 8, "header length").buffer).getBigUint64(0, true);
  if (length < 2n || length > BigInt(MAX_HEADER_BYTES)) {
    throw new ModelError(
      `${path}: header length is ${length} bytes, wanted 2 to ${MAX_HEADER_BYTES}`,
    );
  }
  const n = Number(length);
  if (8 + n > fileBytes) {
    throw new ModelError(
      `${path}: truncated: header length ${n} goes past the end of the file (${fileBytes} bytes)`,
    );
  }
  const header = decodeUtf8(readBytes(path, 8, n, "header"), `${path}: header`);
  return { header, dataAt: 8 + n };
}

function readTensor(
  path: string,
  name: string,
  entry: unknown,
  file: number,
  dataAt: number,
  fileBytes: number,
): TensorInfo {
  const where = `${path}: tensor ${name}`;
  const { dtype, shape, data_offsets } = checked(tensorSchema, entry, where);
  const type = SAFETENSORS_TYPES.get(dtype);
  if (type === undefined) throw new ModelError(`${where}: unknown dtype ${dtype}`);
  const [begin, end] = data_offsets;
  if (end < begin) throw new ModelError(`${where}: data_offsets end at ${end} before ${begin}`);
  if (end > fileBytes - dataAt) {
    throw new ModelError(
      `${where}: data_offsets end at ${end}, past the end of the data (${fileBytes - dataAt} bytes)`,
    );
  }
  let bits = type.bits;
  for (const n of shape) {
    bits *= n;
    if (bits > Number.MAX_SAFE_INTEGER) {
      throw new ModelError(`${where}: the size of shape [${shape}] overflows`);
    }
  }
  if (bits !== (end - begin) * 8) {
    throw new ModelError(
      `${where}: shape [${shape}] of ${dtype} is ${bits / 8} bytes, data_offsets give ${end - begin}`,
    );
  }
  return {
    name,
    file,
    dtype: type.id,
    dtypeName: dtype,
    shape,
    offset: dataAt + begin,
    bytes: end - begin,
  };
}

/** The data must be covered exactly once, as the safetensors library demands. */
function checkContiguous(
  path: string,
  tensors: readonly TensorInfo[],
  dataAt: number,
  fileBytes: number,
): void {
  let at = dataAt;
  for (const t of tensors) {
    if (t.offset !== at) {
      const fault = t.offset < at ? "overlaps the tensor before it" : "leaves a hole before it";
      throw new ModelError(
        `${path}: tensor ${t.name}: offset ${t.offset - dataAt} ${fault} (which ends at ${at - dataAt})`,
      );
    }
    at += t.bytes;
  }
  if (at !== fileBytes) {
    throw new ModelError(`${path}: a hole: the last ${fileBytes - at} bytes belong to no tensor`);
  }
}

/** Whether a folder has safetensors weights at all; for the message of open.ts. */
export function hasSafetensors(dir: string): boolean {
  return hasFile(join(dir, SINGLE)) || hasFile(join(dir, INDEX));
}
