// A llama-shaped model of any size with random Q4_0 weights, for tests that need a model but no text:
// equality of tokens, cancellation. All its layers share one layer's weights, so that a model that
// computes for seconds takes few bytes. Same seed, same model. The file is written to a folder of
// the caller.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createPlan, type Weight } from "../../src/model/plan.ts";
import type { LoadedModel, TensorInfo } from "../../src/model/types.ts";

export interface RandomModelShape {
  readonly nLayers: number;
  readonly hiddenSize: number;
  readonly nHeads: number;
  readonly nKvHeads: number;
  readonly headDim: number;
  readonly intermediateSize: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  /** A token whose embedding is not a number, so that the logits after it are none either. */
  readonly nanToken?: number;
}

const Q4_0 = 2;
const BLOCK = 32;
const BLOCK_BYTES = 18;
/** Standard deviation of (nibble - 8) for uniform nibbles. */
const NIBBLE_STD = Math.sqrt((16 * 16 - 1) / 12);
const EPS = 1e-5;
const ROPE_THETA = 10000;

/** Writes the weights into `folder` and builds the plan. Dimensions are multiples of 32. */
export function randomModel(
  folder: string,
  shape: RandomModelShape,
): Pick<LoadedModel, "plan" | "vocabSize" | "contextLength"> {
  const { nLayers, hiddenSize, nHeads, nKvHeads, headDim, intermediateSize, vocabSize } = shape;
  const qkvWidth = (nHeads + 2 * nKvHeads) * headDim;
  const shapes: readonly (readonly [string, number, number])[] = [
    ["embed", vocabSize, hiddenSize],
    ["qkv", qkvWidth, hiddenSize],
    ["att_out", hiddenSize, nHeads * headDim],
    ["gate_up", 2 * intermediateSize, hiddenSize],
    ["down", hiddenSize, intermediateSize],
    ["head", vocabSize, hiddenSize],
  ];
  const random = xorshift(0x2545f491);
  const tensors = new Map<string, TensorInfo>();
  let end = 0;
  for (const [name, rows, cols] of shapes) {
    const bytes = ((rows * cols) / BLOCK) * BLOCK_BYTES;
    const known = { name, file: 0, dtype: Q4_0, dtypeName: "Q4_0", shape: [rows, cols] };
    tensors.set(name, { ...known, offset: end, bytes });
    end += bytes;
  }
  const file = new Uint8Array(end);
  const words = new DataView(file.buffer);
  for (const { offset, bytes, shape } of tensors.values()) {
    const scale = 1 / (NIBBLE_STD * Math.sqrt(shape[1]!));
    for (let at = offset; at < offset + bytes; at += BLOCK_BYTES) {
      words.setFloat16(at, scale, true);
      for (let i = 2; i < BLOCK_BYTES; i += 4) words.setUint32(at + i, random(), true);
    }
  }
  if (shape.nanToken !== undefined) {
    words.setFloat16(((shape.nanToken * hiddenSize) / BLOCK) * BLOCK_BYTES, Number.NaN, true);
  }
  const path = join(folder, "random.weights");
  writeFileSync(path, file);

  const p = createPlan([{ path, bytes: end }]);
  const matrix = (name: string): Weight => p.matrix({ tensor: tensors.get(name)! });
  const x = p.register("x", hiddenSize);
  const h = p.register("h", hiddenSize);
  const qkv = p.register("qkv", qkvWidth);
  const att = p.register("att", nHeads * headDim);
  const gateUp = p.register("gate_up", 2 * intermediateSize);
  const act = p.register("act", intermediateSize);
  const table = p.register("rope", headDim);
  const out = p.register("out", hiddenSize, "out");
  const logits = p.register("logits", vocabSize, "out");
  const weights = [matrix("qkv"), matrix("att_out"), matrix("gate_up"), matrix("down")] as const;
  const ones = p.constants("ones", new Float32Array(hiddenSize).fill(1));
  const frequencies = Float32Array.from(
    { length: headDim / 2 },
    (_, i) => ROPE_THETA ** ((-2 * i) / headDim),
  );
  // Rows of the embedding have unit length; the first norm makes up for it.
  p.embed(x, matrix("embed"));
  p.ropeTable(table, p.constants("frequencies", frequencies));
  for (let l = 0; l < nLayers; l++) {
    p.rmsNorm(h, x, ones, { eps: EPS });
    p.matmul(qkv, h, weights[0]);
    p.rope(qkv, table, nHeads + nKvHeads, headDim);
    p.attend(att, qkv, p.layer({ nHeads, nKvHeads, headDim }), headDim ** -0.5);
    p.matmul(x, att, weights[1], { add: true });
    p.rmsNorm(h, x, ones, { eps: EPS });
    p.matmul(gateUp, h, weights[2]);
    p.gate(act, gateUp, "silu");
    p.matmul(x, act, weights[3], { add: true });
  }
  p.select(out, x);
  p.rmsNorm(out, out, ones, { eps: EPS });
  p.matmul(logits, out, matrix("head"));
  const { contextLength } = shape;
  const { blob } = p.finish({ vocab: vocabSize, context: contextLength, logits });
  return { plan: blob, vocabSize, contextLength };
}

/** Marsaglia's 32-bit xorshift. */
function xorshift(seed: number): () => number {
  let x = seed;
  return () => {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return x >>> 0;
  };
}
