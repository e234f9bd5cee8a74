// Gemma 3 text: local and global layers with a rope each, norms before and after both branches, scaled
// embedding, GELU. Described in docs/arch/gemma3.md.

import { z } from "zod";
import { ModelError } from "../errors.ts";
import {
  type DecoderConfig,
  decoderSchema,
  ggufDecoder,
  ggufRope,
  hfDecoder,
  hfScaling,
  int,
  maybe,
  num,
  type Rope,
  ropeSchema,
  thetaSchema,
  wantActivation,
} from "../model/config.ts";
import { checked } from "../model/json-file.ts";
import { type Metadata, metaFloat, metaInt, required } from "../model/metadata.ts";
import { createPlan } from "../model/plan.ts";
import { MAX_CONTEXT, MAX_LAYERS } from "../model/plan-format.ts";
import type { Weights } from "../model/weights.ts";
import {
  attend,
  type Build,
  DECODER_TENSORS,
  decoderRegisters,
  embedding,
  finish,
  gateUp,
  logits,
  norm,
  project,
  qkNorm,
  qkv,
  ropeTable,
  type TensorNames,
} from "./blocks.ts";
import type { Arch, ArchPlan, ModelSource } from "./types.ts";

/** Defaults of transformers' Gemma3TextConfig; llama.cpp has the same ones built in. */
const GLOBAL_THETA = 1_000_000;
const LOCAL_THETA = 10_000;
const PATTERN = 6;
/** Only the 27B model, known by its layers, scales scores by hidden / heads; GGUF has no key for it. */
const LAYERS_OF_27B = 62;
const MAX_SCALAR = 1e6;

const TENSORS = {
  ...DECODER_TENSORS,
  postAttnNorm: ["model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"],
  ffnNorm: ["model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm"],
  postFfnNorm: ["model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"],
} as const satisfies TensorNames;

const schema = decoderSchema.extend({
  rope_parameters: maybe(
    z.object({ full_attention: maybe(ropeSchema), sliding_attention: maybe(ropeSchema) }),
  ),
  rope_local_base_freq: maybe(thetaSchema),
  hidden_activation: maybe(z.string("wanted a string")),
  query_pre_attn_scalar: num(1e-3, MAX_SCALAR),
  sliding_window: int(1, MAX_CONTEXT),
  sliding_window_pattern: maybe(int(1, MAX_LAYERS)),
  _sliding_window_pattern: maybe(int(1, MAX_LAYERS)),
  layer_types: maybe(z.array(z.enum(["sliding_attention", "full_attention"])).max(MAX_LAYERS)),
  final_logit_softcapping: maybe(num(1e-3, MAX_SCALAR)),
  use_bidirectional_attention: maybe(z.boolean("wanted true or false")),
});

interface Gemma3Config extends DecoderConfig {
  /** rope of the full layers is DecoderConfig.rope. */
  readonly localRope: Rope;
  readonly window: number;
  /** For each layer: it sees every earlier position. */
  readonly full: readonly boolean[];
  readonly attnScale: number;
  /** 0: none. */
  readonly finalSoftcap: number;
}

function readConfig(source: ModelSource): Gemma3Config {
  return source.kind === "hf"
    ? readHf(source.config, source.where)
    : readGguf(source.metadata, source.weights);
}

