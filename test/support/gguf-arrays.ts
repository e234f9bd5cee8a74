// A small reader of GGUF metadata for tests of the text layer: trusts the file and reads the
// tokenizer keys only. The product's reader is src/model/gguf.ts; a second one keeps these tests
// independent of it.
import { closeSync, openSync, readSync } from "node:fs";
import type { GgufVocab } from "../../src/text/gguf-vocab.ts";

/** Metadata of the models at hand ends well before this many bytes. */
const HEADER_BYTES = 32 * 1024 * 1024;

const SCALAR_BYTES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

/** All metadata whose key starts with `tokenizer.`. */
export function readTokenizerKeys(path: string): Map<string, unknown> {
  const file = openSync(path, "r");
  const buffer = Buffer.alloc(HEADER_BYTES);
  readSync(file, buffer, 0, HEADER_BYTES, 0);
  closeSync(file);
  let at = 16;
  const u64 = (): number => {
    at += 8;
    return Number(buffer.readBigUInt64LE(at - 8));
  };
  const u32 = (): number => {
    at += 4;
    return buffer.readUInt32LE(at - 4);
  };
  const text = (): string => {
    const length = u64();
    at += length;
    return buffer.toString("utf8", at - length, at);
  };
  const scalar = (type: number): unknown => {
    if (type === 8) return text();
    at += SCALAR_BYTES[type]!;
    if (type === 7) return buffer[at - 1] === 1;
    if (type === 6) return buffer.readFloatLE(at - 4);
    if (type === 5) return buffer.readInt32LE(at - 4);
    return type === 4 ? buffer.readUInt32LE(at - 4) : null;
  };
  const value = (type: number): unknown => {
    if (type !== 9) return scalar(type);
    const inner = u32();
    const length = u64();
    return Array.from({ length }, () => value(inner));
  };
  const found = new Map<string, unknown>();
  for (let left = u64(); left > 0; left--) {
    const key = text();
    const v = value(u32());
    if (key.startsWith("tokenizer.")) found.set(key, v);
  }
  return found;
}

/** The tokenizer of a GGUF file in the form createTokenizer takes. */
export function readGgufVocab(path: string): GgufVocab {
  const keys = readTokenizerKeys(path);
  const get = <T>(key: string): T | null => (keys.get(`tokenizer.ggml.${key}`) as T) ?? null;
  const types = get<number[]>("token_type");
  const scores = get<number[]>("scores");
  return {
    kind: "gguf",
    model: get<string>("model") ?? "",
    pre: get("pre"),
    tokens: get<string[]>("tokens") ?? [],
    tokenTypes: types && Int32Array.from(types),
    scores: scores && Float32Array.from(scores),
    merges: get("merges"),
    addBos: get("add_bos_token"),
    addEos: get("add_eos_token"),
    addSpacePrefix: get("add_space_prefix"),
    bosId: get("bos_token_id"),
    eosId: get("eos_token_id"),
    unkId: get("unknown_token_id"),
    where: path,
  };
}
