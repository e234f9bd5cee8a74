// The boundary itself: layouts against the built library, refusals that carry the library's code and
// words, the step block, interruption, and where the library is loaded from.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { GREEDY, packSampling } from "../../src/engine/sampling.ts";
import { NativeError } from "../../src/errors.ts";
import { interrupt, NativeEngine, NativeModel, probe } from "../../src/native/engine.ts";
import { ABI_VERSION, CODE, checkAbi, STRUCT_SIZES, WANT } from "../../src/native/layout.ts";
import { type Library, loadLibrary, openCopy, openLibrary } from "../../src/native/library.ts";
import { randomModel } from "../support/random-model.ts";

const OPEN = { backend: "cpu", activations: "f32", threads: 1 } as const;
const LIMITS = { maxRows: 2, context: 64, stepTokens: 8, maxOut: 2, threads: 1 } as const;
const VOCAB = 96;

let folder: string;
let library: Library;
let plan: ArrayBuffer;
let model: NativeModel;
let engine: NativeEngine;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "caldrix-abi-"));
  library = await loadLibrary();
  ({ plan } = randomModel(folder, {
    nLayers: 2,
    hiddenSize: 64,
    nHeads: 2,
    nKvHeads: 1,
    headDim: 32,
    intermediateSize: 96,
    vocabSize: VOCAB,
    contextLength: 128,
  }));
  model = NativeModel.open(library, plan, OPEN);
  engine = new NativeEngine(model, LIMITS);
});

afterAll(() => {
  engine.close();
  model.close();
  rmSync(folder, { recursive: true });
});

/** The NativeError a call throws. */
function refusal(call: () => unknown): NativeError {
  try {
    call();
  } catch (error) {
    if (error instanceof NativeError) return error;
    throw error;
  }
  throw new Error("nothing was refused");
}

/** Fills the block with tokens of one row, the last one wanted. */
function fill(row: number, from: number, ids: readonly number[]): number {
  ids.forEach((id, i) => {
    engine.token[i] = id;
    engine.pos[i] = from + i;
    engine.row[i] = row;
    engine.want[i] = i === ids.length - 1 ? WANT.sample : WANT.nothing;
  });
  packSampling(engine.sampling, row, GREEDY, 0);
  return ids.length;
}

/** Fills the block with one token of a row that need not exist. */
function elsewhere(row: number): number {
  const n = fill(0, 0, [1]);
  engine.row[0] = row;
  return n;
}

test("accepts the sizes written here and names the struct whose size differs", () => {
  const sizes = STRUCT_SIZES.map(([, bytes]) => bytes);
  checkAbi(ABI_VERSION, sizes);
  expect(() => checkAbi(ABI_VERSION, sizes.with(3, 64))).toThrow(
    "cx_plan_part has 64 bytes in the library and 56 here",
  );
  expect(() => checkAbi(ABI_VERSION + 1, sizes)).toThrow("API version 2, this program 1");
});

test("probes the machine", () => {
  const { cores, gpus, isa } = probe(library);
  expect(cores).toBeGreaterThan(0);
  expect(gpus).toBe(0);
  expect(isa).toMatch(/^[a-z0-9_]+$/);
});

test("refuses a plan that does not verify, with the code and the library's words", () => {
  const broken = plan.slice(0);
  new DataView(broken).setUint32(0, 0, true);
  const error = refusal(() => NativeModel.open(library, broken, OPEN));
  expect(error.code).toBe(CODE.plan);
  expect(error.message).toContain("magic");
});

test("refuses a weight file that is gone, naming it", () => {
  const away = mkdtempSync(join(tmpdir(), "caldrix-gone-"));
  const shape = { nLayers: 1, hiddenSize: 32, nHeads: 1, nKvHeads: 1, headDim: 32 };
  const gone = randomModel(away, {
    ...shape,
    intermediateSize: 32,
    vocabSize: 32,
    contextLength: 8,
  });
  rmSync(away, { recursive: true });
  const error = refusal(() => NativeModel.open(library, gone.plan, OPEN));
  expect(error.code).toBe(CODE.file);
  expect(error.message).toContain(join(away, "random.weights"));
});

test.each([[{ maxRows: 0 }], [{ context: 0 }], [{ stepTokens: 0 }]])(
  "refuses an engine with %p",
  (limit) => {
    const error = refusal(() => new NativeEngine(model, { ...LIMITS, ...limit }));
    expect(error.code).toBe(CODE.arg);
    expect(error.message.length).toBeGreaterThan(0);
  },
);

test("reads the facts of the plan and the sizes of the step block", () => {
  expect(model.vocab).toBe(VOCAB);
  expect(model.context).toBe(128);
  expect(engine.maxTokens).toBe(LIMITS.stepTokens);
  expect(engine.maxOut).toBe(LIMITS.maxOut);
  expect(engine.vocab).toBe(VOCAB);
  expect(engine.sampling.byteLength).toBe(2 * 40);
});

