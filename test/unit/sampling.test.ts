// The packed sampling record and the range check before it.

import { expect, test } from "bun:test";
import { checkSampling, freshSeed, GREEDY, packSampling } from "../../src/engine/sampling.ts";
import { SAMPLING } from "../../src/native/layout.ts";

test("packs every field at its offset, in the record of its row", () => {
  const block = new DataView(new ArrayBuffer(3 * SAMPLING.bytes));
  const seed = 0xfedc_ba98_7654_3210n;
  const params = {
    temperature: 0.5,
    topK: 40,
    topP: 0.75,
    minP: 0.25,
    repetitionPenalty: 1.5,
    seed,
  };
  packSampling(block, 1, params, 7);
  const at = SAMPLING.bytes;
  expect(block.getFloat32(at, true)).toBe(0.5);
  expect(block.getFloat32(at + 4, true)).toBe(0.75);
  expect(block.getFloat32(at + 8, true)).toBe(0.25);
  expect(block.getFloat32(at + 12, true)).toBe(1.5);
  expect(block.getInt32(at + 16, true)).toBe(40);
  expect(block.getBigUint64(at + 24, true)).toBe(seed);
  expect(block.getBigUint64(at + 32, true)).toBe(7n);
  const neighbours = [
    ...new Uint8Array(block.buffer, 0, at),
    ...new Uint8Array(block.buffer, 2 * at),
  ];
  expect(neighbours.every((byte) => byte === 0)).toBe(true);
});

test("keeps a tiny positive setting positive and a huge one finite in float32", () => {
  const block = new DataView(new ArrayBuffer(SAMPLING.bytes));
  packSampling(
    block,
    0,
    { ...GREEDY, temperature: 1e300, topP: 1e-300, repetitionPenalty: 1e-60, topK: 2 ** 40 },
    0,
  );
  expect(Number.isFinite(block.getFloat32(SAMPLING.temperature, true))).toBe(true);
  expect(block.getFloat32(SAMPLING.topP, true)).toBeGreaterThan(0);
  expect(block.getFloat32(SAMPLING.repetitionPenalty, true)).toBeGreaterThan(0);
  expect(block.getFloat32(SAMPLING.minP, true)).toBe(0);
  expect(block.getInt32(SAMPLING.topK, true)).toBe(2 ** 31 - 1);
});

test("takes the ends of every range", () => {
  checkSampling(GREEDY);
  checkSampling({ ...GREEDY, minP: 1, seed: 2n ** 64n - 1n, temperature: 2, topK: 1 });
});

const refused: [Partial<typeof GREEDY>, string][] = [
  [{ temperature: -0.1 }, "temperature must be 0 or more, got -0.1"],
  [{ temperature: Number.NaN }, "temperature must be 0 or more, got NaN"],
  [{ topK: 1.5 }, "topK must be an integer of 0 or more, got 1.5"],
  [{ topP: 0 }, "topP must be above 0 and at most 1, got 0"],
  [{ topP: 1.01 }, "topP must be above 0 and at most 1, got 1.01"],
  [{ minP: -1 }, "minP must be from 0 to 1, got -1"],
  [{ repetitionPenalty: 0 }, "repetitionPenalty must be above 0, got 0"],
  [{ seed: -1n }, "seed must be from 0 to 2^64-1, got -1"],
  [{ seed: 2n ** 64n }, "seed must be from 0 to 2^64-1, got 18446744073709551616"],
];
test.each(refused)("refuses %p, naming the field", (change, message) => {
  expect(() => checkSampling({ ...GREEDY, ...change })).toThrow(message);
});

test("draws seeds over all of the 53 bits that a JSON number holds", () => {
  const seeds = Array.from({ length: 64 }, freshSeed);
  expect(new Set(seeds).size).toBe(64);
  // 2^-64 chance that none of 64 has its top bit set.
  expect(seeds.some((seed) => seed >= 1n << 52n)).toBe(true);
  expect(seeds.every((seed) => seed < 1n << 53n)).toBe(true);
});
