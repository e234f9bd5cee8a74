// The feature fields of OpenAI's API that this server does not implement. Each is accepted when it
// is absent, null or at its neutral value, and refused by name otherwise. Called by schema.ts.

import { doubleOf, isJsonNumber, isJsonObject, type JsonValue } from "../decide/json.ts";

interface RefusedField {
  readonly name: string;
  /** The neutral value(s) in words, for the message. */
  readonly neutral: string;
  readonly isNeutral: (value: JsonValue) => boolean;
}

const REFUSED: readonly RefusedField[] = [
  { name: "n", neutral: "1", isNeutral: (value) => equals(value, 1) },
  { name: "presence_penalty", neutral: "0", isNeutral: (value) => equals(value, 0) },
  { name: "frequency_penalty", neutral: "0", isNeutral: (value) => equals(value, 0) },
  { name: "top_logprobs", neutral: "0", isNeutral: (value) => equals(value, 0) },
  { name: "best_of", neutral: "1", isNeutral: (value) => equals(value, 1) },
  {
    name: "logprobs",
    neutral: "false or 0",
    isNeutral: (value) => value === false || equals(value, 0),
  },
  { name: "logit_bias", neutral: "{}", isNeutral: (v) => isJsonObject(v) && v.size === 0 },
  { name: "tools", neutral: "[]", isNeutral: (v) => Array.isArray(v) && v.length === 0 },
  { name: "tool_choice", neutral: '"none"', isNeutral: (value) => value === "none" },
  {
    name: "response_format",
    neutral: '{"type":"text"}',
    isNeutral: (v) => isJsonObject(v) && v.size === 1 && v.get("type") === "text",
  },
];

/** Names of the fields, in the order in which they are checked. */
export const REFUSED_FIELDS: readonly string[] = REFUSED.map((field) => field.name);

/** Why the value of a field of REFUSED_FIELDS is refused, or null when it is neutral. */
export function refusal(name: string, value: JsonValue | undefined): string | null {
  const field = REFUSED.find((candidate) => candidate.name === name);
  if (field === undefined || value === undefined || value === null) return null;
  if (field.isNeutral(value)) return null;
  return `${name} is not implemented by this server; only ${field.neutral} is accepted`;
}

function equals(value: JsonValue, wanted: number): boolean {
  return isJsonNumber(value) && doubleOf(value) === wanted;
}
