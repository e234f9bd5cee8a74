// The decider reading: the prompt format of decider models, assembled from token ids exactly as the
// package they are trained with does it (PyPI decider-ai; docs/systemone.md describes it). The quoted
// texts and the places where the tokenizer is called anew are part of that format. Called by
// api/systemone.ts.

import { setImmediate } from "node:timers/promises";
import { requireRoom } from "../api/prompt.ts";
import { ApiError } from "../errors.ts";
import type { LoadedModel } from "../model/types.ts";
import type { Tokenizer } from "../text/types.ts";
import { promptText } from "./canonical.ts";
import { type DeciderConfig, MAX_LABELS } from "./decider-config.ts";
import { isJsonObject, type JsonValue } from "./json.ts";
import { type DecisionReader, labelMessage, type QuestionPlan } from "./reading.ts";
import type { Content, Question, ScoreQuestion, SizeLimits } from "./request.ts";

const PREFACE = "this model is a decider: ";
const LEVELS = { least: 2, most: 10 };
/** Rows of more options than this are tokenized piece by piece. */
const NARROW_OPTIONS = 10;
/** Lists of this length or more carry their elements' positions. */
const INDEXED_LENGTH = 8;
/** The prompts of a request together have at most this many times the context. */
const MAX_CONTEXTS = 64;

