// Request bodies of the chat and completions routes: JSON in, one exact record out, or an ApiError
// 400 that names the field. zod walks the fields and collects issues; the checks and the messages
// are the contract's. Fields are checked in the order written here. The strict readers know fewer
// fields and refuse the rest. Called by chat.ts, completions.ts and websocket.ts.

import { z } from "zod";
import {
  describeJson,
  doubleOf,
  integerOf,
  isJsonNumber,
  isJsonObject,
  type JsonDocument,
  type JsonObject,
  type JsonPath,
  type JsonValue,
  pathText,
} from "../decide/json.ts";
import { ApiError } from "../errors.ts";
import type { ChatMessage } from "../text/types.ts";
import { REFUSED_FIELDS, refusal } from "./refused.ts";

/** The contract's bound on a conversation. */
const MAX_MESSAGES = 256;
/** Far longer than any template's roles; a template is tried out once for each unknown one. */
const MAX_ROLE_LENGTH = 64;
/** The contract's bounds on `stop`: this many strings, each of 1 to this many bytes. */
const MAX_STOPS = 4;
const MAX_STOP_BYTES = 256;
/** Seeds are unsigned 64-bit integers. */
const MAX_SEED = 2n ** 64n - 1n;
/** Larger counts mean "no limit" long before this; keeps them in an int32. */
const MAX_COUNT = 2 ** 31 - 1;

/** The roles of the second contract. */
const PLAIN_ROLES: readonly string[] = ["system", "user", "assistant"];

/** What a server was started with, for fields a request leaves out. A null seed: a fresh one. */
export interface SamplingDefaults {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly seed: bigint | null;
}

/** Sampling fields of one request; null inherits the server's default. */
export interface RequestedSampling {
  readonly temperature: number | null;
  readonly topK: number | null;
  readonly topP: number | null;
  readonly minP: number | null;
  readonly repetitionPenalty: number | null;
  readonly seed: bigint | "fresh" | null;
}

/** Fields that both routes have. */
export interface GenerationFields {
  readonly sampling: RequestedSampling;
  /** null: until the end token or the end of the context. */
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
  readonly stream: boolean;
  readonly includeUsage: boolean;
  readonly returnTokenIds: boolean;
  readonly ignoreEos: boolean;
}

export interface ChatRequest extends GenerationFields {
  readonly messages: readonly ChatMessage[];
}

export interface CompletionRequest extends GenerationFields {
  /** Text, or token ids of the model's vocabulary; either may be empty. */
  readonly prompt: string | Int32Array;
}

/** A reader for each route's body, made once per server. */
export interface BodyReaders {
  chat(document: JsonDocument): ChatRequest;
  completion(document: JsonDocument): CompletionRequest;
}

/** What a check says when it does not take a value; `path` leads from the field to the place. */
class Refusal {
  readonly message: string;
  readonly path: JsonPath;
  constructor(message: string, path: JsonPath = []) {
    this.message = message;
    this.path = path;
  }
}

/** What the readers of one server are made for. */
export interface ReaderOptions {
  /** The one accepted value of `model`. */
  readonly servedName: string;
  /** Token ids of a prompt are below it. */
  readonly vocabSize: number;
}

/** Makes the readers of the default mode, which ignore fields they do not know. */
export function createBodyReaders({ servedName, vocabSize }: ReaderOptions): BodyReaders {
  const model = { model: field((value) => readModel(value, servedName)) };
  const notThere = (instead: string) =>
    field((value) => {
      if (value === undefined || value === null) return null;
      return new Refusal(`not accepted on this route; send ${instead}`);
    });
  const chat = z.object({
    ...model,
    prompt: notThere("messages"),
    ...GENERATION_FIELDS,
    messages: field(readMessages),
  });
  const completion = z.object({
    ...model,
    messages: notThere("prompt"),
    ...GENERATION_FIELDS,
    prompt: field((value) => readPrompt(value, vocabSize)),
  });
  return {
    chat(document) {
      const body = check(chat, document);
      return { ...generationFields(body), messages: body.messages };
    },
    completion(document) {
      const body = check(completion, document);
      return { ...generationFields(body), prompt: body.prompt };
    },
  };
}

/**
 * Makes the readers of the second contract, which refuse every field it does not name.
 * @param defaultMaxTokens what an absent max_tokens means; null: no limit
 */
