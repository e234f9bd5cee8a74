// Runs the prompts of a plan one at a time, in order, and writes the answers. How a prompt is queued
// and read is the caller's (api/systemone.ts).

import type { Reading } from "../engine/types.ts";
import { answerText, isolatedProbabilities, softmax } from "./answer.ts";
import type { Prompt, QuestionPlan, ReadingPlan } from "./reading.ts";

/** What a request is answered with. */
export interface Decisions {
  /** The JSON of the answers by name, in the questions' order. */
  readonly answers: string;
  readonly inputTokens: number;
}

/**
 * Reads every prompt and answers every question.
 * @param read reads one prompt; what it throws ends the run
 */
export async function runPlan(
  plan: ReadingPlan,
  read: (prompt: Prompt) => Promise<Reading>,
): Promise<Decisions> {
  const { prefixLength, prefixCountedOnce } = plan;
  const answers: string[] = [];
  let inputTokens = 0;
  let isFirst = true;
  for (const asked of plan.questions) {
    const logits: Float32Array[] = [];
    for (const prompt of asked.prompts) {
      const reading = await read(prompt);
      logits.push(reading.logits);
      // The first prompt reads the prefix, whatever the engine still had of earlier requests.
      const reread = isFirst || !prefixCountedOnce || reading.cachedTokens < prefixLength;
      inputTokens += prompt.ids.length - (reread ? 0 : prefixLength);
      isFirst = false;
    }
    const { question } = asked;
    const answer = answerText(question, probabilities(asked, logits));
    answers.push(`${JSON.stringify(question.name)}:${answer}`);
  }
  return { answers: `{${answers.join(",")}}`, inputTokens };
}

function probabilities(
  { isolated, temperature }: QuestionPlan,
  logits: readonly Float32Array[],
): number[] {
  return isolated ? isolatedProbabilities(logits, temperature) : softmax(logits[0]!, temperature);
}
