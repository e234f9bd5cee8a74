// The architecture files: the plans they build, run by the float64 interpreter, give the logits and
// tokens of transformers; and configs that do not fit are refused by the name of the field.

import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { inverseFrequencies } from "../../src/arch/blocks.ts";
import { archOfGguf, archOfModelType } from "../../src/arch/index.ts";
import type { ArchPlan } from "../../src/arch/types.ts";
import type { Rope } from "../../src/model/config.ts";
import { type GgufValue, readGguf } from "../../src/model/gguf.ts";
import { decodePlan, OP } from "../../src/model/plan-format.ts";
import { readSafetensors } from "../../src/model/safetensors.ts";
import type { TensorInfo, TensorTable } from "../../src/model/types.ts";
import { createWeights } from "../../src/model/weights.ts";
import { dequantize, rowBytes } from "../support/dequant.ts";
import { fixture, fixtureModel } from "../support/fixtures.ts";
import { floats, type Golden, readGolden } from "../support/golden.ts";
import { createReference } from "../support/reference.ts";
import { refused } from "../support/refused.ts";

/** fixtures/README.md: float32 noise of transformers is 1e-4 at most. */
const LOGIT_ERROR = 1e-3;
/** The interpreter is slow: longer prompts are left to the native tests. */
const LONGEST_PROMPT = 17;
const GREEDY_STEPS = 8;
/** The interpreter beside other work on the machine. */
const GOLDEN_TIMEOUT_MS = 60_000;

function openFolder(dir: string, change: (config: Config) => void = () => {}): ArchPlan {
  const where = join(dir, "config.json");
  const config = JSON.parse(readFileSync(where, "utf8")) as Config; // a fixture of ours
  change(config);
  const arch = archOfModelType(String(config.model_type), where);
  return arch.build({ kind: "hf", config, where, weights: createWeights(readSafetensors(dir)) });
}

function openFile(path: string, change: (keys: Map<string, GgufValue>) => void = () => {}) {
  const file = readGguf(path);
  const metadata = new Map(file.metadata);
  change(metadata);
  const arch = archOfGguf(String(metadata.get("general.architecture")!.value), path);
  return arch.build({
    kind: "gguf",
    metadata: { where: path, metadata },
    weights: createWeights(file),
  });
}

type Config = Record<string, unknown>;

/** Largest difference after the prompt, and whether the greedy tokens follow, over short prompts. */
function compare(plan: ArrayBuffer, golden: Golden): { error: number; prompts: number } {
  let error = 0;
  let prompts = 0;
  const reference = createReference(plan);
  for (const prompt of golden.prompts) {
    if (prompt.ids.length > LONGEST_PROMPT) continue;
    prompts++;
    const greedy = prompt.greedy_ids.slice(0, GREEDY_STEPS);
    const ids = [...prompt.ids, ...greedy].slice(0, -1);
    const row = prompts;
    const logits = reference.step(
      ids.map((token, pos) => ({ token, pos, row, want: pos >= prompt.ids.length - 1 })),
    );
    floats(prompt.last_logits_b64).forEach((x, i) => {
      error = Math.max(error, Math.abs(x - logits[0]![i]!));
    });
    expect(logits.map((l) => l.indexOf(Math.max(...l)))).toEqual(greedy);
  }
  return { error, prompts };
}

describe("goldens", () => {
  for (const name of ["llama-tiny-rope-scaled", "qwen2-tiny", "gemma3-tiny-softcap"]) {
    test(
      `${name}, a folder`,
      () => {
        const dir = fixtureModel(name);
        const golden = readGolden<Golden>(join(dir, "golden.json"));
        const { error, prompts } = compare(openFolder(dir).plan.blob, golden);
        expect(prompts).toBeGreaterThan(1);
        expect(error).toBeLessThan(LOGIT_ERROR);
      },
      GOLDEN_TIMEOUT_MS,
    );
  }
  for (const name of [
    "llama-256-Q4_K_M",
    "qwen3-tiny-Q5_1",
    "gemma3-256-Q5_K_M",
    "gemma3-tiny-softcap-Q4_0",
  ]) {
    test(
      `${name}, a GGUF file`,
      () => {
        const golden = readGolden<Golden>(fixture("gguf", `${name}.golden.json`));
        const { error, prompts } = compare(
          openFile(fixture("gguf", `${name}.gguf`)).plan.blob,
          golden,
        );
        expect(prompts).toBeGreaterThan(0);
        expect(error).toBeLessThan(LOGIT_ERROR);
      },
      GOLDEN_TIMEOUT_MS,
    );
  }
});

