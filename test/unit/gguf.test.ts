// The GGUF header parser on files written here; the malformed set is in open.test.ts.

import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ModelError } from "../../src/errors.ts";
import { type GgufArray, type GgufFile, readGguf } from "../../src/model/gguf.ts";
import { metaBool, metaFloat, metaInt, metaString } from "../../src/model/metadata.ts";
import { fixture } from "../support/fixtures.ts";
import * as write from "../support/gguf-writer.ts";
import { refused } from "../support/refused.ts";

const dir = mkdtempSync(join(tmpdir(), "caldrix-gguf-"));
afterAll(() => rmSync(dir, { recursive: true }));
let files = 0;

function save(bytes: Uint8Array): string {
  const path = join(dir, `${files++}.gguf`);
  writeFileSync(path, bytes);
  return path;
}

function read(file: write.RawGguf): GgufFile {
  return readGguf(save(write.ggufBytes(file)));
}

function array(file: GgufFile, key: string): GgufArray {
  return file.metadata.get(key)!.value as GgufArray;
}

const scalar = (type: number, bytes: ArrayBuffer) => ({ type, bytes: new Uint8Array(bytes) });

describe("metadata", () => {
  test("every scalar type is read with its value", () => {
    const file = read({
      keys: [
        ["u8", scalar(0, Uint8Array.of(200).buffer)],
        ["i8", scalar(1, Int8Array.of(-5).buffer)],
        ["u16", scalar(2, Uint16Array.of(60000).buffer)],
        ["i16", scalar(3, Int16Array.of(-300).buffer)],
        ["u32", write.uint32(4e9)],
        ["i32", scalar(5, Int32Array.of(-7e8).buffer)],
        ["f32", scalar(6, Float32Array.of(0.5).buffer)],
        ["bool", scalar(7, Uint8Array.of(1).buffer)],
        ["text", write.string("Grüße 🙂")],
        ["u64", { type: 10, bytes: write.u64(2n ** 53n - 1n) }],
        ["big", { type: 10, bytes: write.u64(2n ** 63n) }],
        ["i64", { type: 11, bytes: write.u64(-9) }],
        ["f64", scalar(12, Float64Array.of(1e300).buffer)],
      ],
    });
    const values = Object.fromEntries([...file.metadata].map(([k, v]) => [k, v.value]));
    expect(values).toEqual({
      u8: 200,
      i8: -5,
      u16: 60000,
      i16: -300,
      u32: 4e9,
      i32: -7e8,
      f32: 0.5,
      bool: true,
      text: "Grüße 🙂",
      u64: 2 ** 53 - 1,
      big: 2n ** 63n,
      i64: -9,
      f64: 1e300,
    });
  });

  test("getters refuse other types and ranges, naming the key", () => {
    const file = read({
      keys: [
        ["n", write.uint32(12)],
        ["s", write.string("x")],
        ["f", scalar(6, Float32Array.of(Number.NaN).buffer)],
      ],
    });
    expect(metaInt(file, "n", 0, 12)).toBe(12);
    expect(metaInt(file, "absent", 0, 12)).toBe(undefined);
    expect(refused(() => metaInt(file, "n", 0, 11))).toContain("n: wanted an integer from 0 to 11");
    expect(refused(() => metaInt(file, "s", 0, 1))).toContain("s: wanted an integer, got string x");
    expect(refused(() => metaFloat(file, "f", 0, 1))).toContain("got float32 NaN");
    expect(refused(() => metaBool(file, "n"))).toContain("n: wanted a bool");
    expect(refused(() => metaString(file, "n"))).toContain("n: wanted a string");
  });

  test("arrays give strings or numbers and refuse the other", () => {
    const words = ["", "a", "Ġthe", "日本", "🙂", "\uFFFD", "e\u0301"];
    const numbers = scalar(
      9,
      write.join(write.u32(5), write.u64(3), write.u32(1, 2, 2 ** 32 - 3)).slice().buffer,
    );
    const file = read({
      keys: [
        ["words", write.strings(words)],
        ["numbers", numbers],
      ],
    });
    expect(array(file, "words").strings()).toEqual(words);
    expect([...array(file, "numbers").numbers()]).toEqual([1, 2, -3]);
    expect(refused(() => array(file, "words").numbers())).toContain(
      "words: wanted an array of numbers",
    );
    expect(refused(() => array(file, "numbers").strings())).toContain("got elements of type int32");
  });

  test("strings that are only together valid UTF-8 are refused", () => {
    const [a, b] = [Uint8Array.of(0x61, 0xc3), Uint8Array.of(0xa9)];
    for (const pair of [
      [a, b],
      [b, a],
      [a, "x"],
      ["x", b],
    ]) {
      const file = read({ keys: [["words", write.strings(pair)]] });
      expect(refused(() => array(file, "words").strings())).toContain("not valid UTF-8");
    }
  });

  test("a header longer than the first read is read whole", () => {
    const words = Array.from({ length: 100_000 }, (_, i) => `word number ${i}`);
    const file = read({
      keys: [
        ["words", write.strings(words)],
        ["last", write.uint32(1)],
      ],
    });
    expect(array(file, "words").strings().join("\n") === words.join("\n")).toBe(true);
    expect(file.metadata.get("last")!.value).toBe(1);
  });

  test("arrays of arrays are skipped", () => {
    const inner = write.join(write.u32(4), write.u64(2), write.u32(1, 2));
    const nested = { type: 9, bytes: write.join(write.u32(9), write.u64(2), inner, inner) };
    const file = read({
      keys: [
        ["nested", nested],
        ["last", write.uint32(7)],
      ],
    });
    expect(array(file, "nested").length).toBe(2);
    expect(file.metadata.get("last")!.value).toBe(7);
  });
});