export function createStrictReaders(
  { servedName }: Pick<ReaderOptions, "servedName">,
  defaultMaxTokens: number | null,
): BodyReaders {
  const model = { model: field((value) => readModel(value, servedName)) };
  const chat = z.object({ ...model, ...STRICT_FIELDS, messages: field(readPlainMessages) });
  const completion = z.object({ ...model, ...STRICT_FIELDS, prompt: field(readText) });
  const generation = (body: StrictRecord): GenerationFields => ({
    sampling: {
      ...INHERITED_SAMPLING,
      temperature: body.temperature,
      topP: body.top_p,
      seed: body.seed,
    },
    maxTokens: body.max_tokens ?? defaultMaxTokens,
    stop: body.stop,
    stream: body.stream,
    includeUsage: false,
    returnTokenIds: false,
    ignoreEos: false,
  });
  return {
    chat(document) {
      requireKnown(chat, document);
      const body = check(chat, document);
      return { ...generation(body), messages: body.messages };
    },
    completion(document) {
      requireKnown(completion, document);
      const body = check(completion, document);
      return { ...generation(body), prompt: body.prompt };
    },
  };
}

/** @throws ApiError 400 for the first field that the schema does not know, or that comes twice */
function requireKnown(schema: z.ZodObject, document: JsonDocument): void {
  if (!isJsonObject(document.value)) return;
  const unknown = document.value.keys().find((name) => !Object.hasOwn(schema.shape, name));
  if (unknown !== undefined) throw new ApiError(400, "unknown field", pathText([unknown]));
}

/** A zod schema around one check. The value arrives as JsonValue: check() built the record. */
function field<T>(read: (value: JsonValue | undefined) => T | Refusal) {
  return z
    .custom<JsonValue | undefined>(() => true)
    .transform((value, context): T => {
      const result = read(value);
      if (!(result instanceof Refusal)) return result;
      const path = [...result.path];
      context.issues.push({ code: "custom", message: result.message, path, input: value });
      return z.NEVER;
    });
}

/** Runs a schema over a body: the first issue in field order becomes the 400. */
function check<Shape extends z.ZodRawShape>(
  schema: z.ZodObject<Shape>,
  document: JsonDocument,
): z.output<z.ZodObject<Shape>> {
  const body = document.value;
  if (!isJsonObject(body)) {
    const got = describeJson(body);
    throw new ApiError(400, `the request body must be a JSON object, got ${got}`, null);
  }
  const names = Object.keys(schema.shape);
  for (const path of document.duplicates) {
    if (names.includes(String(path[0]))) throw new ApiError(400, "duplicate key", pathText(path));
  }
  const record = Object.fromEntries(names.map((name) => [name, body.get(name)]));
  const result = schema.safeParse(record);
  if (result.success) return result.data;
  const issue = result.error.issues[0]!;
  throw new ApiError(400, issue.message, pathText(issue.path));
}

const GENERATION_FIELDS = {
  ...Object.fromEntries(
    REFUSED_FIELDS.map((name) => [
      name,
      field((value) => {
        const message = refusal(name, value);
        return message === null ? null : new Refusal(message);
      }),
    ]),
  ),
  temperature: field((value) => readNumber(value, "a finite number >= 0", (x) => x >= 0)),
  top_k: field(readTopK),
  top_p: field((value) => readNumber(value, "0 < p <= 1", (x) => x > 0 && x <= 1)),
  min_p: field((value) => readNumber(value, "0 <= p <= 1", (x) => x >= 0 && x <= 1)),
  repetition_penalty: field((value) => readNumber(value, "a finite number > 0", (x) => x > 0)),
  seed: field(readSeed),
  max_tokens: field(readCount),
  max_completion_tokens: field(readCount),
  stop: field(readStop),
  stream: field(readFlag),
  stream_options: field(readStreamOptions),
  return_token_ids: field(readFlag),
  ignore_eos: field(readFlag),
};

const STRICT_FIELDS = {
  temperature: GENERATION_FIELDS.temperature,
  top_p: GENERATION_FIELDS.top_p,
  seed: GENERATION_FIELDS.seed,
  max_tokens: GENERATION_FIELDS.max_tokens,
  stop: GENERATION_FIELDS.stop,
  stream: GENERATION_FIELDS.stream,
};

type StrictRecord = Pick<GenerationRecord, keyof typeof STRICT_FIELDS>;

/** Of the sampling fields that a request does not name, the server's settings. */
const INHERITED_SAMPLING: RequestedSampling = {
  temperature: null,
  topK: null,
  topP: null,
  minP: null,
  repetitionPenalty: null,
  seed: null,
};

