// The zero-shot reading: each question is one user message to a chat model, its options are lettered,
// and the answer is the letter the model would write first. The wording is fixed: another one gives
// other probabilities (docs/systemone.md). Called by api/systemone.ts.

import { setImmediate } from "node:timers/promises";
import { requireRoom } from "../api/prompt.ts";
import { ApiError } from "../errors.ts";
import type { LoadedModel } from "../model/types.ts";
import type { ChatTemplate, Tokenizer } from "../text/types.ts";
import { promptText } from "./canonical.ts";
import { type DecisionReader, labelMessage, type QuestionPlan } from "./reading.ts";
import type { Content, DecisionRequest, Question, SizeLimits } from "./request.ts";

const LETTERS: readonly string[] = [..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"];
const SIDES = ["No", "Yes"];

const LIMITS: SizeLimits = {
  preface: "",
  choice: { least: 1, most: LETTERS.length },
  score: { least: 1, most: LETTERS.length },
  instructionsRequired: false,
};

/** What a noul without instructions and criteria asks. */
const BARE_QUESTION = "Is this true?";

type ReadModel = Pick<LoadedModel, "tokenizer" | "template" | "vocabSize">;

/** A label token for each option a type of question may have. */
type Labels = Readonly<Record<Question["type"], Int32Array>>;

/** @param context positions a prompt and its answer may take */
export function createZeroShot(model: ReadModel, context: number): DecisionReader {
  const { tokenizer, vocabSize } = model;
  let labels: Labels | null = null;

  function requireTemplate(): ChatTemplate {
    if (model.template !== null) return model.template;
    const message = "the model has no chat template; /v1/systemone needs one";
    throw new ApiError(400, message, null);
  }

  function render(message: string): string {
    return requireTemplate().render([{ role: "user", content: message }], { thinking: false })
      .prompt;
  }

  function findLabels(): Labels {
    const find = (question: Question, texts: readonly string[]): Int32Array =>
      labelIds(tokenizer, vocabSize, render(messageText("", question)), texts);
    const base = { name: "", param: "", instructions: null };
    return {
      choice: find({ ...base, type: "choice", options: [] }, LETTERS),
      score: find({ ...base, type: "score", levels: [] }, LETTERS),
      noul: find({ ...base, type: "noul", no: null, yes: null }, SIDES),
    };
  }

  function planQuestion(state: string, question: Question, found: Labels): QuestionPlan {
    const text = render(messageText(state, question));
    const least = Math.ceil(Buffer.byteLength(text) / tokenizer.longestTokenBytes);
    requireRoom(least, context, question.param, "at least ");
    const ids = tokenizer.encode(text, false);
    requireRoom(ids.length, context, question.param, "");
    const count = optionCount(question);
    const prompts = [{ ids, labels: found[question.type].subarray(0, count) }];
    return { question, temperature: 1, prompts, isolated: false };
  }

  return {
    limits() {
      requireTemplate();
      labels ??= findLabels();
      return LIMITS;
    },
    async plan(request: DecisionRequest, signal) {
      labels ??= findLabels();
      const state = promptText(request.state, "compact");
      const questions: QuestionPlan[] = [];
      for (const question of request.questions) {
        questions.push(planQuestion(state, question, labels));
        await setImmediate();
        signal.throwIfAborted();
      }
      const prompts = questions.map(({ prompts: [prompt] }) => prompt!.ids);
      return { questions, prefixLength: commonPrefix(prompts), prefixCountedOnce: false };
    },
  };
}

/** The user message of one question. */
export function messageText(state: string, question: Question): string {
  return ["State:", state, "", ...questionLines(question)].join("\n");
}

function questionLines(question: Question): readonly string[] {
  const { instructions } = question;
  const asked = instructions === null ? [] : [`Question: ${compact(instructions)}`];
  switch (question.type) {
    case "choice": {
      const lines = question.options.map(({ name, description }, i) => {
        return `${LETTERS[i]}. ${described(name, description)}`;
      });
      return [...asked, "Options:", ...lines, "Answer with the letter of the best option."];
    }
    case "score": {
      const lines = question.levels.map((level, i) => `${LETTERS[i]}. ${compact(level)}`);
      return [...asked, "Levels:", ...lines, "Answer with the letter of the best level."];
    }
    case "noul": {
      const { yes, no } = question;
      const sides: string[] = [];
      if (yes !== null) sides.push(described("Yes", yes));
      if (no !== null) sides.push(described("No", no));
      const bare =
        instructions === null && sides.length === 0 ? [`Question: ${BARE_QUESTION}`] : [];
      return [...asked, ...bare, ...sides, "Answer with Yes or No."];
    }
    default:
      return question satisfies never;
  }
}

function compact(content: Content): string {
  return promptText(content, "compact");
}

function described(name: string, description: Content | null): string {
  return description === null ? name : `${name}: ${compact(description)}`;
}

function optionCount(question: Question): number {
  if (question.type === "noul") return SIDES.length;
  return question.type === "choice" ? question.options.length : question.levels.length;
}

/**
 * The token of each label at the end of a prompt.
 * @param prompt ends as all prompts of its type do, whatever stands before
 * @throws ApiError 400 for a label that is not one token there, or not one of its own
 */
function labelIds(
  tokenizer: Tokenizer,
  vocabSize: number,
  prompt: string,
  labels: readonly string[],
): Int32Array {
  const before = tokenizer.encode(prompt, false);
  const found = new Set<number>();
  for (const label of labels) {
    const ids = tokenizer.encode(prompt + label, false);
    const id = ids.at(-1);
    const grown = ids.length === before.length + 1 && before.every((known, i) => ids[i] === known);
    if (!grown || id === undefined || id >= vocabSize || found.has(id)) {
      throw new ApiError(400, labelMessage(label), null);
    }
    found.add(id);
  }
  return Int32Array.from(found);
}

/** Tokens that all prompts begin with, fewer than each has; 0 for a single prompt. */
function commonPrefix(prompts: readonly Int32Array[]): number {
  const first = prompts[0]!;
  if (prompts.length === 1) return 0;
  let length = first.length - 1;
  for (const prompt of prompts) {
    length = Math.min(length, prompt.length - 1);
    let n = 0;
    while (n < length && prompt[n] === first[n]) n++;
    length = n;
  }
  return length;
}
