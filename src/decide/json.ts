// A JSON reader for request bodies. Unlike JSON.parse it keeps the spelling of every number and the
// order of every key, reports duplicate keys, and refuses deep nesting, bad UTF-8, lone surrogate
// escapes and trailing bytes. Called by src/api for every body; not a writer.

import { ApiError } from "../errors.ts";

/** A number whose spelling a double or String() would not give back: `1.50`, `1e5`, 25 digits. */
export interface SpelledNumber {
  readonly spelling: string;
}

/** Keys in the order received; a repeated key keeps its first place and its last value. */
export type JsonObject = ReadonlyMap<string, JsonValue>;

/** A plain `number` is an integer of at most 15 digits that String() writes as it was received. */
export type JsonValue =
  | null
  | boolean
  | string
  | number
  | SpelledNumber
  | readonly JsonValue[]
  | JsonObject;

export type JsonPath = readonly (string | number)[];

export interface JsonDocument {
  readonly value: JsonValue;
  /** The first repeated key below each top-level key, as paths. */
  readonly duplicates: readonly JsonPath[];
}

/** More levels than any real request has, and few enough that no later recursion can overflow. */
const MAX_DEPTH = 64;

/** Integers up to this many digits are exact as doubles. */
const PLAIN_DIGITS = 15;

/** Digits of 2^64 are 20; any integer longer than this is out of every range we have. */
const MAX_INTEGER_DIGITS = 400;

/**
 * Reads one JSON document.
 * @param what the document's name in messages
 * @throws ApiError 400 with param null; the message names the place, never the text.
 */
export function parseJson(bytes: Uint8Array, what = "the request body"): JsonDocument {
  let text: string;
  try {
    // Skips a leading byte order mark, too.
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new ApiError(400, `${what} is not valid UTF-8`, null);
  }
  return read(text, what);
}

/** True for a number in either form. */
export function isJsonNumber(value: JsonValue | undefined): value is number | SpelledNumber {
  return typeof value === "number" || isSpelled(value);
}

/** True for an object; an array, a number and null are none. */
export function isJsonObject(value: JsonValue | undefined): value is JsonObject {
  return value instanceof Map;
}

/** A number as the request spelled it. */
export function numberText(value: number | SpelledNumber): string {
  return typeof value === "number" ? String(value) : value.spelling;
}

/** A number as a double; Infinity when it is too large for one. */
export function doubleOf(value: number | SpelledNumber): number {
  return typeof value === "number" ? value : Number(value.spelling);
}

/** The exact value when it is an integer in any spelling (`1`, `1.0`, `10e-1`), else null. */
export function integerOf(value: number | SpelledNumber): bigint | null {
  if (typeof value === "number") return BigInt(value);
  const parts = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(value.spelling);
  if (parts === null) return null;
  const fraction = parts[3] ?? "";
  const digits = (parts[2]! + fraction).replace(/^0+/, "");
  if (digits === "") return 0n;
  // The value is digits * 10^shift.
  const shift = Number(parts[4] ?? "0") - fraction.length;
  for (let i = 1; i <= -shift; i++) {
    if (digits.at(-i) !== "0") return null;
  }
  if (digits.length + shift > MAX_INTEGER_DIGITS) {
    return 10n ** BigInt(MAX_INTEGER_DIGITS) * (parts[1] === "-" ? -1n : 1n);
  }
  const whole = shift < 0 ? digits.slice(0, shift) : digits + "0".repeat(shift);
  return BigInt(parts[1] + whole);
}

/** What a value is, for an error message: numbers as spelled, strings by kind only. */
export function describeJson(value: JsonValue | undefined): string {
  if (value === undefined) return "nothing";
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "string") return "a string";
  if (isJsonNumber(value)) {
    const text = numberText(value);
    return text.length > 40 ? `${text.slice(0, 40)}…` : text;
  }
  return Array.isArray(value) ? "an array" : "an object";
}