test("dequantisation gives the reference's floats bit for bit", () => {
  interface Row {
    readonly kind: string;
    readonly n: number;
    readonly raw: string;
    readonly f32: string;
  }
  const { types } = JSON.parse(readFileSync(fixture("gguf", "dequant.json"), "utf8")) as {
    types: Record<string, { ggml_type: number; rows: Row[] }>; // a fixture of ours
  };
  const known = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"];
  for (const name of known) {
    const type = types[name]!;
    for (const row of type.rows) {
      const raw = new Uint8Array(Buffer.from(row.raw, "base64"));
      expect(rowBytes(type.ggml_type, row.n)).toBe(raw.length);
      const values = dequantize(type.ggml_type, new DataView(raw.buffer), 0, row.n);
      const got = Buffer.from(values.buffer).toString("base64");
      expect([name, row.kind, got === row.f32]).toEqual([name, row.kind, true]);
    }
  }
});

describe("config dialects", () => {
  const llama = fixtureModel("llama-tiny-rope-scaled");
  const gemma = fixtureModel("gemma3-tiny-softcap");
  const blob = (plan: ArchPlan) => Buffer.from(plan.plan.blob).toString("base64");

  test("rope_parameters of transformers 5 means what rope_theta and rope_scaling mean", () => {
    const renewed = openFolder(llama, (c) => {
      c.rope_parameters = { ...(c.rope_scaling as object), rope_theta: c.rope_theta };
      delete c.rope_scaling;
      delete c.rope_theta;
    });
    expect(blob(renewed) === blob(openFolder(llama))).toBe(true);
  });

  test("rope_scaling of old files spells rope_type as type", () => {
    const old = openFolder(llama, (c) => {
      const { rope_type, ...rest } = c.rope_scaling as Record<string, unknown>;
      c.rope_scaling = { ...rest, type: rope_type };
    });
    expect(blob(old) === blob(openFolder(llama))).toBe(true);
  });

  test("gemma3 keys rope_parameters and layers by type", () => {
    const renewed = openFolder(gemma, (c) => {
      c.rope_parameters = {
        full_attention: { ...(c.rope_scaling as object), rope_theta: c.rope_theta },
        sliding_attention: { rope_type: "default", rope_theta: c.rope_local_base_freq },
      };
      const types = ["sliding", "sliding", "full", "sliding"].map((t) => `${t}_attention`);
      c.layer_types = types;
      for (const key of ["rope_scaling", "rope_theta", "rope_local_base_freq"]) delete c[key];
      delete c.sliding_window_pattern;
    });
    expect(blob(renewed) === blob(openFolder(gemma))).toBe(true);
  });

  test("gemma3 layers slide but for every pattern-th", () => {
    const plan = decodePlan(openFolder(gemma).plan.blob);
    const windows = plan.ops.filter((o) => o.kind === OP.attend).map((o) => o.i[1]);
    expect(windows).toEqual([24, 24, 0, 24]);
    const every = openFolder(gemma, (c) => {
      c.sliding_window_pattern = 1;
    });
    const full = decodePlan(every.plan.blob).ops.filter((o) => o.kind === OP.attend);
    expect(full.map((o) => o.i[1])).toEqual([0, 0, 0, 0]);
  });
});