test("steps, and picks the most likely of the logits it shows", () => {
  engine.rowTrim(0, 0);
  expect(engine.step(fill(0, 0, [5, 6, 7]))).toBe(1);
  const all = Array.from({ length: VOCAB }, (_, id) => id);
  const logits = engine.logits(0, all);
  expect(logits).toEqual(engine.read(model.logitsRegister, 0, VOCAB));
  expect(engine.out[0]).toBe(logits.indexOf(Math.max(...logits)));
  expect(new Set(logits).size).toBeGreaterThan(VOCAB / 2);
});

test("counts steps, tokens and outputs", () => {
  engine.rowTrim(0, 0);
  const before = engine.counters();
  engine.step(fill(0, 0, [1, 2, 3]));
  const after = engine.counters();
  expect(after.steps - before.steps).toBe(1);
  expect(after.tokens - before.tokens).toBe(3);
  expect(after.outputs - before.outputs).toBe(1);
  expect(after.stepNs).toBeGreaterThan(before.stepNs);
  expect(after.weightBytes).toBeGreaterThan(0);
  expect(after.kvRowBytes).toBeGreaterThan(0);
});

test("a copied row goes on as the original does, a trimmed one as if never longer", () => {
  engine.rowTrim(0, 0);
  engine.step(fill(0, 0, [1, 2, 3, 4, 5]));
  engine.step(fill(0, 5, [6]));
  const expected = engine.read(model.logitsRegister, 0, VOCAB);
  engine.rowCopy(0, 1, 5);
  engine.step(fill(1, 5, [6]));
  expect(engine.read(model.logitsRegister, 0, VOCAB)).toEqual(expected);
  engine.rowTrim(0, 5);
  engine.step(fill(0, 5, [6]));
  expect(engine.read(model.logitsRegister, 0, VOCAB)).toEqual(expected);
});

test("refuses what does not fit the block or the rows", () => {
  engine.rowTrim(0, 0);
  const cases: [string, () => unknown][] = [
    ["no tokens", () => engine.step(0)],
    ["too many tokens", () => engine.step(LIMITS.stepTokens + 1)],
    ["a token outside the vocabulary", () => engine.step(fill(0, 0, [VOCAB]))],
    ["a position that is not the row's length", () => engine.step(fill(0, 3, [1]))],
    ["a row that is not there", () => engine.step(elsewhere(LIMITS.maxRows))],
    ["a trim to more than there is", () => engine.rowTrim(0, 1)],
    ["a trim below 0", () => engine.rowTrim(0, -1)],
    ["a copy of more than there is", () => engine.rowCopy(0, 1, 1)],
    ["a read behind the register", () => engine.read(model.logitsRegister, 10 * VOCAB, 1)],
    ["a register that is not there", () => engine.read(999, 0, 1)],
  ];
  for (const [what, call] of cases) {
    const error = refusal(call);
    expect([CODE.arg, CODE.state] as number[], what).toContain(error.code);
    expect(error.message.length, what).toBeGreaterThan(0);
  }
  // After all that the row is as it was.
  expect(engine.step(fill(0, 0, [1]))).toBe(1);
});

test("an interrupted step leaves the row as it was", () => {
  engine.rowTrim(0, 0);
  engine.step(fill(0, 0, [1, 2]));
  interrupt(library, engine.handle);
  expect(refusal(() => engine.step(fill(0, 2, [3]))).code).toBe(CODE.interrupted);
  expect(engine.step(fill(0, 2, [3]))).toBe(1);
});

test("loads a copy from the cache, repairs a damaged one and says what to do when it cannot", () => {
  const bytes = readFileSync(library.path);
  const copy = openCopy(bytes, folder, new Error("first"));
  expect(readFileSync(copy.path).equals(bytes)).toBe(true);
  writeFileSync(`${copy.path}.old`, "");
  rmSync(copy.path);
  writeFileSync(copy.path, "damaged");
  expect(readFileSync(openCopy(bytes, folder, new Error("first")).path).equals(bytes)).toBe(true);
  expect(readdirSync(join(copy.path, "..")).sort()).toEqual(["libcaldrix.so", "libcaldrix.so.old"]);

  const error = refusal(() => openCopy(Buffer.from("no library"), folder, new Error("first")));
  expect(error.message).toContain("first");
  expect(error.message).toContain("Set TMPDIR or CALDRIX_CACHE");
});

test("refuses a file that is no library, naming it", () => {
  const path = join(folder, "text.so");
  writeFileSync(path, "text");
  expect(refusal(() => openLibrary(path)).message).toContain(path);
});
