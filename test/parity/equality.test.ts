// A row's result never depends on its company: the same bits for every chunk length, batch, thread count
// and for a copied or trimmed row. Both activation modes, every kernel table this machine has.

import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { openModel } from "../../src/model/open.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { fixture, fixtureModel } from "../support/fixtures.ts";
import { Runner, type RunnerOptions } from "../support/runner.ts";

const library = await loadLibrary();
const paths = [
  fixtureModel("qwen2-tiny"),
  fixtureModel("gemma3-tiny-softcap"),
  fixture("gguf", "llama-256-Q4_K_M.gguf"),
  fixture("gguf", "qwen3-tiny-Q5_1.gguf"),
  fixture("gguf", "gemma3-256-Q5_K_M.gguf"),
  fixture("gguf", "gemma3-tiny-softcap-Q4_0.gguf"),
];
const cases = paths.flatMap((path) =>
  (["fast", "f32"] as const).map((activations) => ({
    name: `${path.slice(path.lastIndexOf("/") + 1)} ${activations}`,
    path,
    activations,
  })),
);

/** A prompt longer than two attention blocks and every sliding window, from a fixed rule. */
const PROMPT = Array.from({ length: 150 }, (_, i) => (i * 37 + ((i * i) % 11) * 5 + 3) % 256);
const OTHER = Array.from({ length: 90 }, (_, i) => (i * 91 + 17) % 256);

describe.each(cases)("$name", ({ path, activations }) => {
  const open = async (options: Partial<RunnerOptions> = {}): Promise<Runner> =>
    new Runner(library, await openModel(path), { activations, ...options });

  test("chunk lengths 1, 7, 64 and 150 give the same bits", async () => {
    const runner = await open({ stepTokens: 150 });
    const whole = runner.all(PROMPT, { chunk: 150 });
    for (const chunk of [1, 7, 64]) expect(runner.all(PROMPT, { chunk })).toEqual(whole);
    runner.close();
  });

  test("1, 2 and 5 threads give the same bits", async () => {
    const results = [];
    for (const threads of [1, 2, 5]) {
      const runner = await open({ threads });
      results.push(runner.all(PROMPT));
      runner.close();
    }
    expect(results[1]).toEqual(results[0]!);
    expect(results[2]).toEqual(results[0]!);
  });

  test("a row in a mixed batch gives the same bits as alone", async () => {
    const runner = await open({ maxRows: 3, stepTokens: 64 });
    const alone = [runner.all(PROMPT, { row: 0 }), runner.all(OTHER, { row: 1 })];
    for (const row of [0, 1, 2]) runner.engine.rowTrim(row, 0);
    expect(interleaved(runner, [PROMPT, OTHER])).toEqual(alone);
    runner.close();
  });

  test("a copied, trimmed and continued row gives the same bits as a fresh one", async () => {
    const runner = await open({ maxRows: 2 });
    const whole = runner.all(PROMPT, { row: 0 });
    runner.engine.rowCopy(0, 1, 70);
    const rest: Float32Array[] = [];
    const collect = (_: number, logits: Float32Array): void => {
      rest.push(logits);
    };
    runner.run(PROMPT.slice(70, 100), 70, 70, collect, { row: 1, chunk: 9 });
    runner.engine.rowTrim(1, 85);
    runner.run(PROMPT.slice(85), 85, 85, collect, { row: 1 });
    expect(rest.slice(0, 30)).toEqual(whole.slice(70, 100));
    expect(rest.slice(30)).toEqual(whole.slice(85));
    runner.close();
  });
});

test("every kernel table gives the same greedy tokens", () => {
  const script = join(import.meta.dir, "../support/greedy.ts");
  const path = fixture("gguf", "llama-256-Q4_K_M.gguf");
  const tokens = (isa: string): string => {
    const run = Bun.spawnSync([process.execPath, script, path], {
      env: { ...process.env, CALDRIX_ISA: isa },
    });
    return run.exitCode === 0 ? run.stdout.toString() : `failed: ${run.stderr.toString()}`;
  };
  const scalar = tokens("scalar");
  expect(scalar.split(" ").length).toBe(32);
  const names = process.arch === "x64" ? ["avx2", "avx512", "avx512vnni"] : ["neon"];
  for (const isa of names) {
    const got = tokens(isa);
    // A table that this machine cannot run is refused by name; then there is nothing to compare.
    if (!got.startsWith("failed:") || !got.includes(isa)) expect(got).toBe(scalar);
  }
});

/** Runs rows 0, 1, .. together, uneven numbers of tokens of each a step; logits per row and position. */
function interleaved(runner: Runner, prompts: readonly (readonly number[])[]): Float32Array[][] {
  const { engine } = runner;
  const done = prompts.map(() => 0);
  const logits: Float32Array[][] = prompts.map(() => []);
  for (let step = 0; done.some((d, row) => d < prompts[row]!.length); step++) {
    const rows: number[] = [];
    let n = 0;
    for (const [row, ids] of prompts.entries()) {
      const take = Math.min(1 + ((step * 5 + row * 3) % 9), ids.length - done[row]!);
      for (let i = 0; i < take; i++, n++) {
        engine.token[n] = ids[done[row]!]!;
        engine.pos[n] = done[row]!++;
        engine.row[n] = row;
        engine.want[n] = 2;
        rows.push(row);
      }
    }
    engine.step(n);
    for (const [k, row] of rows.entries()) logits[row]!.push(runner.logitsRow(k));
  }
  return logits;
}
