// Llama: pre-norm decoder, grouped heads, full rope, SwiGLU. SmolLM2 and Llama 2/3 are of this kind.
// Described in docs/arch/llama.md.

import { z } from "zod";
import {
  type DecoderConfig,
  decoderSchema,
  flatRopeSchema,
  ggufDecoder,
  ggufRope,
  hfDecoder,
  hfRope,
  maybe,
  wantActivation,
} from "../model/config.ts";
import { checked } from "../model/json-file.ts";
import { createPlan } from "../model/plan.ts";
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
  qkv,
  ropeDivisors,
  ropeTable,
  tensorName,
} from "./blocks.ts";
import type { Arch, ArchPlan, ModelSource } from "./types.ts";

const schema = decoderSchema.extend({
  ...flatRopeSchema.shape,
  hidden_act: maybe(z.string("wanted a string")),
});

interface LlamaConfig extends DecoderConfig {
  readonly attentionBias: boolean;
  readonly mlpBias: boolean;
}

function readConfig(source: ModelSource): LlamaConfig {
  if (source.kind === "hf") {
    const { where } = source;
    const c = checked(schema, source.config, where);
    wantActivation(c.hidden_act, "hidden_act", "silu", where);
    return {
      ...hfDecoder(c, where, hfRope(c, where), false),
      attentionBias: c.attention_bias ?? false,
      mlpBias: c.mlp_bias ?? false,
    };
  }
  const { metadata, weights: w } = source;
  const c = ggufDecoder(metadata, "llama", w, ggufRope(metadata, "llama"));
  const has = (key: string) => w.has(tensorName({ w, names: DECODER_TENSORS }, key, 0, "bias"));
  return {
    ...c,
    rope: { ...c.rope, divisors: ropeDivisors(w, c.headDim) },
    attentionBias: has("q"),
    mlpBias: has("gate"),
  };
}

function build(source: ModelSource): ArchPlan {
  const c = readConfig(source);
  const w = source.weights;
  const p = createPlan(w.files);
  const b: Build = {
    p,
    c,
    w,
    names: DECODER_TENSORS,
    interleaved: source.kind === "gguf",
    normOffset: 0,
  };
  const r = decoderRegisters(b);
  const embed = embedding(b);
  p.embed(r.x, embed);
  const table = ropeTable(b, "rope", c.rope);
  for (let l = 0; l < c.nLayers; l++) {
    norm(b, r.h, r.x, "attnNorm", l);
    qkv(b, r, l, { bias: c.attentionBias });
    attend(b, r, { table, scale: c.headDim ** -0.5 });
    project(b, r.x, r.att, "attnOut", l, { bias: c.attentionBias, add: true });
    norm(b, r.h, r.x, "ffnNorm", l);
    gateUp(b, r, l, { bias: c.mlpBias, activation: "silu" });
    project(b, r.x, r.act, "down", l, { bias: c.mlpBias, add: true });
  }
  logits(b, r, embed);
  return finish(b, r);
}

export const llama: Arch = { id: "llama", modelTypes: ["llama"], ggufName: "llama", build };