function readHf(config: Readonly<Record<string, unknown>>, where: string): Gemma3Config {
  const c = checked(schema, config, where);
  wantActivation(c.hidden_activation, "hidden_activation", "gelu_pytorch_tanh", where);
  if (c.attention_bias === true) {
    throw new ModelError(`${where}: attention_bias is true, wanted false`);
  }
  if (c.use_bidirectional_attention === true) {
    throw new ModelError(`${where}: use_bidirectional_attention is true, wanted false`);
  }
  const nLayers = c.num_hidden_layers;
  if (c.layer_types !== undefined && c.layer_types.length !== nLayers) {
    throw new ModelError(
      `${where}: layer_types has ${c.layer_types.length} entries for ${nLayers} layers`,
    );
  }
  const pattern = c._sliding_window_pattern ?? c.sliding_window_pattern ?? PATTERN;
  const byType = c.rope_parameters;
  const rope: Rope = {
    theta: byType?.full_attention?.rope_theta ?? c.rope_theta ?? GLOBAL_THETA,
    scaling: hfScaling(byType?.full_attention ?? c.rope_scaling, where),
    divisors: null,
  };
  return {
    ...hfDecoder(c, where, rope, true),
    localRope: {
      theta: byType?.sliding_attention?.rope_theta ?? c.rope_local_base_freq ?? LOCAL_THETA,
      scaling: hfScaling(byType?.sliding_attention, where),
      divisors: null,
    },
    window: c.sliding_window,
    full: c.layer_types?.map((t) => t === "full_attention") ?? everyNth(nLayers, pattern),
    attnScale: c.query_pre_attn_scalar ** -0.5,
    finalSoftcap: c.final_logit_softcapping ?? 0,
  };
}

function readGguf(m: Metadata, w: Weights): Gemma3Config {
  const c = ggufDecoder(m, "gemma3", w, ggufRope(m, "gemma3"));
  const key = (name: string) => `gemma3.${name}`;
  const window = key("attention.sliding_window");
  const pattern = metaInt(m, key("attention.sliding_window_pattern"), 1, MAX_LAYERS) ?? PATTERN;
  return {
    ...c,
    localRope: {
      theta: metaFloat(m, key("rope.freq_base_swa"), 1, 1e15) ?? LOCAL_THETA,
      scaling: { kind: "none" },
      divisors: null,
    },
    window: required(m, window, metaInt(m, window, 1, MAX_CONTEXT)),
    full: everyNth(c.nLayers, pattern),
    attnScale: (c.nLayers === LAYERS_OF_27B ? c.hiddenSize / c.nHeads : c.headDim) ** -0.5,
    finalSoftcap: metaFloat(m, key("final_logit_softcapping"), 0, MAX_SCALAR) ?? 0,
  };
}

function everyNth(nLayers: number, pattern: number): boolean[] {
  return Array.from({ length: nLayers }, (_, l) => (l + 1) % pattern === 0);
}

function build(source: ModelSource): ArchPlan {
  const c = readConfig(source);
  const w = source.weights;
  const p = createPlan(w.files);
  // GGUF files hold 1+w already.
  const normOffset = source.kind === "gguf" ? 0 : 1;
  const b: Build = { p, c, w, names: TENSORS, interleaved: false, normOffset };
  const r = decoderRegisters(b);
  const embed = embedding(b);
  p.embed(r.x, embed, Math.sqrt(c.hiddenSize));
  const local = ropeTable(b, "rope_local", c.localRope);
  const global = ropeTable(b, "rope", c.rope);
  for (let l = 0; l < c.nLayers; l++) {
    const reach = c.full[l] ? { table: global, window: 0 } : { table: local, window: c.window };
    norm(b, r.h, r.x, "attnNorm", l);
    qkv(b, r, l, { bias: false });
    qkNorm(b, r, l);
    attend(b, r, { ...reach, scale: c.attnScale });
    project(b, r.h, r.att, "attnOut", l, { bias: false, add: false });
    norm(b, r.x, r.h, "postAttnNorm", l, { add: true });
    norm(b, r.h, r.x, "ffnNorm", l);
    gateUp(b, r, l, { bias: false, activation: "geluTanh" });
    project(b, r.h, r.act, "down", l, { bias: false, add: false });
    norm(b, r.x, r.h, "postFfnNorm", l, { add: true });
  }
  logits(b, r, embed);
  if (c.finalSoftcap > 0) p.softcap(r.logits, c.finalSoftcap);
  return finish(b, r);
}

export const gemma3: Arch = {
  id: "gemma3",
  modelTypes: ["gemma3_text"],
  ggufName: "gemma3",
  build,
};
