// The body of POST /v1/systemone: JSON in, one exact record out, or an ApiError 400 that names the field.
// The same for both readings; what a trained decider takes less or more of is in SizeLimits. Called by
// api/systemone.ts.

import { ApiError } from "../errors.ts";
import { isIntegerText } from "./canonical.ts";
import {
  describeJson,
  isJsonNumber,
  isJsonObject,
  type JsonDocument,
  type JsonObject,
  type JsonPath,
  type JsonValue,
  numberText,
  pathText,
} from "./json.ts";

/** A text that the request may give as a structure. */
export type Content = string | JsonObject | readonly JsonValue[];

/** Fields of every question. An absent text (missing, null or "") is null. */
interface QuestionBase {
  readonly name: string;
  /** `questions.NAME`: the field a refusal of the whole question names. */
  readonly param: string;
  readonly instructions: Content | null;
}

export interface ChoiceQuestion extends QuestionBase {
  readonly type: "choice";
  readonly options: readonly { readonly name: string; readonly description: Content | null }[];
}

export interface ScoreQuestion extends QuestionBase {
  readonly type: "score";
  /** Lowest first; "" is a level. */
  readonly levels: readonly Content[];
}

export interface NoulQuestion extends QuestionBase {
  readonly type: "noul";
  readonly no: Content | null;
  readonly yes: Content | null;
}

export type Question = ChoiceQuestion | ScoreQuestion | NoulQuestion;

export interface DecisionRequest {
  readonly state: Content;
  readonly questions: readonly Question[];
}

/** How many options and levels a reading takes, and whether it needs instructions. */
export interface SizeLimits {
  /** Begins the refusals of these limits. */
  readonly preface: string;
  readonly choice: { readonly least: number; readonly most: number };
  readonly score: { readonly least: number; readonly most: number };
  readonly instructionsRequired: boolean;
}

/** The contract's bound on a request. */
const MAX_QUESTIONS = 64;

const FIELDS = ["model", "state", "questions"];
/** Fields of other System One servers; each is named in the contract. */
const NOT_BUILT = ["assets", "images", "chat_template_kwargs"];
const QUESTION_FIELDS = ["type", "instructions", "criteria"];
const SIDES = ["true", "false"];

const CONTENT = "a string, an object or an array";
const OPTIONAL_CONTENT = "a string, an object, an array or null";

/** @throws ApiError 400 for the first fault, in the order of the fields in the contract */
export function readRequest(
  document: JsonDocument,
  servedName: string,
  limits: SizeLimits,
): DecisionRequest {
  const body = document.value;
  if (!isJsonObject(body)) {
    throw refusal([], `the request body must be a JSON object, got ${describeJson(body)}`);
  }
  const duplicate = document.duplicates[0];
  if (duplicate !== undefined) throw refusal(duplicate, "duplicate key");
  for (const name of NOT_BUILT) {
    if (body.has(name)) throw refusal([name], `${name} is not supported by this server`);
  }
  requireKnown(body, FIELDS, []);
  readModel(body.get("model"), servedName);
  return {
    state: readContent(body.get("state"), ["state"]),
    questions: readQuestions(body.get("questions"), limits),
  };
}

function refusal(path: JsonPath, message: string): ApiError {
  return new ApiError(400, message, path.length === 0 ? null : pathText(path));
}

function must(wanted: string, value: JsonValue | undefined, path: JsonPath): ApiError {
  return refusal(path, `must be ${wanted}, got ${describeJson(value)}`);
}

function requireKnown(object: JsonObject, known: readonly string[], path: JsonPath): void {
  const unknown = object.keys().find((name) => !known.includes(name));
  if (unknown !== undefined) throw refusal([...path, unknown], "unknown field");
}

function readModel(value: JsonValue | undefined, servedName: string): void {
  if (value === servedName) return;
  const wanted = JSON.stringify(servedName);
  if (typeof value !== "string") throw must(wanted, value, ["model"]);
  throw refusal(["model"], `unknown model; this server serves ${wanted}`);
}

function readContent(value: JsonValue | undefined, path: JsonPath, wanted = CONTENT): Content {
  if (typeof value === "string") return value;
  if (!isJsonObject(value) && !Array.isArray(value)) throw must(wanted, value, path);
  requireFinite(value, path);
  return value;
}