interface GenerationRecord {
  readonly temperature: number | null;
  readonly top_k: number | null;
  readonly top_p: number | null;
  readonly min_p: number | null;
  readonly repetition_penalty: number | null;
  readonly seed: bigint | "fresh" | null;
  readonly max_tokens: number | null;
  readonly max_completion_tokens: number | null;
  readonly stop: readonly string[];
  readonly stream: boolean;
  readonly stream_options: boolean;
  readonly return_token_ids: boolean;
  readonly ignore_eos: boolean;
}

function generationFields(body: GenerationRecord): GenerationFields {
  const { max_tokens, max_completion_tokens } = body;
  if (max_tokens !== null && max_completion_tokens !== null) {
    if (max_tokens !== max_completion_tokens) {
      const message = `differs from max_tokens: ${max_completion_tokens} and ${max_tokens}`;
      throw new ApiError(400, message, "max_completion_tokens");
    }
  }
  return {
    sampling: {
      temperature: body.temperature,
      topK: body.top_k,
      topP: body.top_p,
      minP: body.min_p,
      repetitionPenalty: body.repetition_penalty,
      seed: body.seed,
    },
    maxTokens: max_tokens ?? max_completion_tokens,
    stop: body.stop,
    stream: body.stream,
    includeUsage: body.stream_options,
    returnTokenIds: body.return_token_ids,
    ignoreEos: body.ignore_eos,
  };
}

function must(wanted: string, value: JsonValue | undefined, path: JsonPath = []): Refusal {
  return new Refusal(`must be ${wanted}, got ${describeJson(value)}`, path);
}

function readModel(value: JsonValue | undefined, servedName: string): null | Refusal {
  if (value === servedName) return null;
  const wanted = JSON.stringify(servedName);
  if (typeof value !== "string") return must(wanted, value);
  return new Refusal(`unknown model; this server serves ${wanted}`);
}

function readNumber(
  value: JsonValue | undefined,
  wanted: string,
  accepts: (x: number) => boolean,
): number | null | Refusal {
  if (value === undefined || value === null) return null;
  if (!isJsonNumber(value)) return must(wanted, value);
  const x = doubleOf(value);
  return Number.isFinite(x) && accepts(x) ? x : must(wanted, value);
}

function readTopK(value: JsonValue | undefined): number | null | Refusal {
  if (value === undefined || value === null) return null;
  const k = isJsonNumber(value) ? integerOf(value) : null;
  if (k === null || k < -1n) return must("an integer >= 0, or -1", value);
  return k < 0n ? 0 : clamp(k);
}

function readSeed(value: JsonValue | undefined): bigint | "fresh" | null | Refusal {
  if (value === undefined || value === null) return null;
  const seed = isJsonNumber(value) ? integerOf(value) : null;
  if (seed === -1n) return "fresh";
  if (seed === null || seed < 0n || seed > MAX_SEED) {
    return must(`an integer from 0 to ${MAX_SEED}, or -1`, value);
  }
  return seed;
}

function readCount(value: JsonValue | undefined): number | null | Refusal {
  if (value === undefined || value === null) return null;
  const count = isJsonNumber(value) ? integerOf(value) : null;
  return count === null || count < 1n ? must("an integer >= 1", value) : clamp(count);
}

function clamp(count: bigint): number {
  return count > BigInt(MAX_COUNT) ? MAX_COUNT : Number(count);
}

function readFlag(value: JsonValue | undefined): boolean | Refusal {
  if (value === undefined || value === null) return false;
  return typeof value === "boolean" ? value : must("true or false", value);
}

function readStreamOptions(value: JsonValue | undefined): boolean | Refusal {
  if (value === undefined || value === null) return false;
  if (!isJsonObject(value)) return must("an object", value);
  const include = readFlag(value.get("include_usage"));
  return include instanceof Refusal ? new Refusal(include.message, ["include_usage"]) : include;
}

function readStop(value: JsonValue | undefined): readonly string[] | Refusal {
  if (value === undefined || value === null) return [];
  const stops = Array.isArray(value) ? value : [value];
  if (stops.length > MAX_STOPS) {
    return new Refusal(`must be at most ${MAX_STOPS} strings, got ${stops.length}`);
  }
  for (const stop of stops) {
    if (typeof stop !== "string") return must("a string or an array of strings", stop);
    const bytes = Buffer.byteLength(stop);
    if (bytes < 1 || bytes > MAX_STOP_BYTES) {
      return new Refusal(`each string must be 1 to ${MAX_STOP_BYTES} bytes, got ${bytes}`);
    }
  }
  return stops;
}

