// What several architectures share: tensor names, registers, rotary frequencies, and the pieces of a
// decoder layer. Anything only one of them needs stands in its own file.

import { ModelError } from "../errors.ts";
import type { DecoderConfig, Rope } from "../model/config.ts";
import type { NormOptions, PlanBuilder, Reg, Weight } from "../model/plan.ts";
import type { Activation } from "../model/plan-format.ts";
import type { TensorInfo } from "../model/types.ts";
import type { Weights } from "../model/weights.ts";
import type { ArchPlan } from "./types.ts";

/** Our name of a tensor -> its name in safetensors and in GGUF files; # is the layer. */
export type TensorNames = Readonly<Record<string, readonly [hf: string, gguf: string]>>;

/** The names of llama, qwen2 and qwen3; gemma3 starts from them. */
export const DECODER_TENSORS = {
  embed: ["model.embed_tokens", "token_embd"],
  finalNorm: ["model.norm", "output_norm"],
  head: ["lm_head", "output"],
  attnNorm: ["model.layers.#.input_layernorm", "blk.#.attn_norm"],
  q: ["model.layers.#.self_attn.q_proj", "blk.#.attn_q"],
  k: ["model.layers.#.self_attn.k_proj", "blk.#.attn_k"],
  v: ["model.layers.#.self_attn.v_proj", "blk.#.attn_v"],
  attnOut: ["model.layers.#.self_attn.o_proj", "blk.#.attn_output"],
  qNorm: ["model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm"],
  kNorm: ["model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm"],
  ffnNorm: ["model.layers.#.post_attention_layernorm", "blk.#.ffn_norm"],
  gate: ["model.layers.#.mlp.gate_proj", "blk.#.ffn_gate"],
  up: ["model.layers.#.mlp.up_proj", "blk.#.ffn_up"],
  down: ["model.layers.#.mlp.down_proj", "blk.#.ffn_down"],
} as const satisfies TensorNames;

export type TensorKey = keyof typeof DECODER_TENSORS;

/** What the functions below work on. */
export interface Build {
  readonly p: PlanBuilder;
  readonly c: DecoderConfig;
  readonly w: Weights;
  readonly names: TensorNames & Readonly<Record<TensorKey, readonly [string, string]>>;
  /** Rows of q and k are interleaved (llama architecture in GGUF files). */
  readonly interleaved: boolean;
  /** Added to norm weights: 1 where the file holds w of a 1+w norm. */
  readonly normOffset: number;
}

export interface Registers {
  readonly x: Reg;
  readonly h: Reg;
  readonly qkv: Reg;
  readonly att: Reg;
  readonly gateUp: Reg;
  readonly act: Reg;
  readonly out: Reg;
  readonly logits: Reg;
}

/** Full name of a tensor. */
export function tensorName(
  b: Pick<Build, "w" | "names">,
  key: string,
  layer = 0,
  suffix: "weight" | "bias" = "weight",
): string {
  const pair = b.names[key];
  if (pair === undefined) throw new Error(`no tensor called ${key}`);
  return `${pair[b.w.format === "gguf" ? 1 : 0].replace("#", String(layer))}.${suffix}`;
}

/** The registers of a decoder. */
export function decoderRegisters({ p, c }: Build): Registers {
  return {
    x: p.register("x", c.hiddenSize),
    h: p.register("h", c.hiddenSize),
    qkv: p.register("qkv", (c.nHeads + 2 * c.nKvHeads) * c.headDim),
    att: p.register("att", c.nHeads * c.headDim),
    gateUp: p.register("gate_up", 2 * c.intermediateSize),
    act: p.register("act", c.intermediateSize),
    out: p.register("out", c.hiddenSize, "out"),
    logits: p.register("logits", c.vocabSize, "out"),
  };
}

/** The embedding matrix, also the head of a tied model. */
export function embedding({ p, c, w, ...b }: Build): Weight {
  const tensor = w.take(tensorName({ w, ...b }, "embed"), [c.vocabSize, c.hiddenSize]);
  return p.matrix({ tensor });
}

