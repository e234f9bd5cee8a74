// Reads the JSON files of a model folder: size limit, strict UTF-8, duplicate keys, and zod messages
// turned into ModelError. Called by safetensors.ts, open.ts and the arch files.

import type { z } from "zod";
import { ModelError } from "../errors.ts";
import { look, readBytes, regularFileBytes } from "./file.ts";

/** A JSON object. */
export type JsonObject = Readonly<Record<string, unknown>>;

const STRICT_UTF8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Text of a small file, or null when there is none.
 * @param limitBytes a longer file is refused.
 */
export function readTextFile(path: string, limitBytes: number): string | null {
  if (look(path) === undefined) return null;
  const size = regularFileBytes(path);
  if (size > limitBytes) {
    throw new ModelError(`${path}: ${size} bytes, more than the limit of ${limitBytes}`);
  }
  return decodeUtf8(readBytes(path, 0, size, "the file"), path);
}

/** Strict UTF-8; a byte order mark is skipped. */
export function decodeUtf8(bytes: Uint8Array, where: string): string {
  try {
    return STRICT_UTF8.decode(bytes);
  } catch {
    throw new ModelError(`${where}: not valid UTF-8`);
  }
}

/** A JSON value. @throws ModelError for anything else, too deep nesting included. */
export function parseJson(text: string, where: string): unknown {
  try {
    return JSON.parse(text);
  } catch (e) {
    throw new ModelError(`${where}: not valid JSON: ${e instanceof Error ? e.message : "error"}`);
  }
}

/** A JSON object. */
export function parseJsonObject(text: string, where: string): JsonObject {
  const value = parseJson(text, where);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ModelError(`${where}: wanted a JSON object`);
  }
  return value as JsonObject; // checked above
}

/** The JSON object of a file, or null when there is none. */
export function readJsonObject(path: string, limitBytes: number): JsonObject | null {
  const text = readTextFile(path, limitBytes);
  return text === null ? null : parseJsonObject(text, path);
}

/**
 * The first key that an object of valid JSON has twice, or null. JSON.parse keeps the last one
 * silently; two readers of one file must not see different tensors.
 */
export function duplicateKey(json: string): string | null {
  const open: (Set<string> | null)[] = []; // a set for an object, null for an array
  let i = 0;
  while (i < json.length) {
    const c = json[i]!;
    if (c === '"') {
      const end = stringEnd(json, i);
      const keys = open.at(-1);
      COLON.lastIndex = end;
      if (keys && COLON.test(json)) {
        const key = JSON.parse(json.slice(i, end)) as string; // a string literal
        if (keys.has(key)) return key;
        keys.add(key);
      }
      i = end;
      continue;
    }
    if (c === "{") open.push(new Set());
    else if (c === "[") open.push(null);
    else if (c === "}" || c === "]") open.pop();
    i++;
  }
  return null;
}

/** After a key, with any white space before it. */
const COLON = /\s*:/y;

function stringEnd(json: string, start: number): number {
  let i = start + 1;
  while (i < json.length && json[i] !== '"') i += json[i] === "\\" ? 2 : 1;
  return i + 1;
}

/** Checks a value; the first fault becomes a ModelError naming file, field, wanted and got. */
export function checked<T>(schema: z.ZodType<T>, value: unknown, where: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0]!;
  const field = issue.path.map(String).join(".");
  let came: unknown = value;
  for (const step of issue.path) came = (came as Record<PropertyKey, unknown> | undefined)?.[step];
  const shown = JSON.stringify(came)?.slice(0, 80) ?? "nothing";
  throw new ModelError(`${where}: ${field}: ${issue.message} (got ${shown})`);
}
