// JSON values as text: in a prompt, with every number in one canonical form, and in an answer, with the
// digits the request had. Called by zero-shot.ts, decider.ts and answer.ts; json.ts is the reader.

import { floatText } from "../text/py-values.ts";
import {
  isJsonNumber,
  isJsonObject,
  type JsonValue,
  numberText,
  type SpelledNumber,
} from "./json.ts";

/** How members are set apart: `{"a":1,"b":2}` or `{"a": 1, "b": 2}`. */
export type JsonSpacing = "compact" | "spaced";

/** A text of a prompt: strings as they are, anything else as JSON. Numbers must be finite. */
export function promptText(value: JsonValue, spacing: JsonSpacing): string {
  return typeof value === "string" ? value : write(value, spacing, canonicalNumber);
}

/** Compact JSON in which a number keeps the spelling it was received with. */
export function echoText(value: JsonValue): string {
  return write(value, "compact", numberText);
}

/** A double as JSON that reads back as the same double and as a float: `1.0`, never `1`. */
export function doubleText(value: number): string {
  const text = String(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

/** True for a number without `.` and exponent: exact at any size. */
export function isIntegerText(text: string): boolean {
  return /^-?\d+$/.test(text);
}

/** An integer exactly; any other number as the shortest decimal of its double, written as Python does. */
function canonicalNumber(value: number | SpelledNumber): string {
  const text = numberText(value);
  if (!isIntegerText(text)) return floatText(Number(text));
  return text === "-0" ? "0" : text;
}

function write(
  value: JsonValue,
  spacing: JsonSpacing,
  number: (value: number | SpelledNumber) => string,
): string {
  const comma = spacing === "compact" ? "," : ", ";
  const colon = spacing === "compact" ? ":" : ": ";
  const text = (item: JsonValue): string => {
    if (isJsonNumber(item)) return number(item);
    if (isJsonObject(item)) {
      const members = item.entries().map(([key, of]) => JSON.stringify(key) + colon + text(of));
      return `{${[...members].join(comma)}}`;
    }
    if (Array.isArray(item)) return `[${item.map(text).join(comma)}]`;
    return JSON.stringify(item);
  };
  return text(value);
}
