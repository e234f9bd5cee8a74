// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v alone. Described in docs/arch/qwen2.md.

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
  refuseWindow,
  ropeTable,
} from "./blocks.ts";
import type { Arch, ArchPlan, ModelSource } from "./types.ts";

const schema = decoderSchema.extend({
  ...flatRopeSchema.shape,
  hidden_act: maybe(z.string("wanted a string")),
  use_sliding_window: maybe(z.boolean("wanted true or false")),
});

function readConfig(source: ModelSource): DecoderConfig {
  if (source.kind === "gguf") {
    const { metadata, weights } = source;
    return ggufDecoder(metadata, "qwen2", weights, ggufRope(metadata, "qwen2"));
  }
  const { where } = source;
  const c = checked(schema, source.config, where);
  wantActivation(c.hidden_act, "hidden_act", "silu", where);
  refuseWindow(c.use_sliding_window, where);
  return hfDecoder(c, where, hfRope(c, where), false);
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
    qkv(b, r, l, { bias: true });
    attend(b, r, { table, scale: c.headDim ** -0.5 });
    project(b, r.x, r.att, "attnOut", l, { bias: false, add: true });
    norm(b, r.h, r.x, "ffnNorm", l);
    gateUp(b, r, l, { bias: false, activation: "silu" });
    project(b, r.x, r.act, "down", l, { bias: false, add: true });
  }
  logits(b, r, embed);
  return finish(b, r);
}

export const qwen2: Arch = { id: "qwen2", modelTypes: ["qwen2"], ggufName: "qwen2", build };
