// The plan blob: the same numbers as csrc/caldrix.h, and what is built is what is decoded and printed.

import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createPlan } from "../../src/model/plan.ts";
import * as format from "../../src/model/plan-format.ts";
import type { TensorInfo } from "../../src/model/types.ts";

const header = readFileSync(join(import.meta.dir, "../../csrc/caldrix.h"), "utf8");

/** Number of an enumerator or #define of the header. */
function number(name: string): number {
  const found = new RegExp(`\\b${name}\\b\\s*=?\\s*(0x[0-9a-f]+|\\d+)`).exec(header);
  if (found === null) throw new Error(`${name} is not in caldrix.h`);
  return Number(found[1]);
}

describe("caldrix.h", () => {
  test("record sizes agree with its comments", () => {
    for (const [record, bytes] of Object.entries(format.PLAN_SIZES)) {
      const struct = new RegExp(`typedef struct \\{ /\\* (\\d+) bytes[^}]*\\} cx_plan_${record};`);
      expect([record, Number(struct.exec(header)?.[1])]).toEqual([record, bytes]);
    }
  });

  test("numbers agree with its enumerators and limits", () => {
    const kinds = {
      CX_OP_EMBED: format.OP.embed,
      CX_OP_RMS_NORM: format.OP.rmsNorm,
      CX_OP_MATMUL: format.OP.matmul,
      CX_OP_ROPE_TABLE: format.OP.ropeTable,
      CX_OP_ROPE: format.OP.rope,
      CX_OP_ATTEND: format.OP.attend,
      CX_OP_GATE: format.OP.gate,
      CX_OP_ADD: format.OP.add,
      CX_OP_SELECT: format.OP.select,
      CX_OP_SOFTCAP: format.OP.softcap,
      CX_ACT_SILU: format.ACT.silu,
      CX_ACT_GELU_TANH: format.ACT.geluTanh,
      CX_FLAG_ADD: format.FLAG_ADD,
      CX_USE_VECTOR: format.USE_VECTOR,
      CX_USE_MATRIX: format.USE_MATRIX,
      CX_ROWS_STEP: format.ROWS_STEP,
      CX_ROWS_OUT: format.ROWS_OUT,
      CX_TRANSFORM_NONE: format.TRANSFORM_NONE,
      CX_TRANSFORM_UNPERMUTE_ROPE: format.TRANSFORM_UNPERMUTE_ROPE,
      CX_FILE_CONSTS: format.FILE_CONSTS,
      CX_PLAN_MAGIC: format.PLAN_MAGIC,
      CX_PLAN_VERSION: format.PLAN_VERSION,
      CX_MAX_LAYERS: format.MAX_LAYERS,
      CX_MAX_WIDTH: format.MAX_WIDTH,
      CX_MAX_VOCAB: format.MAX_VOCAB,
      CX_MAX_CONTEXT: format.MAX_CONTEXT,
    };
    for (const [name, value] of Object.entries(kinds)) {
      expect([name, value]).toEqual([name, number(name)]);
    }
  });
});

const tensor = (name: string, shape: number[], dtype = 8): TensorInfo => ({
  name,
  file: 1,
  dtype,
  dtypeName: "Q8_0",
  shape,
  offset: 2 ** 33,
  bytes: (shape.reduce((a, b) => a * b, 1) / 32) * 34,
});

