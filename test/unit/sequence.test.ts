// How long a reply may become.

import { expect, test } from "bun:test";
import { GREEDY } from "../../src/engine/sampling.ts";
import { createSequence, generated } from "../../src/engine/sequence.ts";

function generation(promptLength: number, maxTokens: number, context: number) {
  const prompt = Int32Array.from({ length: promptLength }, (_, i) => i);
  const purpose = { kind: "generate", maxTokens, stopIds: [], sampling: GREEDY } as const;
  return createSequence(3, prompt, purpose, context);
}

test.each([
  [10, 5, 100, 5],
  [10, 500, 100, 90],
  [99, 500, 100, 1],
  [10, 90, 100, 90],
])(
  "a prompt of %i with maxTokens %i in a context of %i has room for %i",
  (n, max, context, limit) => {
    const sequence = generation(n, max, context);
    expect(sequence.limit).toBe(limit);
    expect(sequence.tokens.length).toBe(n + limit);
  },
);

test("starts waiting, with nothing computed and nothing generated", () => {
  const sequence = generation(4, 2, 100);
  expect(sequence.row).toBe(-1);
  expect(sequence.computed).toBe(0);
  expect(generated(sequence)).toBe(0);
  expect([...sequence.tokens.subarray(0, sequence.length)]).toEqual([0, 1, 2, 3]);
});

test("copies its prompt, which the caller may use again", () => {
  const prompt = Int32Array.of(1, 2);
  const sequence = createSequence(0, prompt, { kind: "read", ids: [5], prefix: null }, 10);
  prompt[0] = 9;
  expect([...sequence.tokens]).toEqual([1, 2]);
  expect(sequence.limit).toBe(0);
});
