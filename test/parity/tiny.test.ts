// Tiny random-weight models against transformers and an exact float64 forward: every architecture, both
// formats, both activation modes. CALDRIX_GOLDEN=DIR adds a whole golden set beside the fixtures.

import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import { openModel } from "../../src/model/open.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { cutPlan, residualRegister, residualWrites } from "../support/cut-plan.ts";
import { fixture, fixtureModel } from "../support/fixtures.ts";
import {
  argmax,
  floats,
  type Golden,
  type HiddenSum,
  maxAbsDiff,
  readGolden,
  rmseOverStd,
} from "../support/golden.ts";
import { Runner } from "../support/runner.ts";

/** fixtures/README.md, "Tolerances". */
const FAST_FLOAT_RMSE = 0.005;
const F32_LOGIT_ERROR = 1e-3;
const HIDDEN_RELATIVE = 1e-4;
const FAST_RMSE_FACTOR = 2.5;
const FAST_ARGMAX_SLACK = 3;

interface Case {
  readonly name: string;
  readonly path: string;
  readonly golden: Golden;
}

const library = await loadLibrary();
const cases = [...fixtureCases(), ...extraCases(process.env.CALDRIX_GOLDEN)];

describe.each(cases)("$name", ({ path, golden }) => {
  test("float32 activations give the reference's logits and greedy tokens", async () => {
    const runner = new Runner(library, await openModel(path), { activations: "f32" });
    for (const prompt of golden.prompts) {
      const logits = runner.all([...prompt.ids, ...prompt.greedy_ids.slice(0, -1)]);
      const last = logits[prompt.ids.length - 1]!;
      expect(maxAbsDiff(last, floats(prompt.last_logits_b64))).toBeLessThan(F32_LOGIT_ERROR);
      expect(logits.slice(prompt.ids.length - 1).map(argmax)).toEqual([...prompt.greedy_ids]);
      for (const inner of prompt.interior_logits ?? []) {
        const error = maxAbsDiff(logits[inner.pos]!, floats(inner.logits_b64));
        expect(error).toBeLessThan(F32_LOGIT_ERROR);
      }
    }
    runner.close();
  });

  if (golden.hidden !== undefined)
    test("the residual after each layer matches", async () => {
      const model = await openModel(path);
      const hidden = golden.hidden!;
      const prompt = golden.prompts.find((p) => p.name === hidden.prompt)!;
      const writes = residualWrites(model.plan);
      const names = ["embed", ...layerNames(hidden.layers)];
      expect(names.length).toBe((writes.length + 1) / 2);
      for (const [layer, name] of names.entries()) {
        const plan = cutPlan(model.plan, writes[2 * layer]!);
        const runner = new Runner(library, model, { activations: "f32" }, plan);
        runner.all(prompt.ids);
        const sum = hidden.layers.find((h) => h.name === name)!;
        const register = residualRegister(plan);
        const width = model.registers[register]!.width;
        const rows = prompt.ids.map((_, at) => runner.registerRow(register, at, width));
        compareHidden(rows, sum);
        runner.close();
      }
    });

  if (golden.probe === undefined)
    test("float weights lose only the cache's rounding", async () => {
      const runner = new Runner(library, await openModel(path), { activations: "fast" });
      const got = golden.prompts.map((prompt) => runner.last(prompt.ids));
      runner.close();
      const wanted = golden.prompts.map((prompt) => floats(prompt.last_logits_b64));
      expect(rmseOverStd(got, wanted)).toBeLessThan(FAST_FLOAT_RMSE);
    });

  if (golden.probe !== undefined)
    test("the fast mode stays as close as int8 can", async () => {
      const runner = new Runner(library, await openModel(path), { activations: "fast" });
      const probe = golden.probe!.act_int8_block32!;
      const got: Float32Array[] = [];
      const wanted: Float32Array[] = [];
      let same = 0;
      let steps = 0;
      for (const prompt of golden.prompts) {
        const logits = runner.all([...prompt.ids, ...prompt.greedy_ids.slice(0, -1)]);
        got.push(logits[prompt.ids.length - 1]!);
        wanted.push(floats(prompt.last_logits_b64));
        for (const [k, id] of prompt.greedy_ids.entries()) {
          same += argmax(logits[prompt.ids.length - 1 + k]!) === id ? 1 : 0;
          steps++;
        }
      }
      runner.close();
      const [probeSame, probeSteps] = probe.argmax_same.split("/").map(Number);
      expect(steps).toBe(probeSteps!);
      expect(rmseOverStd(got, wanted)).toBeLessThan(FAST_RMSE_FACTOR * probe.rmse_over_logit_std);
      expect(same).toBeGreaterThanOrEqual(probeSame! - FAST_ARGMAX_SLACK);
    });
});

function fixtureCases(): Case[] {
  const models = readdirSync(fixture("models")).map((name) => ({
    name,
    path: fixtureModel(name),
    golden: readGolden<Golden>(fixture("models", name, "golden.json")),
  }));
  return [...models, ...ggufCases(fixture("gguf"))];
}

/** Every GGUF of a folder with a golden of its own, or one that names another's (`see`). */
function ggufCases(folder: string): Case[] {
  const files = readdirSync(folder).filter((file) => file.endsWith(".gguf"));
  return files.map((file) => {
    const own = readGolden<Golden & { see?: string }>(
      join(folder, file.replace(".gguf", ".golden.json")),
    );
    const golden = own.see === undefined ? own : readGolden<Golden>(join(folder, own.see));
    return { name: file, path: join(folder, file), golden };
  });
}

/** A golden set in its original layout: models/ and tinygguf/gguf/, architectures of this release. */
function extraCases(root: string | undefined): Case[] {
  if (root === undefined) return [];
  const known = (name: string): boolean =>
    /^(llama|qwen2|qwen3|gemma3)-/.test(name) && !/IQ4|Q3_K|Q2_K|MIX/.test(name);
  const models = readdirSync(join(root, "models"))
    .filter((name) => known(name) && existsSync(join(root, "models", name, "golden.json")))
    .map((name) => {
      const path = join(root, "models", name);
      return {
        name: `golden ${name}`,
        path,
        golden: readGolden<Golden>(join(path, "golden.json")),
      };
    });
  const ggufs = ggufCases(join(root, "tinygguf/gguf")).filter((c) => known(basename(c.path)));
  return [...models, ...ggufs.map((c) => ({ ...c, name: `golden ${c.name}` }))];
}

function layerNames(layers: readonly HiddenSum[]): string[] {
  return layers.map((h) => h.name).filter((name) => /^layers\.\d+$/.test(name));
}

function compareHidden(rows: readonly Float32Array[], sum: HiddenSum): void {
  let total = 0;
  let square = 0;
  let absmax = 0;
  let n = 0;
  for (const row of rows) {
    for (const v of row) {
      total += v;
      square += v * v;
      absmax = Math.max(absmax, Math.abs(v));
      n++;
    }
  }
  const mean = total / n;
  const std = Math.sqrt(square / n - mean * mean);
  const near = (got: number, wanted: number): void => {
    expect(Math.abs(got - wanted)).toBeLessThan(HIDDEN_RELATIVE * sum.absmax);
  };
  near(mean, sum.mean);
  near(std, sum.std);
  near(absmax, sum.absmax);
  for (const [i, v] of sum.first8_pos0.entries()) near(rows[0]![i]!, v);
  for (const [i, v] of sum.first8_last.entries()) near(rows.at(-1)![i]!, v);
}
