// What both ways of reading answers share: a request becomes prompts, each read at a few labels, and a
// plan says which prompts answer which question. Made by zero-shot.ts and decider.ts, run by run.ts.

import type { DecisionRequest, Question, SizeLimits } from "./request.ts";

/** Tokens to read, and the tokens whose logits after them are the options, in option order. */
export interface Prompt {
  readonly ids: Int32Array;
  readonly labels: Int32Array;
}

/** How one question is answered. */
export interface QuestionPlan {
  readonly question: Question;
  /** Label logits are divided by it. */
  readonly temperature: number;
  /** One prompt over all options; or, for isolated levels, one a level, read at no and yes. */
  readonly prompts: readonly Prompt[];
  readonly isolated: boolean;
}

export interface ReadingPlan {
  readonly questions: readonly QuestionPlan[];
  /** Tokens that all prompts begin with; 0 when there is one prompt or they share none. */
  readonly prefixLength: number;
  /** Whether usage counts those tokens once when they were read once, or with each prompt. */
  readonly prefixCountedOnce: boolean;
}

/** One way of reading answers from a model. */
export interface DecisionReader {
  /** @throws ApiError 400 with param null when the model cannot be read this way */
  limits(): SizeLimits;
  /**
   * Every prompt of a request, all checked.
   * @param signal ends the work, which for long states takes a while, between two questions
   * @throws ApiError 400 naming the question or the state that does not fit, or the signal's reason
   */
  plan(request: DecisionRequest, signal: AbortSignal): Promise<ReadingPlan>;
}

/** The 400 for a model without the label tokens a reading needs. */
export function labelMessage(label: string): string {
  return `the model's tokenizer does not give the label ${label} one token of its own inside the model's vocabulary`;
}