describe("tensors", () => {
  const vector = (name: string, n: number, offset: number): write.RawTensor => ({
    name,
    dims: [n],
    type: 0,
    offset,
  });

  test("shapes are turned to rows first and offsets made absolute", () => {
    const file = read({
      keys: [["general.alignment", write.uint32(64)]],
      alignment: 64,
      tensors: [{ name: "w", dims: [32, 3], type: 8, offset: 64 }, vector("b", 5, 0)],
      data: new Uint8Array(64 + 3 * 34),
    });
    const w = file.tensors.get("w")!;
    expect(w.shape).toEqual([3, 32]);
    expect(w.bytes).toBe(3 * 34);
    expect(w.dtype).toBe(8);
    expect(w.offset % 64).toBe(0);
    expect(w.offset + w.bytes).toBe(file.files[0]!.bytes);
  });

  test("a known type without kernels is listed as not usable", () => {
    const file = read({
      keys: [],
      tensors: [{ name: "w", dims: [32], type: 20, offset: 0 }],
      data: new Uint8Array(18),
    });
    expect(file.tensors.get("w")!.dtype).toBe(null);
    expect(file.tensors.get("w")!.dtypeName).toBe("IQ4_NL");
  });

  test("one byte of overlap or one missing byte is refused", () => {
    const overlapping = { keys: [], tensors: [vector("a", 9, 0), vector("b", 1, 32)] };
    expect(refused(() => read({ ...overlapping, data: new Uint8Array(64) }))).toContain("overlap");
    const one = { keys: [], tensors: [vector("a", 8, 0)] };
    expect(read({ ...one, data: new Uint8Array(32) }).tensors.size).toBe(1);
    expect(refused(() => read({ ...one, data: new Uint8Array(31) }))).toContain("past the end");
  });

  test("an alignment must be a power of two", () => {
    for (const n of [0, 3, 48, 131_072]) {
      const keys = [["general.alignment", write.uint32(n)]] as const;
      expect(refused(() => read({ keys }))).toContain("general.alignment");
    }
  });
});

describe("damage", () => {
  const control = readFileSync(fixture("malformed", "ok-llama.gguf"));
  const headerBytes = control.indexOf("output_norm.weight") + 50;

  test("a file cut anywhere in its header is refused", () => {
    for (let n = 0; n < headerBytes; n += 23) {
      refused(() => readGguf(save(control.subarray(0, n))));
    }
  });

  test("any flipped bit in the header gives a header or a ModelError", () => {
    let seed = 1;
    let kept = 0;
    for (let i = 0; i < 800; i++) {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      const bytes = Buffer.from(control);
      bytes[(seed >>> 8) % headerBytes]! ^= 1 << (seed >>> 29);
      const path = join(dir, "flipped.gguf");
      writeFileSync(path, bytes);
      try {
        const file = readGguf(path);
        for (const { value } of file.metadata.values()) {
          if (typeof value === "object" && value.elementType === "string") value.strings();
        }
        kept++;
      } catch (e) {
        expect(e).toBeInstanceOf(ModelError);
      }
    }
    expect(kept).toBeGreaterThan(100); // most flips are inside texts
  });

  test("what is no regular file is refused without being opened", () => {
    expect(refused(() => readGguf("/dev/zero"))).toContain("not a regular file");
    expect(refused(() => readGguf(join(dir, "absent.gguf")))).toContain("no such file");
  });
});