function readPrompt(
  value: JsonValue | undefined,
  vocabSize: number,
): string | Int32Array | Refusal {
  if (typeof value === "string") return value;
  if (!Array.isArray(value)) return must("a string or an array of token ids", value);
  const ids = new Int32Array(value.length);
  for (let i = 0; i < ids.length; i++) {
    const item: JsonValue = value[i];
    const id = typeof item === "number" ? item : isJsonNumber(item) ? integerOf(item) : null;
    if (id === null || id < 0 || id >= vocabSize) {
      const got = describeJson(item);
      return new Refusal(`token id ${i} must be an integer from 0 to ${vocabSize - 1}, got ${got}`);
    }
    ids[i] = Number(id);
  }
  return ids;
}

function readText(value: JsonValue | undefined): string | Refusal {
  return typeof value === "string" ? value : must("a string", value);
}

function readMessages(value: JsonValue | undefined): readonly ChatMessage[] | Refusal {
  return readEach(value, readMessage);
}

function readPlainMessages(value: JsonValue | undefined): readonly ChatMessage[] | Refusal {
  return readEach(value, readPlainMessage);
}

function readEach(
  value: JsonValue | undefined,
  read: (message: JsonValue) => ChatMessage | Refusal,
): readonly ChatMessage[] | Refusal {
  if (!Array.isArray(value)) return must("an array of messages", value);
  if (value.length < 1 || value.length > MAX_MESSAGES) {
    return new Refusal(`must hold 1 to ${MAX_MESSAGES} messages, got ${value.length}`);
  }
  const messages: ChatMessage[] = [];
  for (let i = 0; i < value.length; i++) {
    const message = read(value[i]);
    if (message instanceof Refusal) return new Refusal(message.message, [i, ...message.path]);
    messages.push(message);
  }
  return messages;
}

function readMessage(value: JsonValue): ChatMessage | Refusal {
  if (!isJsonObject(value)) return must("an object with role and content", value);
  const role = value.get("role");
  if (typeof role !== "string") return must("a string", role, ["role"]);
  if (role.length > MAX_ROLE_LENGTH) {
    return must(`at most ${MAX_ROLE_LENGTH} characters`, `${role.slice(0, 16)}…`, ["role"]);
  }
  const content = readContent(role, value);
  if (content instanceof Refusal) return content;
  // The newer name of the same role; templates know the older one.
  return { role: role === "developer" ? "system" : role, content };
}

/** A message of the second contract: a role of three, text, and nothing else. */
function readPlainMessage(value: JsonValue): ChatMessage | Refusal {
  if (!isJsonObject(value)) return must("an object with role and content", value);
  const unknown = value.keys().find((name) => name !== "role" && name !== "content");
  if (unknown !== undefined) return new Refusal("unknown field", [unknown]);
  const role = value.get("role");
  if (typeof role !== "string" || !PLAIN_ROLES.includes(role)) {
    return new Refusal(`must be one of ${PLAIN_ROLES.join(", ")}`, ["role"]);
  }
  const content = value.get("content");
  if (typeof content !== "string") return must("a string", content, ["content"]);
  return { role, content };
}

function readContent(role: string, message: JsonObject): string | Refusal {
  const content = message.get("content");
  if (typeof content === "string") return content;
  if (content === undefined || content === null) {
    // An assistant turn that only called tools has no content of its own.
    return role === "assistant" ? "" : must("a string or an array of parts", content, ["content"]);
  }
  if (!Array.isArray(content)) return must("a string or an array of parts", content, ["content"]);
  if (content.length === 0) return new Refusal("must hold at least one part", ["content"]);
  const texts: string[] = [];
  for (let j = 0; j < content.length; j++) {
    const text = readPart(content[j]);
    if (text instanceof Refusal) return new Refusal(text.message, ["content", j]);
    texts.push(text);
  }
  return texts.join("\n");
}

function readPart(part: JsonValue): string | Refusal {
  if (!isJsonObject(part)) return must("a content part object", part);
  const type = part.get("type");
  if (type === "image_url") return new Refusal("this model takes text only");
  if (type !== "text") return new Refusal('the type of a content part must be "text"');
  const text = part.get("text");
  return typeof text === "string" ? text : new Refusal(`text ${must("a string", text).message}`);
}