/** A text that may be missing; "" says as little as null. */
function readOptional(value: JsonValue | undefined, path: JsonPath): Content | null {
  if (value === undefined || value === null || value === "") return null;
  return readContent(value, path, OPTIONAL_CONTENT);
}

/** A prompt writes 64-bit floats, and a number beyond them has no digits. */
function requireFinite(value: JsonValue, path: JsonPath): void {
  if (isJsonNumber(value)) {
    const text = numberText(value);
    if (isIntegerText(text) || Number.isFinite(Number(text))) return;
    throw must("a number within the range of a 64-bit float", value, path);
  }
  if (isJsonObject(value)) {
    for (const [key, member] of value) requireFinite(member, [...path, key]);
  } else if (Array.isArray(value)) {
    value.forEach((item, i) => {
      requireFinite(item, [...path, i]);
    });
  }
}

function readQuestions(value: JsonValue | undefined, limits: SizeLimits): readonly Question[] {
  const path = ["questions"];
  if (!isJsonObject(value)) throw must("an object of questions by name", value, path);
  if (value.size < 1 || value.size > MAX_QUESTIONS) {
    const message = `${limits.preface}must hold 1 to ${MAX_QUESTIONS} questions, got ${value.size}`;
    throw refusal(path, message);
  }
  return [...value].map(([name, question]) => readQuestion(name, question, limits));
}

function readQuestion(name: string, value: JsonValue, limits: SizeLimits): Question {
  const path = ["questions", name];
  if (!isJsonObject(value)) throw must("an object", value, path);
  const type = readType(value.get("type"), [...path, "type"]);
  requireKnown(value, QUESTION_FIELDS, path);
  const instructionsPath = [...path, "instructions"];
  const instructions = readOptional(value.get("instructions"), instructionsPath);
  if (instructions === null && type !== "noul" && limits.instructionsRequired) {
    throw refusal(instructionsPath, `${limits.preface}a ${type} question needs instructions`);
  }
  const base = { name, param: pathText(path), instructions };
  const criteria = value.get("criteria");
  const criteriaPath = [...path, "criteria"];
  switch (type) {
    case "choice":
      return { ...base, type, options: readOptions(criteria, criteriaPath, limits) };
    case "score":
      return { ...base, type, levels: readLevels(criteria, criteriaPath, limits) };
    case "noul": {
      const sides = readSides(criteria, criteriaPath);
      if (instructions === null && limits.instructionsRequired && !sides.no && !sides.yes) {
        const needs = "a noul question without instructions needs criteria for true or false";
        throw refusal(instructionsPath, limits.preface + needs);
      }
      return { ...base, type, ...sides };
    }
    default:
      return type satisfies never;
  }
}

function readType(value: JsonValue | undefined, path: JsonPath): Question["type"] {
  if (value === "choice" || value === "score" || value === "noul") return value;
  if (value === "box") throw refusal(path, "box questions are not supported by this server");
  throw must('"choice", "score" or "noul"', value, path);
}

function readOptions(
  value: JsonValue | undefined,
  path: JsonPath,
  limits: SizeLimits,
): ChoiceQuestion["options"] {
  if (!isJsonObject(value)) throw must("an object of descriptions by option", value, path);
  requireCount(value.size, "options", path, limits, limits.choice);
  return [...value].map(([name, description]) => ({
    name,
    description: readOptional(description, [...path, name]),
  }));
}

function readLevels(
  value: JsonValue | undefined,
  path: JsonPath,
  limits: SizeLimits,
): readonly Content[] {
  if (!Array.isArray(value)) throw must("an array of levels", value, path);
  requireCount(value.length, "levels", path, limits, limits.score);
  return value.map((level: JsonValue, i) => readContent(level, [...path, i]));
}

function requireCount(
  count: number,
  what: string,
  path: JsonPath,
  { preface }: SizeLimits,
  { least, most }: { readonly least: number; readonly most: number },
): void {
  if (count >= least && count <= most) return;
  throw refusal(path, `${preface}must hold ${least} to ${most} ${what}, got ${count}`);
}

function readSides(value: JsonValue | undefined, path: JsonPath): Pick<NoulQuestion, "no" | "yes"> {
  if (value === undefined || value === null) return { no: null, yes: null };
  if (!isJsonObject(value)) throw must('an object with "true" and "false", or null', value, path);
  requireKnown(value, SIDES, path);
  return {
    no: readOptional(value.get("false"), [...path, "false"]),
    yes: readOptional(value.get("true"), [...path, "true"]),
  };
}
