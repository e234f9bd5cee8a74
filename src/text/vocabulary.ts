// The one description of a tokenizer that both sources (tokenizer.json, GGUF arrays) are turned
// into, with the limits and checks they share. Built by tokenizer-json.ts and gguf-vocab.ts, used
// by tokenizer.ts. No text is tokenised here.
import { ModelError } from "../errors.ts";
import type { MergeTable } from "./bpe.ts";

/** Most ids a vocabulary may have: eight times the largest published one, and 2^21 fits 21 bits. */
export const MAX_VOCAB = 1 << 21;

/** Most bytes one token may stand for; the longest published ones stay below 1 KiB. */
export const MAX_TOKEN_LENGTH = 1 << 16;

/** What SentencePiece writes for a space. */
export const METASPACE = "\u2581";

/** The splitting regex of GPT-2, which the ByteLevel pre-tokenizer has built in. */
export const GPT2_REGEX =
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** A token that is found in the text itself, before anything else looks at it. */
export interface AddedToken {
  readonly content: string;
  readonly id: number;
  /** Special tokens stand for no text in a reply. */
  readonly special: boolean;
  /** Looked for after normalising instead of before. */
  readonly normalized: boolean;
  /** Swallows the white space to its left or right. */
  readonly lstrip: boolean;
  readonly rstrip: boolean;
}

/** One step of pre-tokenising, in the form @huggingface/tokenizers reads. */
export type SplitStep =
  | { readonly kind: "split"; readonly regex: string; readonly drop: "none" | "match" | "rest" }
  | { readonly kind: "prefix-space" }
  | { readonly kind: "metaspace"; readonly prepend: Prepend; readonly split: boolean };

/** When a Metaspace step puts a U+2581 in front: each section, the very first one, never. */
export type Prepend = "always" | "first" | "never";

/** A whole byte-pair tokenizer. */
export interface TokenizerSpec {
  /** File the vocabulary came from, for messages. */
  readonly where: string;
  /** Text of each id; holes are ids without a token. */
  readonly tokens: readonly (string | undefined)[];
  readonly ids: ReadonlyMap<string, number>;
  readonly merges: MergeTable;
  /** True: symbols are bytes written in GPT-2's alphabet; false: characters, U+2581 for a space. */
  readonly byteLevel: boolean;
  /** Characters without a token become <0xNN> tokens. */
  readonly byteFallback: boolean;
  /** A piece that is a token as a whole is not merged. */
  readonly ignoreMerges: boolean;
  readonly fuseUnk: boolean;
  readonly unkId: number | null;
  /** Normalizer in the form of tokenizer.json, or null. */
  readonly normalizer: unknown;
  readonly steps: readonly SplitStep[];
  readonly added: readonly AddedToken[];
  /** What the post-processor puts before and after a text. */
  readonly prefix: readonly number[];
  readonly suffix: readonly number[];
  readonly bosId: number | null;
}

/** Byte of each character of GPT-2's byte alphabet, and the characters by byte. */
export const byteAlphabet: {
  readonly charOf: readonly string[];
  readonly byteOf: ReadonlyMap<string, number>;
} = buildAlphabet();

/** @throws ModelError unless `id` is null or an id of a vocabulary of `size`. */
export function checkId(where: string, field: string, id: number | null, size: number): void {
  if (id === null) return;
  if (!Number.isInteger(id) || id < 0 || id >= size) {
    throw new ModelError(`${where}: ${field} is ${id}, wanted an id from 0 to ${size - 1}`);
  }
}

/** A text from a file, cut and escaped so that it can stand in a message. */
export function quote(text: string): string {
  const MAX_QUOTED = 40; // a message stays one readable line
  return JSON.stringify(text.length > MAX_QUOTED ? `${text.slice(0, MAX_QUOTED)}…` : text);
}

// Printable Latin-1 bytes stand for themselves, the others are numbered from U+0100 on.
function buildAlphabet() {
  const charOf: string[] = [];
  const byteOf = new Map<string, number>();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable =
      (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char = String.fromCharCode(printable ? byte : next++);
    charOf.push(char);
    byteOf.set(char, byte);
  }
  return { charOf, byteOf };
}
