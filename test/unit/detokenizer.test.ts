import { expect, test } from "bun:test";
import { createDetokenizer } from "../../src/text/detokenizer.ts";
import type { Tokenizer } from "../../src/text/types.ts";

// Ids 0 to 255 are bytes, 256 is special.
const byteTokenizer: Tokenizer = {
  vocabSize: 257,
  bosId: null,
  longestTokenBytes: 1,
  longestEntryBytes: 1,
  encode: (text) => Int32Array.from(new TextEncoder().encode(text)),
  pieceBytes: (id) => (id < 256 ? Uint8Array.of(id) : new Uint8Array(0)),
  idOf: () => null,
};

const decodeAll = (ids: readonly number[]): string =>
  new TextDecoder("utf-8", { ignoreBOM: true }).decode(
    Uint8Array.from(ids.filter((id) => id < 256)),
  );

function pushAll(ids: readonly number[]): string[] {
  const detokenizer = createDetokenizer(byteTokenizer);
  return [...ids.map((id) => detokenizer.push(id)), detokenizer.end()];
}

test("gives whole characters only, each as soon as it is whole", () => {
  const ids = [...new TextEncoder().encode("aé😀")];
  expect(pushAll(ids)).toEqual(["a", "", "é", "", "", "", "😀", ""]);
});

test("an unfinished character at the end is one replacement character", () => {
  expect(pushAll([0x61, 0xf0, 0x9f])).toEqual(["a", "", "", "\ufffd"]);
});

test("special tokens between the bytes of a character do not part it", () => {
  expect(pushAll([0xc3, 256, 0xa9]).join("")).toBe("é");
});

test("joined parts equal the text decoded at once, for any bytes", () => {
  const interesting = [
    0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xc2, 0xe0, 0xa0, 0xed, 0xef, 0xbb, 0xf0, 0x90, 0x9f, 0xf4,
    0xf5, 0xff, 256,
  ];
  let seed = 11;
  const random = (n: number): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * n);
  };
  for (let round = 0; round < 5000; round++) {
    const ids = Array.from({ length: random(12) }, () => interesting[random(interesting.length)]!);
    const parts = pushAll(ids);
    expect(parts.join("")).toBe(decodeAll(ids));
    for (const part of parts) expect(part.isWellFormed()).toBe(true);
  }
});