/** `["messages", 0, "content"]` as `messages[0].content`. */
export function pathText(path: readonly PropertyKey[]): string {
  let text = "";
  for (const step of path) {
    if (typeof step === "number") text += `[${step}]`;
    else text += text === "" ? String(step) : `.${String(step)}`;
  }
  return text;
}

function isSpelled(value: JsonValue | undefined): value is SpelledNumber {
  return typeof value === "object" && value !== null && "spelling" in value;
}

const TAB = 9;
const NEWLINE = 10;
const RETURN = 13;
const SPACE = 32;
const QUOTE = 34;
const PLUS = 43;
const COMMA = 44;
const MINUS = 45;
const DOT = 46;
const ZERO = 48;
const NINE = 57;
const COLON = 58;
const OPEN_BRACKET = 91;
const BACKSLASH = 92;
const CLOSE_BRACKET = 93;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;

const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

function read(text: string, what: string): JsonDocument {
  const length = text.length;
  const path: (string | number)[] = [];
  const duplicates = new Map<string | number, JsonPath>();
  let at = 0;

  const value = readValue(0);
  skipSpace();
  if (at < length) fail("nothing after the JSON value");
  return { value, duplicates: [...duplicates.values()] };

  function fail(wanted: string): never {
    const got = at < length ? `character ${at + 1}` : "the end of the body";
    throw new ApiError(400, `${what} is not valid JSON: expected ${wanted} at ${got}`, null);
  }

  function skipSpace(): void {
    let next = at;
    for (;;) {
      const code = text.charCodeAt(next);
      if (code !== SPACE && code !== NEWLINE && code !== RETURN && code !== TAB) break;
      next++;
    }
    at = next;
  }

  function readValue(depth: number): JsonValue {
    skipSpace();
    const code = text.charCodeAt(at);
    if (code === QUOTE) return readString();
    if (code === OPEN_BRACE) return readObject(depth + 1);
    if (code === OPEN_BRACKET) return readArray(depth + 1);
    if (code === MINUS || (code >= ZERO && code <= NINE)) return readNumber();
    if (text.startsWith("true", at)) return word(true, 4);
    if (text.startsWith("false", at)) return word(false, 5);
    if (text.startsWith("null", at)) return word(null, 4);
    return fail("a value");
  }

  function word<T>(value: T, size: number): T {
    at += size;
    return value;
  }

  function enter(depth: number): void {
    if (depth > MAX_DEPTH) {
      throw new ApiError(400, `${what} is nested deeper than ${MAX_DEPTH} levels`, null);
    }
    at++;
    skipSpace();
  }

  function readArray(depth: number): JsonValue[] {
    enter(depth);
    const items: JsonValue[] = [];
    if (text.charCodeAt(at) === CLOSE_BRACKET) return word(items, 1);
    for (;;) {
      readIntegers(items);
      path[depth - 1] = items.length;
      items.push(readValue(depth));
      skipSpace();
      const code = text.charCodeAt(at);
      if (code === CLOSE_BRACKET) return word(items, 1);
      if (code !== COMMA) fail("',' or ']'");
      at++;
    }
  }

  /** Plain integers that end in a comma, in one tight loop: prompts of ids come in megabytes. */
  function readIntegers(items: JsonValue[]): void {
    for (let next = at; ; ) {
      let value = 0;
      let code = text.charCodeAt(next);
      const first = code;
      while (code >= ZERO && code <= NINE) {
        value = value * 10 + code - ZERO;
        code = text.charCodeAt(++next);
      }
      const digits = next - at;
      // Anything unusual is left, from its first character on, to readValue.
      if (code !== COMMA || digits === 0 || digits > PLAIN_DIGITS) return;
      if (first === ZERO && digits > 1) return;
      items.push(value);
      next++;
      if (text.charCodeAt(next) === SPACE) next++;
      at = next;
    }
  }

  function readObject(depth: number): JsonObject {
    enter(depth);
    const members = new Map<string, JsonValue>();
    if (text.charCodeAt(at) === CLOSE_BRACE) return word(members, 1);
    for (;;) {
      skipSpace();
      if (text.charCodeAt(at) !== QUOTE) fail("a key in double quotes");
      const key = readString();
      path[depth - 1] = key;
      if (members.has(key)) noteDuplicate(depth);
      skipSpace();
      if (text.charCodeAt(at) !== COLON) fail("':'");
      at++;
      members.set(key, readValue(depth));
      skipSpace();
      const code = text.charCodeAt(at);
      if (code === CLOSE_BRACE) return word(members, 1);
      if (code !== COMMA) fail("',' or '}'");
      at++;
    }
  }

  function noteDuplicate(depth: number): void {
    const top = path[0]!;
    if (!duplicates.has(top)) duplicates.set(top, path.slice(0, depth));
  }

  function readString(): string {
    const start = at + 1;
    const end = runEnd(start);
    at = end;
    if (text.charCodeAt(end) === BACKSLASH) return readEscaped(start);
    at = closeString(end);
    return text.slice(start, end);
  }

  /** The first place from `from` on that is a quote, a backslash, a control character or the end. */
  function runEnd(from: number): number {
    // A local index: a captured one costs three times as much on long strings.
    let next = from;
    while (next < length) {
      const code = text.charCodeAt(next);
      if (code === QUOTE || code === BACKSLASH || code < SPACE) break;
      next++;
    }
    return next;
  }

  /** The place after the quote at `end`. */
  function closeString(end: number): number {
    at = end;
    if (end >= length) fail("'\"'");
    if (text.charCodeAt(end) !== QUOTE) fail("no control character inside a string");
    return end + 1;
  }

  function readEscaped(start: number): string {
    let value = text.slice(start, at);
    while (text.charCodeAt(at) === BACKSLASH) {
      value += readEscape();
      const from = at;
      at = runEnd(from);
      value += text.slice(from, at);
    }
    at = closeString(at);
    return value;
  }

  /** The character(s) of the escape at `at`; leaves `at` after it. */
  function readEscape(): string {
    const letter = text[at + 1] ?? "";
    if (letter !== "u") {
      const plain = Object.hasOwn(ESCAPES, letter) ? ESCAPES[letter] : undefined;
      if (plain === undefined) return fail("a known escape");
      at += 2;
      return plain;
    }
    const first = readHex();
    if (first < 0xd800 || first > 0xdfff) return String.fromCharCode(first);
    const second = first < 0xdc00 && text.startsWith("\\u", at) ? readHex() : 0;
    if (second < 0xdc00 || second > 0xdfff) {
      throw new ApiError(400, `${what} has an escape of a lone surrogate`, null);
    }
    return String.fromCharCode(first, second);
  }

  function readHex(): number {
    const digits = text.slice(at + 2, at + 6);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) fail("four hexadecimal digits");
    at += 6;
    return Number.parseInt(digits, 16);
  }

  function readNumber(): number | SpelledNumber {
    const start = at;
    const negative = text.charCodeAt(at) === MINUS;
    if (negative) at++;
    const first = at;
    const whole = readDigits();
    if (at - first > 1 && text.charCodeAt(first) === ZERO) fail("no leading zero");
    let plain = !negative && at - first <= PLAIN_DIGITS;
    if (text.charCodeAt(at) === DOT) {
      plain = false;
      at++;
      readDigits();
    }
    const code = text.charCodeAt(at) | 32; // lower case
    if (code === 101) {
      plain = false;
      at++;
      const sign = text.charCodeAt(at);
      if (sign === PLUS || sign === MINUS) at++;
      readDigits();
    }
    return plain ? whole : { spelling: text.slice(start, at) };
  }

  /** One or more digits; their value, exact up to 15 of them. */
  function readDigits(): number {
    let next = at;
    let value = 0;
    for (;;) {
      const code = text.charCodeAt(next);
      if (!(code >= ZERO && code <= NINE)) break;
      value = value * 10 + code - ZERO;
      next++;
    }
    if (next === at) fail("a digit");
    at = next;
    return value;
  }
}
