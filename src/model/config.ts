// Reading of model configurations that all architectures share: the fields of a decoder and its rope,
// from config.json (both dialects of transformers) and from GGUF metadata, into one shape.
// Called by the arch files; each adds what is its own.

import { z } from "zod";
import { ModelError } from "../errors.ts";
import { type Metadata, metaFloat, metaInt, metaString, required } from "./metadata.ts";
import { MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH } from "./plan-format.ts";
import type { Weights } from "./weights.ts";

/** Twice the largest heads of any model served; attention keeps a head on its stack. */
const MAX_HEAD_DIM = 512;
/** The lanes that attention walks a head in come in eights (csrc/plan.h). */
const HEAD_DIM_STEP = 8;
/** Four times the widest models. */
const MAX_HEADS = 1024;
/** Frequencies stay normal float32 numbers. */
const MAX_THETA = 1e15;
const MAX_ROPE_FACTOR = 1e6;
/** Longer contexts are clamped: nobody reserves more positions than MAX_CONTEXT. */
const MAX_CLAIMED_CONTEXT = 2 ** 31 - 1;
/** The default of transformers and llama.cpp where a file names none. */
const DEFAULT_THETA = 10_000;

/** Stretching of rotary frequencies for contexts longer than trained. */
export type RopeScaling =
  | { readonly kind: "none" }
  | { readonly kind: "linear"; readonly factor: number }
  | {
      readonly kind: "llama3";
      readonly factor: number;
      readonly lowFreqFactor: number;
      readonly highFreqFactor: number;
      readonly originalContext: number;
    };

export interface Rope {
  readonly theta: number;
  readonly scaling: RopeScaling;
  /** rope_freqs.weight of GGUF files: each frequency is divided by its number. */
  readonly divisors: Float32Array | null;
}

/** What every decoder-only architecture here has. */
export interface DecoderConfig {
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly nLayers: number;
  readonly nHeads: number;
  readonly nKvHeads: number;
  readonly headDim: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly eps: number;
  /** The logits use the embedding matrix. */
  readonly tied: boolean;
  readonly rope: Rope;
}

/** A zod integer in [min, max] whose message says so. */
export function int(min: number, max: number): z.ZodType<number> {
  return z.custom<number>(
    (v) => Number.isInteger(v) && min <= (v as number) && (v as number) <= max,
    `wanted an integer from ${min} to ${max}`,
  );
}

/** A zod number in [min, max] whose message says so. */
export function num(min: number, max: number): z.ZodType<number> {
  return z.custom<number>(
    (v) => typeof v === "number" && min <= v && v <= max,
    `wanted a number from ${min} to ${max}`,
  );
}

/** A field that published configs leave out or set to null. */
export function maybe<T>(schema: z.ZodType<T>) {
  return schema.nullish().transform((v) => v ?? undefined);
}

export const thetaSchema: z.ZodType<number> = num(1, MAX_THETA);

/** Rope settings, old dialect (rope_scaling) and new (rope_parameters). */
export const ropeSchema = z.object({
  rope_type: maybe(z.string("wanted a string")),
  type: maybe(z.string("wanted a string")),
  rope_theta: maybe(thetaSchema),
  factor: maybe(num(1, MAX_ROPE_FACTOR)),
  low_freq_factor: maybe(num(1e-3, MAX_ROPE_FACTOR)),
  high_freq_factor: maybe(num(1e-3, MAX_ROPE_FACTOR)),
  original_max_position_embeddings: maybe(int(1, MAX_CLAIMED_CONTEXT)),
  partial_rotary_factor: maybe(num(0, 1)),
});

/** Fields of config.json that every architecture here reads. */
export const decoderSchema = z.object({
  hidden_size: int(1, MAX_WIDTH),
  intermediate_size: int(1, MAX_WIDTH / 2),
  num_hidden_layers: int(1, MAX_LAYERS),
  num_attention_heads: int(1, MAX_HEADS),
  num_key_value_heads: maybe(int(1, MAX_HEADS)),
  head_dim: maybe(int(1, MAX_HEAD_DIM)),
  vocab_size: int(1, MAX_VOCAB),
  max_position_embeddings: int(1, MAX_CLAIMED_CONTEXT),
  rms_norm_eps: num(1e-12, 1),
  tie_word_embeddings: maybe(z.boolean("wanted true or false")),
  rope_theta: maybe(thetaSchema),
  rope_scaling: maybe(ropeSchema),
  partial_rotary_factor: maybe(num(0, 1)),
  attention_bias: maybe(z.boolean("wanted true or false")),
  mlp_bias: maybe(z.boolean("wanted true or false")),
});