describe("refusals name the field", () => {
  const dirs = {
    llama: fixtureModel("llama-tiny-rope-scaled"),
    qwen2: fixtureModel("qwen2-tiny"),
    gemma3: fixtureModel("gemma3-tiny-softcap"),
  };
  const cases: readonly [keyof typeof dirs, Config, string][] = [
    ["llama", { model_type: "mistral" }, "unknown architecture mistral"],
    ["llama", { hidden_act: "relu" }, "unknown hidden_act relu"],
    ["llama", { hidden_size: "128" }, "hidden_size: wanted an integer"],
    ["llama", { hidden_size: 128.5 }, "hidden_size: wanted an integer"],
    ["llama", { num_hidden_layers: 1025 }, "num_hidden_layers: wanted an integer from 1 to 1024"],
    ["llama", { num_key_value_heads: 3 }, "num_key_value_heads"],
    ["llama", { head_dim: 36 }, "head_dim is 36, wanted a multiple of 8"],
    ["llama", { rms_norm_eps: 0 }, "rms_norm_eps"],
    ["llama", { rope_theta: -1 }, "rope_theta"],
    ["llama", { rope_scaling: { rope_type: "yarn", factor: 2 } }, "unknown rope_type yarn"],
    ["llama", { rope_scaling: { rope_type: "linear" } }, "rope_type linear needs factor"],
    ["llama", { partial_rotary_factor: 0.5 }, "partial_rotary_factor is 0.5"],
    ["llama", { tie_word_embeddings: "yes" }, "tie_word_embeddings"],
    ["llama", { attention_bias: true }, "model.layers.0.self_attn.q_proj.bias is missing"],
    ["llama", { mlp_bias: true }, "model.layers.0.mlp.gate_proj.bias is missing"],
    ["llama", { num_hidden_layers: 2 }, "model.layers.2."],
    ["llama", { vocab_size: 511 }, "model.embed_tokens.weight has shape [512, 128]"],
    ["qwen2", { use_sliding_window: true }, "use_sliding_window is true"],
    ["qwen2", { tie_word_embeddings: false }, "lm_head.weight is missing"],
    ["gemma3", { layer_types: ["full_attention"] }, "layer_types has 1 entries for 4 layers"],
    ["gemma3", { layer_types: ["linear_attention"] }, "layer_types.0"],
    ["gemma3", { query_pre_attn_scalar: null }, "query_pre_attn_scalar"],
    ["gemma3", { sliding_window: 0 }, "sliding_window"],
    ["gemma3", { hidden_activation: "gelu" }, "unknown hidden_activation gelu"],
    ["gemma3", { attention_bias: true }, "attention_bias is true"],
    ["gemma3", { use_bidirectional_attention: true }, "use_bidirectional_attention"],
  ];
  for (const [model, change, message] of cases) {
    test(`${model} ${JSON.stringify(change)}`, () => {
      const said = refused(() => openFolder(dirs[model], (c) => Object.assign(c, change)));
      expect(said).toContain(message);
    });
  }

  test("GGUF metadata: unknown scaling, a partial rope, a missing key", () => {
    const path = fixture("gguf", "qwen3-tiny-Q5_1.gguf");
    const set = (key: string, value: GgufValue | null) => (keys: Map<string, GgufValue>) => {
      if (value === null) keys.delete(key);
      else keys.set(key, value);
    };
    const say = (key: string, value: GgufValue | null) =>
      refused(() => openFile(path, set(key, value)));
    expect(say("qwen3.rope.scaling.type", { type: "string", value: "yarn" })).toContain(
      "qwen3.rope.scaling.type: unknown type yarn",
    );
    expect(say("qwen3.rope.scaling.type", { type: "string", value: "linear" })).toContain(
      "qwen3.rope.scaling.factor is missing",
    );
    expect(say("qwen3.rope.dimension_count", { type: "uint32", value: 32 })).toContain(
      "qwen3.rope.dimension_count is 32",
    );
    expect(say("qwen3.context_length", null)).toContain("qwen3.context_length is missing");
  });
});

