// From label logits to the answer on the wire: softmax, the best option, its confidence. Pure functions
// over doubles; the formulas are the contract's. Called by run.ts.

import { EngineError } from "../engine/types.ts";
import { doubleText, echoText } from "./canonical.ts";
import type { Question } from "./request.ts";

/** Probabilities of the options. @param logits one for each option */
export function softmax(logits: Float32Array, temperature: number): number[] {
  const scaled = Array.from(logits, (logit) => logit / temperature);
  const largest = Math.max(...scaled);
  const weights = scaled.map((logit) => Math.exp(logit - largest));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

/** Probabilities of levels that were asked one at a time. @param pairs logits of no and yes */
export function isolatedProbabilities(
  pairs: readonly Float32Array[],
  temperature: number,
): number[] {
  const yes = pairs.map((pair) => softmax(pair, temperature)[1]!);
  const total = sum(yes);
  return yes.map((p) => p / total);
}

/**
 * The JSON of one answer, keys in the contract's order.
 * @param p probability of each option in order; of no and yes for a noul
 * @throws EngineError when one is not a finite number
 */
export function answerText(question: Question, p: readonly number[]): string {
  if (!p.every(Number.isFinite)) {
    throw new EngineError("a reading gave a probability that is not a finite number", false);
  }
  const best = p.indexOf(Math.max(...p));
  switch (question.type) {
    case "choice": {
      const names = question.options.map(({ name }) => JSON.stringify(name));
      return objectText({
        type: '"choice"',
        choice: names[best]!,
        probabilities: mapText(names, p.map(doubleText)),
        confidence: doubleText(choiceConfidence(p[best]!, p.length)),
      });
    }
    case "score": {
      const names = question.levels.map((_, i) => `"${i}"`);
      return objectText({
        type: '"score"',
        score: doubleText(sum(p.map((share, i) => i * share))),
        legend: mapText(names, question.levels.map(echoText)),
        probabilities: mapText(names, p.map(doubleText)),
        confidence: doubleText(scoreConfidence(p, best)),
      });
    }
    case "noul":
      return objectText({ type: '"noul"', noul: doubleText(p[1]!) });
    default:
      return question satisfies never;
  }
}

/** How far the best option is above an even spread, 0 to 1. */
function choiceConfidence(best: number, n: number): number {
  return n === 1 ? 1 : Math.max(0, (best - 1 / n) / (1 - 1 / n));
}

/** 1 less the mean distance from the best level, over the levels' mean distance from their middle. */
function scoreConfidence(p: readonly number[], best: number): number {
  const n = p.length;
  if (n === 1) return 1;
  const spread = sum(p.map((share, i) => share * Math.abs(i - best)));
  const middle = sum(p.map((_, i) => Math.abs(i - (n - 1) / 2))) / n;
  return Math.max(0, 1 - spread / middle);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function objectText(members: Readonly<Record<string, string>>): string {
  return mapText(
    Object.keys(members).map((name) => JSON.stringify(name)),
    Object.values(members),
  );
}

/** @param names JSON strings; their order is kept, which an object of numeric names would not do */
function mapText(names: readonly string[], values: readonly string[]): string {
  return `{${names.map((name, i) => `${name}:${values[i]}`).join(",")}}`;
}
