import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { planDoc } from "../../scripts/plan-doc.ts";
import { OP } from "../../src/model/plan-format.ts";

const root = join(import.meta.dir, "../..");
const read = (path: string): string => readFileSync(join(root, path), "utf8");

test("docs/plan.md is what the comments of exec.c say, an operation a section", () => {
  const text = planDoc(read("csrc/exec.c"));
  expect(text.match(/^## /gm)).toHaveLength(Object.keys(OP).length);
  expect(read("docs/plan.md")).toBe(text);
});
