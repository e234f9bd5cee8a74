// The safetensors header parser on files written here; the malformed set is in open.test.ts.

import { describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ModelError } from "../../src/errors.ts";
import { duplicateKey } from "../../src/model/json-file.ts";
import { readSafetensors } from "../../src/model/safetensors.ts";
import { fixture } from "../support/fixtures.ts";
import { refused } from "../support/refused.ts";

/** A file of a header and `dataBytes` zeros. */
function file(header: string, dataBytes: number): Buffer {
  const text = Buffer.from(header);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, Buffer.alloc(dataBytes)]);
}

function folder<T>(files: Record<string, Buffer | string>, run: (dir: string) => T): T {
  const dir = mkdtempSync(join(tmpdir(), "caldrix-st-"));
  try {
    for (const [name, content] of Object.entries(files)) writeFileSync(join(dir, name), content);
    return run(dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function single(header: unknown, dataBytes: number) {
  const text = typeof header === "string" ? header : JSON.stringify(header);
  return folder({ "model.safetensors": file(text, dataBytes) }, readSafetensors);
}

const entry = (dtype: string, shape: number[], begin: number, end: number) => ({
  dtype,
  shape,
  data_offsets: [begin, end],
});

describe("one file", () => {
  test("types, shapes and absolute offsets are read, metadata skipped", () => {
    const header = JSON.stringify({
      __metadata__: { format: "pt" },
      b: entry("F32", [2], 12, 20),
      a: entry("BF16", [2, 3], 0, 12),
      empty: entry("F16", [0, 4], 12, 12),
    });
    const table = single(header, 20);
    const [a, b] = [table.tensors.get("a")!, table.tensors.get("b")!];
    expect(a).toMatchObject({ dtype: 30, shape: [2, 3], bytes: 12, offset: 8 + header.length });
    expect(b).toMatchObject({ dtype: 0, shape: [2], bytes: 8, offset: 20 + header.length });
    expect(table.tensors.get("empty")!.bytes).toBe(0);
    expect(table.files[0]!.bytes).toBe(8 + header.length + 20);
  });

  test("known types without kernels are listed as not usable", () => {
    const table = single({ a: entry("F8_E4M3", [3], 0, 3), b: entry("F4", [2], 3, 4) }, 4);
    expect(table.tensors.get("a")!.dtype).toBe(null);
    expect(table.tensors.get("b")!.bytes).toBe(1);
  });

  test("data that no tensor covers is refused, at the end as well", () => {
    expect(refused(() => single({ a: entry("F32", [1], 0, 4) }, 5))).toContain("hole");
    expect(refused(() => single({ a: entry("F32", [1], 4, 8) }, 8))).toContain("hole");
  });

  test("a key given twice inside an entry is refused", () => {
    const header = '{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}';
    expect(refused(() => single(header, 4))).toContain("shape occurs twice");
  });

  test("an offset that is no exact integer is refused", () => {
    for (const offset of ["1.5", "9007199254740993", "-1", '"4"', "null", "1e400"]) {
      const header = `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,${offset}]}}`;
      expect(refused(() => single(header, 4))).toContain("data_offsets");
    }
  });

  test("nesting as deep as the header is long is refused, not a crash", () => {
    expect(refused(() => single("[".repeat(1_000_000), 0))).toContain("header");
  });
});

test("duplicateKey sees escapes, nesting and equal keys of different objects", () => {
  expect(duplicateKey('{"a":{"a":1},"b":[{"a":1},{"a":2}]}')).toBe(null);
  expect(duplicateKey('{"a":1, "\\u0061" : 2}')).toBe("a");
  expect(duplicateKey('{"a":"b","b":"a","c":"\\"c\\":"}')).toBe(null);
  expect(duplicateKey('{"x":[{"k":"k","k":1}]}')).toBe("k");
  expect(duplicateKey(`{"a":1,"a"${" ".repeat(100)}:2}`)).toBe("a");
});

describe("shards", () => {
  const shard = (name: string) => file(JSON.stringify({ [name]: entry("F32", [1], 0, 4) }), 4);
  const index = (map: Record<string, unknown>) => JSON.stringify({ weight_map: map });

  test("each tensor comes from the file the index names", () => {
    folder(
      {
        "m-1.safetensors": shard("a"),
        "m-2.safetensors": shard("b"),
        "model.safetensors.index.json": index({ b: "m-2.safetensors", a: "m-1.safetensors" }),
      },
      (dir) => {
        const table = readSafetensors(dir);
        expect(table.files[table.tensors.get("a")!.file]!.path).toEndWith("m-1.safetensors");
        expect(table.files[table.tensors.get("b")!.file]!.path).toEndWith("m-2.safetensors");
      },
    );
  });

  test("a single file beside an index wins", () => {
    folder(
      {
        "model.safetensors": shard("whole"),
        "model.safetensors.index.json": index({ a: "m-1.safetensors" }),
      },
      (dir) => expect([...readSafetensors(dir).tensors.keys()]).toEqual(["whole"]),
    );
  });

  test("a shard that is no plain file name is refused before it is opened", () => {
    for (const name of ["../m", "/etc/passwd", "sub/m", "..", ".", "a\\b", "", "a\0b", ".hidden"]) {
      folder({ "model.safetensors.index.json": index({ a: name }) }, (dir) => {
        expect(refused(() => readSafetensors(dir))).toContain("no plain file name");
      });
    }
  });
});

test("any flipped bit in the header gives a table or a ModelError", () => {
  const control = readFileSync(fixture("malformed", "st-ok", "model.safetensors"));
  const headerBytes = 8 + Number(control.readBigUInt64LE(0));
  let seed = 1;
  for (let i = 0; i < 200; i++) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const bytes = Buffer.from(control);
    bytes[(seed >>> 8) % headerBytes]! ^= 1 << (seed >>> 29);
    try {
      folder({ "model.safetensors": bytes }, readSafetensors);
    } catch (e) {
      expect(e).toBeInstanceOf(ModelError);
    }
  }
});
