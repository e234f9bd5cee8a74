// Qwen3 (dense): as Llama, with a norm on every head of q and k before the rope and a head size of its
// own. Described in docs/arch/qwen3.md.

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
  qkNorm,
  qkv,
  refuseWindow,
  ropeTable,
  tensorName,
} from "./blocks.ts";
import type { Arch, ArchPlan, ModelSource } from "./types.ts";

const schema = decoderSchema.extend({
  ...flatRopeSchema.shape,
  hidden_act: maybe(z.string("wanted a string")),
  use_sliding_window: maybe(z.boolean("wanted true or false")),
});

interface Qwen3Config extends DecoderConfig {
  readonly attentionBias: boolean;
}

function readConfig(source: ModelSource): Qwen3Config {
  if (source.kind === "gguf") {
    const { metadata, weights: w } = source;
    const c = ggufDecoder(metadata, "qwen3", w, ggufRope(metadata, "qwen3"));
    const bias = tensorName({ w, names: DECODER_TENSORS }, "q", 0, "bias");
    return { ...c, attentionBias: w.has(bias) };
  }
  const { where } = source;
  const c = checked(schema, source.config, where);
  wantActivation(c.hidden_act, "hidden_act", "silu", where);
  refuseWindow(c.use_sliding_window, where);
  return {
    ...hfDecoder(c, where, hfRope(c, where), false),
    attentionBias: c.attention_bias ?? false,
  };
}

function build(source: ModelSource): ArchPlan {
  const c = readConfig(source);
  const w = source.weights;
  const p = createPlan(w.files);
  const b: Build = { p, c, w, names: DECODER_TENSORS, interleaved: false, normOffset: 0 };
  const r = decoderRegisters(b);
  const embed = embedding(b);
  p.embed(r.x, embed);
  const table = ropeTable(b, "rope", c.rope);
  for (let l = 0; l < c.nLayers; l++) {
    norm(b, r.h, r.x, "attnNorm", l);
    qkv(b, r, l, { bias: c.attentionBias });
    qkNorm(b, r, l);
    attend(b, r, { table, scale: c.headDim ** -0.5 });
    project(b, r.x, r.att, "attnOut", l, { bias: c.attentionBias, add: true });
    norm(b, r.h, r.x, "ffnNorm", l);
    gateUp(b, r, l, { bias: false, activation: "silu" });
    project(b, r.x, r.act, "down", l, { bias: false, add: true });
  }
  logits(b, r, embed);
  return finish(b, r);
}

export const qwen3: Arch = { id: "qwen3", modelTypes: ["qwen3"], ggufName: "qwen3", build };