/** For architectures whose rope settings stand at the top of rope_parameters. */
export const flatRopeSchema = z.object({ rope_parameters: maybe(ropeSchema) });

export type HfRope = z.output<typeof ropeSchema>;
type HfDecoder = z.output<typeof decoderSchema>;

/** The shared part of a checked config.json. @param tiedDefault when the file does not say. */
export function hfDecoder(
  c: HfDecoder,
  where: string,
  rope: Rope,
  tiedDefault: boolean,
): DecoderConfig {
  refusePartial(c.partial_rotary_factor, where);
  const nHeads = c.num_attention_heads;
  return checkShape(
    {
      hiddenSize: c.hidden_size,
      intermediateSize: c.intermediate_size,
      nLayers: c.num_hidden_layers,
      nHeads,
      nKvHeads: c.num_key_value_heads ?? nHeads,
      headDim: c.head_dim ?? headDimOf(c.hidden_size, nHeads, `${where}: num_attention_heads`),
      vocabSize: c.vocab_size,
      contextLength: Math.min(c.max_position_embeddings, MAX_CONTEXT),
      eps: c.rms_norm_eps,
      tied: c.tie_word_embeddings ?? tiedDefault,
      rope,
    },
    where,
    { heads: "num_attention_heads", kvHeads: "num_key_value_heads", headDim: "head_dim" },
  );
}

/** Rope of an architecture with one table, from either dialect. */
export function hfRope(
  c: Pick<HfDecoder, "rope_theta" | "rope_scaling"> & { rope_parameters?: HfRope | undefined },
  where: string,
): Rope {
  const settings = c.rope_parameters ?? c.rope_scaling;
  const theta = c.rope_parameters?.rope_theta ?? c.rope_theta ?? DEFAULT_THETA;
  return { theta, scaling: hfScaling(settings, where), divisors: null };
}

/** Scaling by its rope_type. */
export function hfScaling(settings: HfRope | undefined, where: string): RopeScaling {
  if (settings === undefined) return { kind: "none" };
  refusePartial(settings.partial_rotary_factor, where);
  const type = settings.rope_type ?? settings.type ?? "default";
  const field = <K extends keyof HfRope>(key: K): NonNullable<HfRope[K]> => {
    const value = settings[key];
    if (value === undefined) throw new ModelError(`${where}: rope_type ${type} needs ${key}`);
    return value as NonNullable<HfRope[K]>; // checked on the line above
  };
  switch (type) {
    case "default":
      return { kind: "none" };
    case "linear":
      return { kind: "linear", factor: field("factor") };
    case "llama3": {
      const lowFreqFactor = field("low_freq_factor");
      const highFreqFactor = field("high_freq_factor");
      if (highFreqFactor <= lowFreqFactor) {
        throw new ModelError(
          `${where}: high_freq_factor ${highFreqFactor} is not above low_freq_factor ${lowFreqFactor}`,
        );
      }
      return {
        kind: "llama3",
        factor: field("factor"),
        lowFreqFactor,
        highFreqFactor,
        originalContext: field("original_max_position_embeddings"),
      };
    }
    default:
      throw new ModelError(
        `${where}: unknown rope_type ${type}; this release knows default, linear and llama3`,
      );
  }
}

function refusePartial(factor: number | undefined, where: string): void {
  if (factor !== undefined && factor !== 1) {
    throw new ModelError(`${where}: partial_rotary_factor is ${factor}, wanted 1`);
  }
}

/** Refuses an activation that the architecture here does not compute. */
export function wantActivation(
  came: string | undefined,
  field: string,
  known: string,
  where: string,
) {
  if (came !== undefined && came !== known) {
    throw new ModelError(`${where}: unknown ${field} ${came}; this architecture knows ${known}`);
  }
}

/**
 * The shared part of GGUF metadata. Keys begin with the architecture's name.
 * @param rope settings that the architecture found itself.
 */
