import { describe, expect, test } from "bun:test";
import { ModelError } from "../../src/errors.ts";
import type { GgufVocab } from "../../src/text/gguf-vocab.ts";
import { createTokenizer } from "../../src/text/tokenizer.ts";
import { byteAlphabet } from "../../src/text/vocabulary.ts";

const none = {
  addBos: null,
  addEos: null,
  addSpacePrefix: null,
  bosId: null,
  eosId: null,
  unkId: null,
};

const bytes = byteAlphabet.charOf;
const gpt2: GgufVocab = {
  ...none,
  kind: "gguf",
  model: "gpt2",
  pre: "gpt-2",
  tokens: [...bytes, "he", "ll", "Ġw", "<|end|>"],
  tokenTypes: Int32Array.from([...bytes.map(() => 1), 1, 1, 1, 3]),
  scores: null,
  merges: ["h e", "l l", "Ġ w"],
  where: "m.gguf",
};

const byteTokens = Array.from(
  { length: 256 },
  (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`,
);
const pieces = ["▁", "a", "b", "ab", "▁a", "▁ab", "\n\n"];
const llama: GgufVocab = {
  ...none,
  kind: "gguf",
  model: "llama",
  pre: null,
  tokens: ["<unk>", "<s>", "</s>", ...byteTokens, ...pieces],
  tokenTypes: Int32Array.from([2, 3, 3, ...byteTokens.map(() => 6), 1, 1, 1, 1, 1, 1, 4]),
  scores: Float32Array.from([0, 0, 0, ...byteTokens.map(() => 0), -9, -8, -7, -1, -2, -3, 0]),
  merges: null,
  bosId: 1,
  eosId: 2,
  unkId: 0,
  where: "m.gguf",
};

const words = (vocab: GgufVocab, text: string, addSpecial = false): string[] =>
  [...createTokenizer(vocab).encode(text, addSpecial)].map((id) => vocab.tokens[id]!);

test("byte-level vocabularies merge by the list", () => {
  expect(words(gpt2, "hello w<|end|>")).toEqual(["he", "ll", "o", "Ġw", "<|end|>"]);
});

test.each([
  ["gpt-2", "a1234", ["a", "1234"]],
  ["smollm", "a1234", ["a", "1", "2", "3", "4"]],
  ["qwen2", "a1234", ["a", "1", "2", "3", "4"]],
  ["qwen35", "a1234", ["a", "1", "2", "3", "4"]],
  ["llama-bpe", "a1234", ["a", "123", "4"]],
  ["default", "a1234", ["a", "123", "4"]],
])("%s splits digits its own way", (pre, text, wanted) => {
  const tokens = [...gpt2.tokens, "12", "123", "1234"];
  const types = Int32Array.from([...gpt2.tokenTypes!, 1, 1, 1]);
  const merges = ["1 2", "12 3", "123 4"];
  expect(words({ ...gpt2, pre, tokens, tokenTypes: types, merges }, text)).toEqual(wanted);
});

test("SentencePiece merges by score, with a space in front and BOS by default", () => {
  expect(words(llama, "ab a", true)).toEqual(["<s>", "▁ab", "▁a"]);
  expect(words({ ...llama, addSpacePrefix: false, addBos: false }, "ab a", true)).toEqual([
    "ab",
    "▁a",
  ]);
  expect(words({ ...llama, addEos: true }, "a", true)).toEqual(["<s>", "▁a", "</s>"]);
});

test("characters without a token are bytes, user-defined tokens are found first", () => {
  const vocab = { ...llama, addSpacePrefix: false };
  expect(words(vocab, "é\n\n\n")).toEqual(["<0xC3>", "<0xA9>", "\n\n", "<0x0A>"]);
  const tokenizer = createTokenizer(vocab);
  const text = Buffer.concat(
    [...tokenizer.encode("é ab\n\n", false)].map((id) => tokenizer.pieceBytes(id)),
  );
  expect(text.toString()).toBe("é ab\n\n");
});

describe("hostile arrays", () => {
  const replaced = (from: GgufVocab, at: number, token: unknown): GgufVocab => {
    const tokens = [...from.tokens];
    tokens[at] = token as string;
    return { ...from, tokens };
  };
  test.each<[string, GgufVocab, string]>([
    ["unknown model", { ...gpt2, model: "t5" }, "tokenizer.ggml.model"],
    ["unknown pre", { ...gpt2, pre: "frob" }, '"frob"'],
    ["no tokens", { ...gpt2, tokens: [] }, "tokenizer.ggml.tokens"],
    ["a number as token", replaced(gpt2, 7, 7), "tokenizer.ggml.tokens[7]"],
    ["few token types", { ...gpt2, tokenTypes: new Int32Array(3) }, "tokenizer.ggml.token_type"],
    ["few scores", { ...llama, scores: new Float32Array(3) }, "tokenizer.ggml.scores"],
    ["no scores", { ...llama, scores: null }, "tokenizer.ggml.scores"],
    ["NaN score", { ...llama, scores: llama.scores!.map(() => Number.NaN) }, "scores[0]"],
    ["no merges", { ...gpt2, merges: null }, "tokenizer.ggml.merges"],
    ["merge of one part", { ...gpt2, merges: ["he"] }, "tokenizer.ggml.merges[0]"],
    ["merge with no end", { ...gpt2, merges: ["h "] }, "tokenizer.ggml.merges[0]"],
    ["merge of unknown parts", { ...gpt2, merges: ["h zz"] }, "tokenizer.ggml.merges[0]"],
    ["merge to no token", { ...gpt2, merges: ["q z"] }, '"qz" is no token'],
    ["byte token -1", replaced(llama, 3 + 0x41, "<0x-1>"), '"<0x-1>" is a byte token'],
    ["byte token ZZ", replaced(llama, 3 + 0x41, "<0xZZ>"), '"<0xZZ>" is a byte token'],
    ["bos id", { ...gpt2, bosId: 1e6 }, "tokenizer.ggml.bos_token_id"],
    ["eos id", { ...gpt2, eosId: -1 }, "tokenizer.ggml.eos_token_id"],
    ["BOS without id", { ...gpt2, addBos: true }, "tokenizer.ggml.bos_token_id"],
  ])("%s is refused, naming file and key", (_, vocab, words) => {
    let message = "";
    try {
      createTokenizer(vocab);
    } catch (error) {
      expect(error).toBeInstanceOf(ModelError);
      message = (error as Error).message;
    }
    expect(message).toStartWith("m.gguf: ");
    expect(message).toContain(words);
  });
});