/** A table of the cosines and sines of a step's positions; one for each distinct rope. */
export function ropeTable({ p, c }: Build, name: string, rope: Rope): Reg {
  const table = p.register(name, c.headDim);
  p.ropeTable(table, p.constants(`${name}.inv_freq`, inverseFrequencies(rope, c.headDim)));
  return table;
}

/**
 * Inverse frequencies in the float32 steps of transformers (modeling_rope_utils.py), so that angles
 * agree at long positions.
 */
export function inverseFrequencies(rope: Rope, headDim: number): Float32Array {
  const f = Math.fround;
  const out = new Float32Array(headDim / 2);
  for (let i = 0; i < out.length; i++) {
    const plain = f(1 / f(f(rope.theta) ** f((2 * i) / headDim)));
    out[i] = f(scaled(plain, rope) / (rope.divisors?.[i] ?? 1));
  }
  return out;
}

function scaled(freq: number, { scaling }: Rope): number {
  const f = Math.fround;
  switch (scaling.kind) {
    case "none":
      return freq;
    case "linear":
      return f(freq / scaling.factor);
    case "llama3": {
      const { factor, lowFreqFactor: low, highFreqFactor: high, originalContext } = scaling;
      const wavelength = f((2 * Math.PI) / freq);
      if (wavelength > originalContext / low) return f(freq / factor);
      if (wavelength < originalContext / high) return freq;
      const smooth = f(f(f(originalContext / wavelength) - low) / (high - low));
      return f(f(f(f(1 - smooth) * freq) / factor) + f(smooth * freq));
    }
    default:
      return scaling satisfies never;
  }
}

/** dst (=|+=) rms norm of a. */
export function norm(
  b: Build,
  dst: Reg,
  a: Reg,
  key: string,
  layer = 0,
  options: Pick<NormOptions, "add"> = {},
): void {
  const tensor = b.w.take(tensorName(b, key, layer), [b.c.hiddenSize]);
  b.p.rmsNorm(dst, a, b.p.vector(tensor), { eps: b.c.eps, offset: b.normOffset, ...options });
}

/** qkv = h . [q | k | v]^T, with biases when the architecture has them. */
export function qkv(b: Build, r: Registers, layer: number, options: { bias: boolean }): void {
  const { p, c, w } = b;
  const sizes = { q: c.nHeads, k: c.nKvHeads, v: c.nKvHeads } as const;
  const keys = ["q", "k", "v"] as const;
  const weight = p.matrix(
    ...keys.map((key) => {
      const tensor = w.take(tensorName(b, key, layer), [sizes[key] * c.headDim, c.hiddenSize]);
      return b.interleaved && key !== "v" ? { tensor, ropeHeads: sizes[key] } : { tensor };
    }),
  );
  let bias: Weight | null = null;
  if (options.bias) {
    const shape = (key: "q" | "k" | "v") => [sizes[key] * c.headDim];
    const name = (key: "q" | "k" | "v") => tensorName(b, key, layer, "bias");
    bias = b.interleaved
      ? interleavedBias(b, layer, sizes)
      : p.vector(...keys.map((key) => w.take(name(key), shape(key))));
  }
  p.matmul(r.qkv, r.h, weight, { bias });
}

/** Biases of q and k are interleaved like the rows; vectors have no transform, so it is done here. */
function interleavedBias(
  b: Build,
  layer: number,
  sizes: Readonly<Record<"q" | "k" | "v", number>>,
) {
  const { headDim } = b.c;
  const values = (["q", "k", "v"] as const).flatMap((key) => {
    const file = b.w.floats(tensorName(b, key, layer, "bias"), [sizes[key] * headDim]);
    if (key === "v") return [...file];
    return Array.from(file, (_, row) => {
      const at = row % headDim;
      const half = headDim / 2;
      return file[row - at + 2 * (at % half) + Math.floor(at / half)]!;
    });
  });
  return b.p.constants(`blk.${layer}.attn_qkv.bias`, Float32Array.from(values));
}

/** Norm of every head of q and of k, before the rope (qwen3, gemma3). */
export function qkNorm(b: Build, r: Registers, layer: number): void {
  const { p, c, w } = b;
  const options = { eps: c.eps, offset: b.normOffset };
  const groups = [
    { key: "qNorm", at: 0, count: c.nHeads },
    { key: "kNorm", at: c.nHeads * c.headDim, count: c.nKvHeads },
  ];
  for (const { key, at, count } of groups) {
    const weight = p.vector(w.take(tensorName(b, key, layer), [c.headDim]));
    p.rmsNorm(r.qkv, r.qkv, weight, { ...options, groups: { width: c.headDim, at, count } });
  }
}

