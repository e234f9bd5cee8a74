// Typed reading of GGUF metadata: each getter refuses a value of another type or outside its range,
// naming file and key. Called by open.ts and the arch files.

import { ModelError } from "../errors.ts";
import type { GgufArray, GgufFile, GgufValue } from "./gguf.ts";

const INTEGERS = new Set([
  "uint8",
  "int8",
  "uint16",
  "int16",
  "uint32",
  "int32",
  "uint64",
  "int64",
]);

/** What the getters need of a file; tests make one of a Map. */
export type Metadata = Pick<GgufFile, "where" | "metadata">;

/** An integer in [min, max], or undefined when the key is absent. */
export function metaInt(m: Metadata, key: string, min: number, max: number): number | undefined {
  const entry = m.metadata.get(key);
  if (entry === undefined) return undefined;
  if (!INTEGERS.has(entry.type)) return refuse(m, key, "an integer", entry);
  const n = entry.value as number | bigint; // by its type
  if (n < min || n > max) return refuse(m, key, `an integer from ${min} to ${max}`, entry);
  return Number(n);
}

/** A finite number in [min, max], or undefined when the key is absent. */
export function metaFloat(m: Metadata, key: string, min: number, max: number): number | undefined {
  const entry = m.metadata.get(key);
  if (entry === undefined) return undefined;
  const n = entry.value;
  if (typeof n !== "number" || !(n >= min && n <= max)) {
    return refuse(m, key, `a number from ${min} to ${max}`, entry);
  }
  return n;
}

/** A bool, or undefined when the key is absent. */
export function metaBool(m: Metadata, key: string): boolean | undefined {
  const entry = m.metadata.get(key);
  if (entry === undefined) return undefined;
  return typeof entry.value === "boolean" ? entry.value : refuse(m, key, "a bool", entry);
}

/** A string, or undefined when the key is absent. */
export function metaString(m: Metadata, key: string): string | undefined {
  const entry = m.metadata.get(key);
  if (entry === undefined) return undefined;
  return typeof entry.value === "string" ? entry.value : refuse(m, key, "a string", entry);
}

/** An array, or undefined when the key is absent. */
export function metaArray(m: Metadata, key: string): GgufArray | undefined {
  const entry = m.metadata.get(key);
  if (entry === undefined) return undefined;
  return typeof entry.value === "object" ? entry.value : refuse(m, key, "an array", entry);
}

/** The value of a key that must be there. */
export function required<T>(m: Metadata, key: string, value: T | undefined): T {
  if (value === undefined) throw new ModelError(`${m.where}: metadata key ${key} is missing`);
  return value;
}

function refuse(m: Metadata, key: string, wanted: string, came: GgufValue): never {
  const shown = typeof came.value === "object" ? "" : ` ${String(came.value).slice(0, 80)}`;
  throw new ModelError(`${m.where}: ${key}: wanted ${wanted}, got ${came.type}${shown}`);
}