describe("llama details", () => {
  /** Tensor table of the malformed set's control, changed. */
  function control(change: (tensors: Map<string, TensorInfo>) => void): TensorTable {
    const table = readSafetensors(fixture("malformed", "st-ok"));
    const tensors = new Map(table.tensors);
    change(tensors);
    return { ...table, tensors };
  }
  const config = JSON.parse(
    readFileSync(fixture("malformed", "st-ok", "config.json"), "utf8"),
  ) as Config; // a fixture of ours
  const build = (table: TensorTable, changed: Config = {}) =>
    archOfModelType("llama", "").build({
      kind: "hf",
      config: { ...config, ...changed },
      where: "config.json",
      weights: createWeights(table),
    });

  test("attention_bias and mlp_bias put biases on every projection", () => {
    const table = control((tensors) => {
      const norm = tensors.get("model.norm.weight")!; // 32 numbers, as wide as every bias here
      for (const key of ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"]) {
        const name = `model.layers.0.${key}_proj.bias`;
        tensors.set(name, { ...norm, name });
      }
      for (const key of ["gate", "up", "down"]) {
        const name = `model.layers.0.mlp.${key}_proj.bias`;
        tensors.set(name, { ...norm, name });
      }
    });
    const built = build(table, { attention_bias: true, mlp_bias: true });
    const plan = decodePlan(built.plan.blob);
    const biases = plan.ops
      .filter((o) => o.kind === OP.matmul)
      .map((o) => (o.weight2 < 0 ? 0 : plan.weights[o.weight2]!.cols));
    expect(biases).toEqual([96, 32, 64, 32, 0]);
  });

  test("a tensor nobody asked for is refused; a tied head's copy and stored frequencies are not", () => {
    const extra = (name: string) =>
      control((tensors) => {
        tensors.set(name, { ...tensors.get("model.norm.weight")!, name });
      });
    expect(refused(() => build(extra("model.layers.0.self_attn.q_norm.weight")))).toContain(
      "q_norm.weight has no place",
    );
    build(extra("lm_head.weight"));
    build(extra("model.layers.0.self_attn.rotary_emb.inv_freq"));
  });

  test("GGUF: q and k biases come out of the interleaved order, rope_freqs divides", () => {
    const path = fixture("malformed", "ok-llama.gguf");
    const file = readGguf(path);
    const tensors = new Map(file.tensors);
    const norm = tensors.get("output_norm.weight")!; // 32 float32, one head
    for (const key of ["q", "k", "v", "output"]) {
      const name = `blk.0.attn_${key}.bias`;
      tensors.set(name, { ...norm, name });
    }
    const freqs = { ...norm, name: "rope_freqs.weight", shape: [16], bytes: 64 };
    tensors.set(freqs.name, freqs);
    const weights = createWeights({ ...file, tensors });
    const built = archOfGguf("llama", path).build({ kind: "gguf", metadata: file, weights });
    const plan = decodePlan(built.plan.blob);
    const values = weights.floats("output_norm.weight", [32]);
    const qkv = plan.parts.find((p) => p.name === "blk.0.attn_qkv.bias")!;
    const bias = [...plan.consts.slice(qkv.offset, qkv.offset + qkv.cols)];
    const evenThenOdd = [0, 1].flatMap((s) =>
      Array.from({ length: 16 }, (_, i) => values[2 * i + s]!),
    );
    expect(bias).toEqual([...evenThenOdd, ...evenThenOdd, ...values]);

    const plain = openFile(path).plan.blob;
    const frequencies = (blob: ArrayBuffer) => [...decodePlan(blob).consts.slice(0, 16)];
    expect(frequencies(built.plan.blob)).toEqual(
      frequencies(plain).map((f, i) => Math.fround(f / values[i]!)),
    );
  });

  test("a context beyond the largest plan is clamped", () => {
    const table = control(() => {});
    expect(build(table, { max_position_embeddings: 10_485_760 }).contextLength).toBe(1_048_576);
  });
});

test("inverse frequencies are those of transformers, in float32", () => {
  const rope: Rope = { theta: 10_000, scaling: { kind: "none" }, divisors: null };
  expect([...inverseFrequencies(rope, 8)]).toEqual([1, 0.1, 0.01, 0.001].map(Math.fround));
  const linear: Rope = { ...rope, scaling: { kind: "linear", factor: 8 } };
  expect(inverseFrequencies(linear, 8)[1]).toBe(Math.fround(Math.fround(0.1) / 8));
  const divided: Rope = { ...rope, divisors: Float32Array.of(1, 2, 4, 8) };
  expect(inverseFrequencies(divided, 8)[3]).toBe(Math.fround(Math.fround(0.001) / 8));
});