const LETTERS: readonly string[] = [..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"];
const NO_OR_YES = ["no", "yes"];
const BARE_QUESTION = "Which answer fits the context?";

/** `2:` at the start of a level, in any script's digits; U+001C to U+001F are space in Python. */
const LEVEL_NUMBER =
  /^[\p{White_Space}\x1c-\x1f]*-?\p{Nd}+[\p{White_Space}\x1c-\x1f]*:[\p{White_Space}\x1c-\x1f]*/u;

type ReadModel = Pick<LoadedModel, "tokenizer" | "vocabSize">;

/** One prompt: a question and the options to choose from. */
interface Row {
  readonly question: string;
  readonly options: readonly string[];
}

/** The labels a tokenizer has, and their token ids. */
interface Labels {
  readonly texts: readonly string[];
  readonly ids: Int32Array;
}

/** @param context positions a prompt and its answer may take */
export function createDecider(
  { tokenizer, vocabSize }: ReadModel,
  config: DeciderConfig,
  context: number,
): DecisionReader {
  let found: Labels | null = null;

  function labels(): Labels {
    found ??= findLabels(tokenizer, vocabSize);
    const missing = LETTERS[found.ids.length];
    if (found.ids.length < LEVELS.most) throw new ApiError(400, labelMessage(missing!), null);
    return found;
  }

  function limits(): SizeLimits {
    const most = Math.min(config.maxOptions, labels().ids.length);
    return {
      preface: PREFACE,
      choice: { least: 2, most },
      score: LEVELS,
      instructionsRequired: true,
    };
  }

  function planQuestion(question: Question, state: Int32Array): QuestionPlan {
    const temperature = config.temperatureByType[question.type] ?? config.temperature;
    const isolated = question.type === "score" && config.isolatedLevels;
    const known = labels();
    const prompts = rowsOf(question, isolated).map((row) => {
      const ids = joined(state, tailIds(tokenizer, row, known));
      requireRoom(ids.length, context, question.param, "");
      return { ids, labels: known.ids.subarray(0, row.options.length) };
    });
    return { question, temperature, prompts, isolated };
  }

  return {
    limits,
    async plan(request, signal) {
      const state = stateIds(tokenizer, request.state, config.maxStateTokens);
      const questions: QuestionPlan[] = [];
      let nPrompts = 0;
      let nTokens = 0;
      for (const question of request.questions) {
        const planned = planQuestion(question, state);
        nPrompts += planned.prompts.length;
        for (const { ids } of planned.prompts) nTokens += ids.length;
        requireTotal(nTokens, context);
        questions.push(planned);
        await setImmediate();
        signal.throwIfAborted();
      }
      const prefixLength = nPrompts > 1 ? state.length : 0;
      return { questions, prefixLength, prefixCountedOnce: true };
    },
  };
}

/** @throws ApiError 400 naming both counts */
function requireTotal(nTokens: number, context: number): void {
  const most = MAX_CONTEXTS * context;
  if (nTokens <= most) return;
  const message =
    `the prompts have at least ${nTokens} tokens together; ` +
    `a request may have ${most}, ${MAX_CONTEXTS} times the context of ${context}`;
  throw new ApiError(400, message, "questions");
}

/** What a state begins with; its tokens count for the cap, too. */
const HEADER = "Context:\n";

/** The tokens every prompt of a request begins with. @throws ApiError 400 for a state over the cap */
export function stateIds(tokenizer: Tokenizer, state: Content, most: number): Int32Array {
  const text = promptText(typeof state === "string" ? state : withIndex(state), "spaced");
  const refusal = (count: string): ApiError =>
    new ApiError(400, `the state is ${count} tokens; this model reads at most ${most}`, "state");
  const least = Math.ceil(Buffer.byteLength(text) / tokenizer.longestEntryBytes);
  if (least > most) throw refusal(`at least ${least}`);
  const ids = tokenizer.encode(HEADER + text, false);
  if (ids.length > most) throw refusal(String(ids.length));
  return ids;
}

/** The tokens of a row after the state's. */
export function tailIds(tokenizer: Tokenizer, { question, options }: Row, labels: Labels) {
  const head = `\n\nQuestion: ${question}\nOptions:`;
  const answer = "\nAnswer: (";
  const encode = (text: string): Int32Array => tokenizer.encode(text, false);
  if (options.length <= NARROW_OPTIONS) {
    const lines = options.map((option, i) => `\n(${labels.texts[i]}) ${option}`);
    return encode(head + lines.join("") + answer);
  }
  const opening = encode("\n(");
  const lines = options.flatMap((option, i) => [
    opening,
    labels.ids.subarray(i, i + 1),
    encode(`) ${option}`),
  ]);
  return joined(encode(head), ...lines, encode(answer));
}

/**
 * A to Z, then AA to ZZ, as far as each is one token of its own, up to 255.
 * The walk ends at a single letter that is none: labels without it would not be the trained ones.
 */
export function findLabels(tokenizer: Tokenizer, vocabSize: number): Labels {
  const pairs = LETTERS.flatMap((first) => LETTERS.map((second) => first + second));
  const ids = new Map<number, string>();
  for (const label of [...LETTERS, ...pairs]) {
    if (ids.size === MAX_LABELS) break;
    const [id, ...rest] = tokenizer.encode(label, false);
    const fits = id !== undefined && rest.length === 0 && id < vocabSize && !ids.has(id);
    if (fits) ids.set(id, label);
    else if (label.length === 1) break;
  }
  return { texts: [...ids.values()], ids: Int32Array.from(ids.keys()) };
}

/** The rows of a question, each of which becomes one prompt. */
export function rowsOf(question: Question, isolated: boolean): readonly Row[] {
  const asked = question.instructions === null ? BARE_QUESTION : spaced(question.instructions);
  switch (question.type) {
    case "choice": {
      const options = question.options.map((o) => described(o.name, o.description));
      return [{ question: asked, options }];
    }
    case "score":
      if (isolated) return isolatedRows(question, asked);
      return [{ question: asked, options: question.levels.map((l, i) => `${i}: ${spaced(l)}`) }];
    case "noul":
      return [
        {
          question: asked,
          options: [described("no", question.no), described("yes", question.yes)],
        },
      ];
    default:
      return question satisfies never;
  }
}

function isolatedRows({ levels }: ScoreQuestion, asked: string): readonly Row[] {
  return levels.map((level) => {
    const proposed = spaced(level).replace(LEVEL_NUMBER, "");
    const question = `${asked}\nProposed answer: ${proposed}\nDoes the proposed answer fit?`;
    return { question, options: NO_OR_YES };
  });
}

function described(name: string, description: Content | null): string {
  return description === null ? name : `${name}: ${spaced(description)}`;
}

function spaced(content: Content): string {
  return promptText(content, "spaced");
}

/** Long lists with each element's position as its first member. */
function withIndex(value: JsonValue): JsonValue {
  if (isJsonObject(value)) {
    return new Map(value.entries().map(([key, member]) => [key, withIndex(member)]));
  }
  if (!Array.isArray(value)) return value;
  const items = value.map(withIndex);
  if (items.length < INDEXED_LENGTH) return items;
  return items.map((item, i): JsonValue => {
    // An own _index keeps its value and moves to the front.
    if (isJsonObject(item)) return new Map([["_index", i], ...item]);
    return new Map([
      ["_index", i],
      ["value", item],
    ]);
  });
}

function joined(...parts: readonly Int32Array[]): Int32Array {
  const ids = new Int32Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    ids.set(part, at);
    at += part.length;
  }
  return ids;
}