export function ggufDecoder(m: Metadata, arch: string, w: Weights, rope: Rope): DecoderConfig {
  const get = (key: string, min: number, max: number) => metaInt(m, `${arch}.${key}`, min, max);
  const need = (key: string, min: number, max: number) =>
    required(m, `${arch}.${key}`, get(key, min, max));
  const embedding = w.rows("token_embd.weight");
  const vocabSize = get("vocab_size", 1, MAX_VOCAB) ?? embedding;
  const hiddenSize = need("embedding_length", 1, MAX_WIDTH);
  const nHeads = need("attention.head_count", 1, MAX_HEADS);
  const headDim =
    get("attention.key_length", 1, MAX_HEAD_DIM) ??
    headDimOf(hiddenSize, nHeads, `${m.where}: ${arch}.attention.head_count`);
  for (const key of ["attention.value_length", "rope.dimension_count"]) {
    const n = get(key, 0, MAX_WIDTH);
    if (n !== undefined && n !== headDim) {
      throw new ModelError(
        `${m.where}: ${arch}.${key} is ${n}, wanted the head size ${headDim} (key_length, or embedding_length / head_count)`,
      );
    }
  }
  return checkShape(
    {
      hiddenSize,
      intermediateSize: need("feed_forward_length", 1, MAX_WIDTH / 2),
      nLayers: need("block_count", 1, MAX_LAYERS),
      nHeads,
      nKvHeads: get("attention.head_count_kv", 1, MAX_HEADS) ?? nHeads,
      headDim,
      vocabSize,
      contextLength: Math.min(need("context_length", 1, MAX_CLAIMED_CONTEXT), MAX_CONTEXT),
      eps: required(
        m,
        `${arch}.attention.layer_norm_rms_epsilon`,
        metaFloat(m, `${arch}.attention.layer_norm_rms_epsilon`, 1e-12, 1),
      ),
      tied: !w.has("output.weight"),
      rope,
    },
    m.where,
    {
      heads: `${arch}.attention.head_count`,
      kvHeads: `${arch}.attention.head_count_kv`,
      headDim: `${arch}.attention.key_length`,
    },
  );
}

/** Rope theta and scaling of GGUF metadata. */
export function ggufRope(m: Metadata, arch: string): Rope {
  const divisors = null;
  const theta = metaFloat(m, `${arch}.rope.freq_base`, 1, MAX_THETA) ?? DEFAULT_THETA;
  const type = metaString(m, `${arch}.rope.scaling.type`) ?? "none";
  const factorKey = `${arch}.rope.scaling.factor`;
  if (type === "none") return { theta, scaling: { kind: "none" }, divisors };
  if (type !== "linear") {
    throw new ModelError(
      `${m.where}: ${arch}.rope.scaling.type: unknown type ${type}; this release knows none and linear`,
    );
  }
  const factor = required(m, factorKey, metaFloat(m, factorKey, 1, MAX_ROPE_FACTOR));
  return { theta, scaling: { kind: "linear", factor }, divisors };
}

function headDimOf(hidden: number, nHeads: number, where: string): number {
  if (hidden % nHeads !== 0) {
    throw new ModelError(`${where} ${nHeads} does not divide the hidden size ${hidden}`);
  }
  return hidden / nHeads;
}

function checkShape(
  c: DecoderConfig,
  where: string,
  names: { heads: string; kvHeads: string; headDim: string },
): DecoderConfig {
  if (c.nHeads % c.nKvHeads !== 0) {
    throw new ModelError(
      `${where}: ${names.heads} ${c.nHeads} is no multiple of ${names.kvHeads} ${c.nKvHeads}`,
    );
  }
  if (c.headDim % HEAD_DIM_STEP !== 0 || c.headDim > MAX_HEAD_DIM) {
    throw new ModelError(
      `${where}: ${names.headDim} is ${c.headDim}, wanted a multiple of ${HEAD_DIM_STEP} up to ${MAX_HEAD_DIM}`,
    );
  }
  const qkv = (c.nHeads + 2 * c.nKvHeads) * c.headDim;
  if (qkv > MAX_WIDTH) {
    throw new ModelError(`${where}: ${names.heads}: q, k and v are ${qkv} wide, over ${MAX_WIDTH}`);
  }
  return c;
}
