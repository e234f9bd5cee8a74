// Every weight type, packed into panels and read back through EMBED, gives exactly the values of the
// reference decoder: weights of real files, and blocks of random bits with awkward scales.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { GGML_TYPES } from "../../src/model/dtypes.ts";
import { createPlan } from "../../src/model/plan.ts";
import { NativeEngine, NativeModel } from "../../src/native/engine.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { fixture } from "../support/fixtures.ts";
import { floats } from "../support/golden.ts";

interface Row {
  readonly kind: string;
  readonly n: number;
  readonly raw: string;
  readonly f32: string;
}

interface Types {
  readonly types: Record<string, { readonly ggml_type: number; readonly rows: readonly Row[] }>;
}

const library = await loadLibrary();
const { types } = JSON.parse(readFileSync(fixture("gguf", "dequant.json"), "utf8")) as Types;
const cases = Object.entries(types)
  .filter(([, type]) => GGML_TYPES.get(type.ggml_type)?.usable)
  .flatMap(([name, type]) => type.rows.map((row) => ({ name, type: type.ggml_type, ...row })));

let folder = "";
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "caldrix-dequant-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

test("every type this release computes with has rows to compare, but F32", () => {
  const usable = [...GGML_TYPES.values()].filter((t) => t.usable && t.name !== "F32");
  expect(new Set(cases.map((c) => c.name))).toEqual(new Set(usable.map((t) => t.name)));
});

describe.each(["fast", "f32"] as const)("activations %s", (activations) => {
  test.each(cases)("$name, $kind: exact values", ({ type, n, raw, f32 }) => {
    const bytes = Buffer.from(raw, "base64");
    const path = join(folder, "row.bin");
    writeFileSync(path, bytes);
    const plan = createPlan([{ path, bytes: bytes.length }]);
    const tensor = {
      name: "row",
      file: 0,
      dtype: type,
      dtypeName: "",
      shape: [1, n],
      offset: 0,
      bytes: bytes.length,
    };
    const weight = plan.matrix({ tensor });
    const x = plan.register("x", n);
    const out = plan.register("out", n, "out");
    const logits = plan.register("logits", 1, "out");
    plan.embed(x, weight);
    plan.select(out, x);
    plan.matmul(logits, out, weight);
    const { blob } = plan.finish({ vocab: 1, context: 8, logits });
    const model = NativeModel.open(library, blob, { backend: "cpu", activations, threads: 1 });
    const limits = { maxRows: 1, context: 8, stepTokens: 1, maxOut: 1, threads: 1 };
    const engine = new NativeEngine(model, limits);
    engine.token[0] = 0;
    engine.pos[0] = 0;
    engine.row[0] = 0;
    engine.want[0] = 2;
    engine.step(1);
    const got = engine.read(x, 0, n);
    engine.close();
    model.close();
    const wanted = floats(f32);
    const wrong = [...wanted.keys()].filter((i) => !Object.is(got[i], wanted[i]));
    expect(wrong.map((i) => [i, got[i], wanted[i]])).toEqual([]);
  });
});
