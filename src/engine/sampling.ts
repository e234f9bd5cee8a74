// Sampling settings on their way to C: range check, seeds, and the packed cx_sampling record.
// The HTTP side has its own messages for wrong values; this check guards the engine against bugs.

import { SAMPLING } from "../native/layout.ts";
import type { SamplingParams } from "./types.ts";

/** Always the most likely token. */
export const GREEDY: SamplingParams = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  seed: 0n,
};

/** Smallest normal float32: a positive double below it must not become 0, which means "off". */
const SMALLEST_F32 = 2 ** -126;
const LARGEST_F32 = (2 - 2 ** -23) * 2 ** 127;
const LARGEST_I32 = 2 ** 31 - 1;
const SEEDS = 1n << 64n;
/** A fresh seed has 53 bits, so that every JSON reader gives back the one in /debug/requests. */
const FRESH_SEED_MASK = 2n ** 53n - 1n;

/** A seed for a request that brought none. */
export function freshSeed(): bigint {
  return crypto.getRandomValues(new BigUint64Array(1))[0]! & FRESH_SEED_MASK;
}

/**
 * Refuses settings outside their range.
 * @throws RangeError naming the field, what was wanted and what came
 */
export function checkSampling(params: SamplingParams): void {
  const { temperature, topK, topP, minP, repetitionPenalty, seed } = params;
  const check = (ok: boolean, name: string, wanted: string, came: number | bigint): void => {
    if (!ok) throw new RangeError(`${name} must be ${wanted}, got ${came}`);
  };
  check(Number.isFinite(temperature) && temperature >= 0, "temperature", "0 or more", temperature);
  check(Number.isInteger(topK) && topK >= 0, "topK", "an integer of 0 or more", topK);
  check(topP > 0 && topP <= 1, "topP", "above 0 and at most 1", topP);
  check(minP >= 0 && minP <= 1, "minP", "from 0 to 1", minP);
  check(
    Number.isFinite(repetitionPenalty) && repetitionPenalty > 0,
    "repetitionPenalty",
    "above 0",
    repetitionPenalty,
  );
  check(seed >= 0n && seed < SEEDS, "seed", "from 0 to 2^64-1", seed);
}

/**
 * Writes checked settings as record `row` of the step block.
 * @param draw index of the new token in its reply: the counter of the generator
 */
export function packSampling(
  block: DataView,
  row: number,
  params: SamplingParams,
  draw: number,
): void {
  const at = row * SAMPLING.bytes;
  block.setFloat32(at + SAMPLING.temperature, float32(params.temperature), true);
  block.setFloat32(at + SAMPLING.topP, float32(params.topP), true);
  block.setFloat32(at + SAMPLING.minP, float32(params.minP), true);
  block.setFloat32(at + SAMPLING.repetitionPenalty, float32(params.repetitionPenalty), true);
  block.setInt32(at + SAMPLING.topK, Math.min(params.topK, LARGEST_I32), true);
  block.setBigUint64(at + SAMPLING.seed, params.seed, true);
  block.setBigUint64(at + SAMPLING.draw, BigInt(draw), true);
}

/** A number of 0 or more as float32 that is 0 only for 0, and never infinite. */
function float32(value: number): number {
  return value === 0 ? 0 : Math.min(Math.max(value, SMALLEST_F32), LARGEST_F32);
}
