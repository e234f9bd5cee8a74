// The files of test/fixtures/malformed that must load although they are unusual: they also compute what
// the reference computes.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { openModel } from "../../src/model/open.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { fixture } from "../support/fixtures.ts";
import { argmax } from "../support/golden.ts";
import { Runner } from "../support/runner.ts";

interface Manifest {
  readonly cases: readonly {
    readonly path: string;
    readonly must: "load" | "refuse" | "either";
    readonly prompt_ids?: readonly number[];
    readonly greedy_ids?: readonly number[];
  }[];
}

const library = await loadLibrary();
const manifest = JSON.parse(
  readFileSync(fixture("malformed", "manifest.json"), "utf8"),
) as Manifest;
const loadable = manifest.cases.filter((c) => c.must === "load" && c.greedy_ids !== undefined);

test("there are controls", () => {
  expect(loadable.length).toBeGreaterThan(3);
});

test.each(loadable)("$path gives the reference's greedy tokens", async (one) => {
  const runner = new Runner(library, await openModel(fixture("malformed", one.path)), {
    activations: "f32",
    context: 64,
  });
  const prompt = one.prompt_ids!;
  const wanted = one.greedy_ids!;
  const logits = runner.all([...prompt, ...wanted.slice(0, -1)]);
  runner.close();
  expect(logits.slice(prompt.length - 1).map(argmax)).toEqual([...wanted]);
});