/** Turns q and k, then att = attention over the layer's cache. */
export function attend(
  b: Build,
  r: Registers,
  options: { table: Reg; scale: number; window?: number },
): void {
  const { p, c } = b;
  const { nHeads, nKvHeads, headDim } = c;
  p.rope(r.qkv, options.table, nHeads + nKvHeads, headDim);
  const layer = p.layer({ nHeads, nKvHeads, headDim });
  p.attend(r.att, r.qkv, layer, options.scale, options.window ?? 0);
}

/** A projection of a register: dst (=|+=) a . weight^T (+ bias). */
export function project(
  b: Build,
  dst: Reg,
  a: Reg,
  key: "attnOut" | "down",
  layer: number,
  options: { bias: boolean; add: boolean },
): void {
  const { p, c, w } = b;
  const cols = key === "attnOut" ? c.nHeads * c.headDim : c.intermediateSize;
  const tensor = w.take(tensorName(b, key, layer), [c.hiddenSize, cols]);
  const bias = options.bias
    ? p.vector(w.take(tensorName(b, key, layer, "bias"), [c.hiddenSize]))
    : null;
  p.matmul(dst, a, p.matrix({ tensor }), { bias, add: options.add });
}

/** act = activation(h . gate^T) * (h . up^T). */
export function gateUp(
  b: Build,
  r: Registers,
  layer: number,
  options: { bias: boolean; activation: Activation },
): void {
  const { p, c, w } = b;
  const keys = ["gate", "up"] as const;
  const take = (suffix: "weight" | "bias", shape: readonly number[]): TensorInfo[] =>
    keys.map((key) => w.take(tensorName(b, key, layer, suffix), shape));
  const weight = p.matrix(
    ...take("weight", [c.intermediateSize, c.hiddenSize]).map((tensor) => ({ tensor })),
  );
  const bias = options.bias ? p.vector(...take("bias", [c.intermediateSize])) : null;
  p.matmul(r.gateUp, r.h, weight, { bias });
  p.gate(r.act, r.gateUp, options.activation);
}

/** The logits of the wanted rows. */
export function logits(b: Build, r: Registers, embed: Weight): void {
  const { p, c, w } = b;
  p.select(r.out, r.x);
  norm(b, r.out, r.out, "finalNorm");
  const head = c.tied
    ? embed
    : p.matrix({ tensor: w.take(tensorName(b, "head"), [c.vocabSize, c.hiddenSize]) });
  p.matmul(r.logits, r.out, head);
}

/** The finished plan, once every tensor of the file has found its place. */
export function finish(b: Build, r: Registers): ArchPlan {
  // What may be in a file and change nothing: a tied head's copy, stored rope frequencies.
  const head = tensorName(b, "head");
  b.w.refuseUnused((name) => (b.c.tied && name === head) || name.endsWith(".rotary_emb.inv_freq"));
  const { vocabSize, contextLength } = b.c;
  const plan = b.p.finish({ vocab: vocabSize, context: contextLength, logits: r.logits });
  return { plan, vocabSize, contextLength };
}

/** Divisors of rope frequencies that llama.cpp stores for llama3 scaling, or null. */
export function ropeDivisors(w: Weights, headDim: number): Float32Array | null {
  const name = "rope_freqs.weight";
  if (!w.has(name)) return null;
  const values = w.floats(name, [headDim / 2]);
  if (!values.every((x) => x > 0 && x < Infinity)) {
    throw new ModelError(`${w.where}: tensor ${name} holds a number that is no positive divisor`);
  }
  return values;
}

/**
 * Qwen configs carry sliding_window beside use_sliding_window: false; only true would mean anything,
 * and no released model of this family sets it.
 */
export function refuseWindow(useSlidingWindow: boolean | undefined, where: string): void {
  if (useSlidingWindow === true) {
    throw new ModelError(`${where}: use_sliding_window is true, wanted false`);
  }
}