function small() {
  const p = createPlan([
    { path: "/models/ü/first.gguf", bytes: 100 },
    { path: "/models/second.gguf", bytes: 2 ** 40 },
  ]);
  const x = p.register("x", 32);
  const qkv = p.register("qkv", 96);
  const table = p.register("rope", 32);
  const logits = p.register("logits", 5, "out");
  const q = p.matrix(
    { tensor: tensor("q", [64, 32]), ropeHeads: 2 },
    { tensor: tensor("v", [32, 32]) },
  );
  const bias = p.vector(tensor("b1", [64], 0), tensor("b2", [32], 0));
  const frequencies = p.constants("inv_freq", Float32Array.of(1, 0.5, 0.25));
  p.embed(x, q, 2.5);
  p.ropeTable(table, frequencies);
  p.matmul(qkv, x, q, { bias, add: true });
  p.rmsNorm(qkv, qkv, bias, { eps: 1e-6, offset: 1, groups: { width: 16, at: 32, count: 2 } });
  const layer = p.layer({ nHeads: 1, nKvHeads: 1, headDim: 32 });
  p.attend(x, qkv, layer, 0.125, 16, 30);
  p.op({ kind: format.OP.add, dst: x, a: x, b: x });
  return p.finish({ vocab: 5, context: 64, logits });
}

describe("builder", () => {
  test("what is built is what is decoded", () => {
    const { blob, registers } = small();
    expect(blob.byteLength % 8).toBe(0);
    const plan = format.decodePlan(blob);
    expect(registers.map((r) => r.name)).toEqual(["x", "qkv", "rope", "logits"]);
    expect(plan).toMatchObject({ vocab: 5, context: 64, logits: 3 });
    expect(plan.files.map((f) => f.path)).toEqual(["/models/ü/first.gguf", "/models/second.gguf"]);
    expect(plan.files[1]!.bytes).toBe(2 ** 40);
    expect(plan.registers.map((r) => [r.name, r.width, r.rows])).toEqual([
      ["x", 32, 0],
      ["qkv", 96, 0],
      ["rope", 32, 0],
      ["logits", 5, 1],
    ]);
    expect(plan.weights).toEqual([
      { use: 1, firstPart: 0, nParts: 2, rows: 96, cols: 32 },
      { use: 0, firstPart: 2, nParts: 2, rows: 1, cols: 96 },
      { use: 0, firstPart: 4, nParts: 1, rows: 1, cols: 3 },
    ]);
    expect(plan.parts[0]).toEqual({
      name: "q",
      file: 1,
      dtype: 8,
      offset: 2 ** 33,
      bytes: 64 * 34,
      rows: 64,
      cols: 32,
      transform: 1,
      transformArg: 2,
    });
    expect(plan.parts[4]).toMatchObject({
      file: format.FILE_CONSTS,
      offset: 0,
      bytes: 12,
      cols: 3,
    });
    expect([...plan.consts]).toEqual([1, 0.5, 0.25, 0]);
    expect(plan.layers).toEqual([{ nHeads: 1, nKvHeads: 1, headDim: 32 }]);
    expect(plan.ops.map((o) => o.kind)).toEqual([1, 4, 3, 2, 6, 8]);
    expect(plan.ops[2]).toMatchObject({ flags: 1, dst: 1, a: 0, b: -1, weight: 0, weight2: 1 });
    expect(plan.ops[3]).toMatchObject({
      flags: 0,
      i: [16, 32, 2, 0],
      f: [Math.fround(1e-6), 1, 0, 0],
    });
    expect(plan.ops[4]).toMatchObject({ i: [0, 16, 0, 0], f: [0.125, 30, 0, 0] });
  });

  test("printPlan shows every operation with its shapes", () => {
    const lines = format.printPlan(small().blob).split("\n");
    expect(lines.length).toBe(1 + 2 + 4 + 6 + 1);
    expect(lines).toContain(
      "   2  matmul    qkv[step, 96] += x[step, 32] cols 0.. -> 0.. . {q Q8_0 unpermuted | v Q8_0}[96, 32] + {b1 F32 | b2 F32}[96]",
    );
    expect(lines).toContain(
      "   4  attend    x[step, 32] = qkv[step, 96], layer 0, 1:1 heads of 32, scale 0.125, window 16, softcap 30",
    );
  });

  test("a blob of another kind is not decoded", () => {
    expect(() => format.decodePlan(new ArrayBuffer(72))).toThrow("not a plan");
  });
});
