import { describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sizeToCome } from "../../src/cli/models.ts";
import { chooseModel, unknownModel } from "../../src/cli/resolve.ts";
import { readArguments } from "../../src/cli/run.ts";
import { UsageError } from "../../src/errors.ts";
import { CATALOG, DEFAULT_MODEL, findModel } from "../../src/model/catalog.ts";

describe("catalogue", () => {
  test("holds the default and no name twice", () => {
    const names = CATALOG.map((model) => model.name);
    expect(names).toContain(DEFAULT_MODEL);
    expect(new Set(names).size).toBe(names.length);
  });

  test("pins a sha256 for everything that comes from the package index", () => {
    for (const model of CATALOG) {
      for (const source of model.sources) {
        if (source.kind !== "pypi") continue;
        expect(source.sha256).toMatch(/^[0-9a-f]{64}$/);
        for (const part of source.parts) expect(part.requirement).toMatch(/^[\w-]+==[\d.]+$/);
      }
    }
  });

  test("the size is what lies in the cache, before a pull and after", () => {
    const sizes = Object.fromEntries(CATALOG.map((model) => [model.name, sizeToCome(model)]));
    expect(sizes).toMatchObject({
      "smollm2-135m-instruct": "98.4 MB",
      "gemma-3-270m": "253.1 MB",
      "smollm2-135m": "about 271 MB",
      "qwen3-0.6b": "about 1.51 GB",
      "decider-0.8b": "unknown",
    });
  });

  test("README.md and docs/models.md give the sizes of the catalogue", () => {
    const read = (name: string) => readFileSync(join(import.meta.dir, "../..", name), "utf8");
    const sizes = CATALOG.flatMap(({ sources: [first] }) =>
      first?.kind === "pypi" ? [`${Math.round(first.bytes / 1e6)} MB`] : [],
    );
    const named = (name: string) => [...(read(name).match(/[\d.]+ [MG]B/g) ?? [])];
    expect(named("docs/models.md")).toEqual(sizes);
    expect(named("README.md")).toEqual(sizes.slice(0, 1));
  });

  test("finds a model by name and by the id it is served as, in any case", () => {
    expect(findModel("qwen3-0.6b")?.served).toBe("Qwen/Qwen3-0.6B");
    expect(findModel("qwen/QWEN3-0.6B")?.name).toBe("qwen3-0.6b");
    expect(findModel("qwen3")).toBeNull();
  });
});

describe("choosing a model", () => {
  const dir = mkdtempSync(join(tmpdir(), "caldrix-choose-"));
  mkdirSync(join(dir, "My Model"));
  writeFileSync(join(dir, "tiny.Q4_0.gguf"), "");

  test("takes the default without a word", () => {
    expect(chooseModel(undefined)).toMatchObject({ model: { name: DEFAULT_MODEL } });
  });

  test("names a folder as it is, a file without .gguf", () => {
    expect(chooseModel(join(dir, "My Model"))).toMatchObject({ kind: "path", name: "My Model" });
    expect(chooseModel(join(dir, "tiny.Q4_0.gguf"))).toMatchObject({ name: "tiny.Q4_0" });
  });

  test("offers the nearest names for an unknown one", () => {
    expect(unknownModel("smolm2-135m").message).toContain("did you mean smollm2-135m");
    expect(unknownModel("./x.gguf").message).toBe(
      "no model at ./x.gguf: wanted a directory or a .gguf file",
    );
  });

  test("of run: one argument with white space that names nothing is a prompt", () => {
    const asked = readArguments(["What is the capital of France?"]);
    expect(asked.prompt).toBe("What is the capital of France?");
    expect(asked.choice).toMatchObject({ model: { name: DEFAULT_MODEL } });
  });

  test("of run: a prompt longer than a file's name may be, or with a file as a folder", () => {
    const long = "Why is the sky blue? ".repeat(500);
    expect(readArguments([long])).toMatchObject({ prompt: long });
    const [first, second] = [join(dir, "b.gguf"), join(dir, "b.gguf/ or not")];
    writeFileSync(first, "");
    expect(readArguments([second])).toMatchObject({ prompt: second });
  });

  test("of run: a folder with white space in its name is a model", () => {
    expect(readArguments([join(dir, "My Model")])).toMatchObject({ prompt: null });
  });

  test("of run: one word that names nothing is an unknown model", () => {
    expect(() => readArguments(["smolm2"])).toThrow("unknown model smolm2");
    expect(() => readArguments(["no such", "prompt"])).toThrow("unknown model no such");
  });

  test("of run: one word that names nothing comes with the way to ask it", () => {
    const way = "name the model first: caldrix run smollm2-135m-instruct";
    expect(() => readArguments(["hello"])).toThrow(`${way} hello`);
    expect(() => readArguments(["Who's?"])).toThrow(`${way} 'Who'\\''s?'`);
    expect(() => readArguments(["./hello"])).toThrow(/^no model at .\/hello: [^;]*$/);
    expect(() => readArguments(["nomodel", "hi"])).toThrow(/^unknown model nomodel; [^;]*$/);
    expect(() => readArguments(["smolm2-135m"])).toThrow(/did you mean [^?]*\?$/);
  });

  test.each([[[""]], [["  \n"]], [["gemma-3-270m", ""]]])("of run: %p is empty", (args) => {
    expect(() => readArguments(args)).toThrow(new UsageError("the prompt is empty"));
  });

  test("an empty name is called that", () => {
    expect(unknownModel("").message).toBe("the name of the model is empty");
  });

  test("of run: a model and a prompt", () => {
    expect(readArguments(["gemma-3-270m", "hi"])).toMatchObject({ prompt: "hi" });
    rmSync(dir, { recursive: true });
  });
});
