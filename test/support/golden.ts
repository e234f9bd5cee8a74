// Reads golden.json files: base64 float32 arrays, prompts, probes. Used by test/parity only.

import { readFileSync } from "node:fs";

export interface GoldenPrompt {
  readonly name: string;
  readonly ids: readonly number[];
  readonly last_logits_b64: string;
  readonly greedy_ids: readonly number[];
  readonly greedy_gaps: readonly number[];
  readonly interior_logits?: readonly { readonly pos: number; readonly logits_b64: string }[];
}

export interface HiddenSum {
  readonly name: string;
  readonly mean: number;
  readonly std: number;
  readonly absmax: number;
  readonly first8_pos0: readonly number[];
  readonly first8_last: readonly number[];
}

export interface Golden {
  readonly vocab_size: number;
  readonly prompts: readonly GoldenPrompt[];
  readonly hidden?: { readonly prompt: string; readonly layers: readonly HiddenSum[] };
  readonly probe?: Record<
    string,
    { readonly rmse_over_logit_std: number; readonly argmax_same: string }
  >;
}

export interface RealGolden {
  readonly prompts: readonly {
    readonly ids: readonly number[];
    readonly top50_ids: readonly number[];
    readonly top50_logits: readonly number[];
    readonly logsumexp: number;
    readonly greedy_ids: readonly number[];
    readonly greedy_gaps: readonly number[];
  }[];
  readonly nll: {
    readonly ids: readonly number[];
    readonly n_scored: number;
    readonly mean_nll: number;
    readonly per_token: readonly number[];
  };
}

/** Parses a golden file; its shape is fixed by test/fixtures/scripts. */
export function readGolden<T>(path: string): T {
  return JSON.parse(readFileSync(path, "utf8")) as T; // a fixture of ours, not outside input
}

/** Little-endian float32 from base64. */
export function floats(base64: string): Float32Array {
  const bytes = Buffer.from(base64, "base64");
  return new Float32Array(new Uint8Array(bytes).buffer);
}

/** Index of the largest value; the first of equals. */
export function argmax(values: Float32Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

export function maxAbsDiff(a: Float32Array, b: Float32Array): number {
  let worst = 0;
  for (let i = 0; i < a.length; i++) {
    const d = Math.abs(a[i]! - b[i]!);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

/** Root mean square of a - b over the standard deviation of b. */
export function rmseOverStd(a: readonly Float32Array[], b: readonly Float32Array[]): number {
  let sum = 0;
  let square = 0;
  let error = 0;
  let n = 0;
  for (let k = 0; k < a.length; k++) {
    const x = a[k]!;
    const y = b[k]!;
    for (let i = 0; i < x.length; i++) {
      error += (x[i]! - y[i]!) ** 2;
      sum += y[i]!;
      square += y[i]! ** 2;
      n++;
    }
  }
  const variance = square / n - (sum / n) ** 2;
  return Math.sqrt(error / n / variance);
}

/** -log softmax(logits)[id], in float64. */
export function negativeLogLikelihood(logits: Float32Array, id: number): number {
  const top = logits[argmax(logits)]!;
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i]! - top);
  return top + Math.log(sum) - logits[id]!;
}
