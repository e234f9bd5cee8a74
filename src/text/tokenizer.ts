// Text to token ids and ids to bytes. The only importer of @huggingface/tokenizers, which does the
// normalizing and the splitting regexes; merging is bpe.ts. Built by model/open.ts from a
// tokenizer.json or from GGUF arrays; both become one TokenizerSpec first.
import { Tokenizer as Library, SplitPreTokenizer } from "@huggingface/tokenizers";
import { ModelError } from "../errors.ts";
import { mergeSymbols } from "./bpe.ts";
import { type GgufVocab, specFromGguf } from "./gguf-vocab.ts";
import { orderMarks } from "./mark-order.ts";
import { type JsonVocab, specFromJson } from "./tokenizer-json.ts";
import type { Tokenizer } from "./types.ts";
import {
  type AddedToken,
  byteAlphabet,
  METASPACE,
  type SplitStep,
  type TokenizerSpec,
} from "./vocabulary.ts";

/** Where a tokenizer comes from; nothing in it is trusted. */
export type TokenizerSource = JsonVocab | GgufVocab;

/** Pieces kept with their ids, and the longest kept: words recur, long runs do not. */
const CACHE_ENTRIES = 16384;
const CACHE_PIECE_LENGTH = 64;

/** NFC makes three bytes of nine at most (a Hangul syllable of three letters); a Kelvin sign of
 * three bytes becomes one. */
const SHRINK_CANONICAL = 3;
/** NFKC makes one byte of a four-byte mathematical letter. */
const SHRINK_COMPATIBLE = 4;

/**
 * Builds a tokenizer.
 * @throws ModelError naming the file and the field that cannot be used.
 */
export function createTokenizer(source: TokenizerSource): Tokenizer {
  const spec = source.kind === "json" ? specFromJson(source) : specFromGguf(source);
  const library = normalizerOf(spec);
  const normalize = (text: string): string => (library ? library(text) : text);
  const split = splitter(spec);
  const encodePiece = pieceEncoder(spec);
  const before = addedSplitter(spec.added.filter((token) => !token.normalized));
  const after = addedSplitter(
    spec.added.filter((t) => t.normalized).map((t) => ({ ...t, content: normalize(t.content) })),
  );
  const special = new Set(spec.added.filter((token) => token.special).map((token) => token.id));
  const vocabSize = spec.tokens.length;
  const longest = longestEntryBytes(spec);

  return {
    vocabSize,
    bosId: spec.bosId,
    longestTokenBytes: Math.min(longest * shrinkFactor(spec.normalizer), Number.MAX_SAFE_INTEGER),
    longestEntryBytes: longest,
    encode(text, addSpecial) {
      const out: number[] = addSpecial ? [...spec.prefix] : [];
      before(text, out, (section, isFirst) => {
        after(normalize(section), out, (part, isFirstPart) => {
          for (const piece of split(part, isFirst && isFirstPart)) encodePiece(piece, out);
        });
      });
      if (addSpecial) out.push(...spec.suffix);
      return Int32Array.from(out);
    },
    pieceBytes(id) {
      const token = spec.tokens[id];
      if (token === undefined || special.has(id)) return new Uint8Array(0);
      return tokenBytes(token, spec.byteLevel);
    },
    idOf: (token) => spec.ids.get(token) ?? null,
  };
}

function normalizerOf(spec: TokenizerSpec): ((text: string) => string) | null {
  if (spec.normalizer === null) return null;
  const orders = /"NFK?[CD]"/.test(JSON.stringify(spec.normalizer));
  try {
    // The library builds normalizers only as part of a tokenizer; this one has no vocabulary.
    const shell = new Library(
      {
        model: { type: "BPE", vocab: {}, merges: [] },
        normalizer: spec.normalizer,
        pre_tokenizer: null,
        post_processor: null,
        decoder: null,
        added_tokens: [],
      },
      {},
    );
    const { normalizer } = shell;
    return normalizer && ((text) => normalizer.normalize(orders ? orderMarks(text) : text));
  } catch (error) {
    throw new ModelError(`${spec.where}: normalizer cannot be used: ${messageOf(error)}`);
  }
}

// Cuts a normalized text into the pieces that are merged apart from each other.
function splitter(spec: TokenizerSpec): (text: string, isFirst: boolean) => readonly string[] {
  const steps = spec.steps.map((step) => compileStep(spec.where, step));
  if (!spec.byteLevel) steps.push(cutAtMetaspace(spec));
  return (text, isFirst) => {
    let pieces: readonly string[] = [text];
    for (const step of steps) {
      if (pieces.length === 1) {
        pieces = step(pieces[0]!, isFirst);
      } else {
        const next: string[] = [];
        for (let i = 0; i < pieces.length; i++) {
          for (const part of step(pieces[i]!, isFirst && i === 0)) next.push(part);
        }
        pieces = next;
      }
    }
    return pieces;
  };
}

type Step = (text: string, isFirst: boolean) => readonly string[];

function compileStep(where: string, step: SplitStep): Step {
  switch (step.kind) {
    case "prefix-space":
      return (text) => [text.startsWith(" ") ? text : ` ${text}`];
    case "metaspace":
      return (text, isFirst) => {
        let spaced = text.replaceAll(" ", METASPACE);
        const wanted = step.prepend === "always" || (step.prepend === "first" && isFirst);
        if (wanted && !spaced.startsWith(METASPACE)) spaced = METASPACE + spaced;
        return step.split ? spaced.split(/(?=\u2581)/) : [spaced];
      };
    case "split": {
      let pre: SplitPreTokenizer;
      try {
        pre = new SplitPreTokenizer({
          type: "Split",
          pattern: { Regex: step.regex },
          behavior: step.drop === "match" ? "Removed" : "Isolated",
          invert: step.drop === "rest",
        });
      } catch (error) {
        throw new ModelError(
          `${where}: pre_tokenizer regex ${JSON.stringify(step.regex)} cannot be used: ${messageOf(error)}`,
        );
      }
      return (text) => pre.pre_tokenize_text(text);
    }
    default:
      return step satisfies never;
  }
}

// SentencePiece vocabularies merge over a whole text. Hardly any token has a U+2581 after another
// character, so no merge crosses such a place and the words can be merged one by one, which a
// cache makes cheap. `glue` holds the characters after which some token does go on with a U+2581.
function cutAtMetaspace(spec: TokenizerSpec): Step {
  const added = new Set(spec.added.map((token) => token.id));
  const glue = new Set<number>();
  const mark = METASPACE.charCodeAt(0);
  for (let id = 0; id < spec.tokens.length; id++) {
    const token = spec.tokens[id];
    if (token === undefined || added.has(id)) continue;
    for (let at = token.indexOf(METASPACE, 1); at > 0; at = token.indexOf(METASPACE, at + 1)) {
      const char = token.charCodeAt(at - 1);
      if (char !== mark) glue.add(char);
    }
  }
  return (text) => {
    const words: string[] = [];
    let start = 0;
    for (let at = text.indexOf(METASPACE, 1); at > 0; at = text.indexOf(METASPACE, at + 1)) {
      const char = text.charCodeAt(at - 1);
      if (char === mark || glue.has(char)) continue;
      words.push(text.slice(start, at));
      start = at;
    }
    words.push(text.slice(start));
    return words;
  };
}

// Finds added tokens, leftmost first and of those the longest; the text between goes to `rest`.
function addedSplitter(added: readonly AddedToken[]) {
  interface Node {
    readonly next: Map<number, Node>;
    token: AddedToken | null;
  }
  const root: Node = { next: new Map(), token: null };
  for (const token of added) {
    let node = root;
    for (let i = 0; i < token.content.length; i++) {
      const code = token.content.charCodeAt(i);
      let child = node.next.get(code);
      if (!child) {
        child = { next: new Map(), token: null };
        node.next.set(code, child);
      }
      node = child;
    }
    node.token = token;
  }
  const longestAt = (text: string, at: number): AddedToken | null => {
    let node: Node | undefined = root.next.get(text.charCodeAt(at));
    let found: AddedToken | null = null;
    for (let i = at + 1; node; i++) {
      found = node.token ?? found;
      node = i < text.length ? node.next.get(text.charCodeAt(i)) : undefined;
    }
    return found;
  };
  return (text: string, out: number[], rest: (part: string, isFirst: boolean) => void): void => {
    let start = 0;
    let trimNext = false;
    const flush = (end: number, token: AddedToken | null): void => {
      const isFirst = start === 0;
      let part = text.slice(start, end);
      if (trimNext) part = part.trimStart();
      if (token?.lstrip) part = part.trimEnd();
      if (part !== "") rest(part, isFirst);
    };
    for (let at = 0; at < text.length; ) {
      const token = added.length > 0 ? longestAt(text, at) : null;
      if (!token) {
        at++;
        continue;
      }
      flush(at, token);
      out.push(token.id);
      at += token.content.length;
      start = at;
      trimNext = token.rstrip;
    }
    flush(text.length, null);
  };
}

// Encodes one piece and appends its ids.
function pieceEncoder(spec: TokenizerSpec): (piece: string, out: number[]) => void {
  const { ids, unkId } = spec;
  const encoder = new TextEncoder();
  const byteIds = new Int32Array(256).fill(-1);
  for (let byte = 0; byte < 256; byte++) {
    const hex = byte.toString(16).toUpperCase().padStart(2, "0");
    const name = spec.byteLevel ? byteAlphabet.charOf[byte]! : `<0x${hex}>`;
    if (spec.byteLevel || spec.byteFallback) byteIds[byte] = ids.get(name) ?? -1;
  }
  let symbols = new Int32Array(256);
  let n = 0;
  let lastIsUnk = false;
  const add = (id: number): void => {
    symbols[n++] = id;
    lastIsUnk = false;
  };
  const addUnk = (): void => {
    if (unkId === null || (spec.fuseUnk && lastIsUnk)) return;
    symbols[n++] = unkId;
    lastIsUnk = true;
  };
  const readBytes = (piece: string): void => {
    for (const byte of encoder.encode(piece)) {
      const id = byteIds[byte]!;
      if (id >= 0) add(id);
      else addUnk();
    }
  };
  const readChars = (piece: string): void => {
    for (const char of piece) {
      const id = ids.get(char);
      if (id !== undefined) {
        add(id);
        continue;
      }
      const bytes = spec.byteFallback ? encoder.encode(char) : null;
      if (bytes?.every((byte) => byteIds[byte]! >= 0)) {
        for (const byte of bytes) add(byteIds[byte]!);
      } else addUnk();
    }
  };
  const wholeId = (piece: string): number | undefined => {
    if (!spec.ignoreMerges) return undefined;
    return ids.get(spec.byteLevel ? toAlphabet(encoder.encode(piece)) : piece);
  };

  let cache = new Map<string, Int32Array>();
  return (piece, out) => {
    const known = cache.get(piece);
    if (known) {
      for (let i = 0; i < known.length; i++) out.push(known[i]!);
      return;
    }
    n = 0;
    lastIsUnk = false;
    // Four symbols a UTF-16 unit at most: a lone surrogate counts as the three bytes of U+FFFD.
    if (symbols.length < piece.length * 4) symbols = new Int32Array(piece.length * 4);
    const whole = wholeId(piece);
    if (whole !== undefined) add(whole);
    else if (spec.byteLevel) readBytes(piece);
    else readChars(piece);
    n = mergeSymbols(symbols, n, spec.merges);
    for (let i = 0; i < n; i++) out.push(symbols[i]!);
    if (piece.length <= CACHE_PIECE_LENGTH) {
      if (cache.size >= CACHE_ENTRIES) cache = new Map();
      // A copy of the piece: a slice as key would keep the whole text it was cut from in memory.
      cache.set(copyOf(piece), symbols.slice(0, n));
    }
    if (symbols.length > SCRATCH_KEPT) symbols = new Int32Array(256);
  };
}

/** Symbol scratch kept between pieces, in elements; one long text does not stay in memory. */
const SCRATCH_KEPT = 65536;

function copyOf(text: string): string {
  const codes: number[] = [];
  for (let i = 0; i < text.length; i++) codes.push(text.charCodeAt(i));
  return String.fromCharCode(...codes);
}

function toAlphabet(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += byteAlphabet.charOf[byte]!;
  return text;
}

const utf8 = new TextEncoder();

function tokenBytes(token: string, byteLevel: boolean): Uint8Array {
  if (!byteLevel) {
    const hex = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (hex) return Uint8Array.of(Number.parseInt(hex[1]!, 16));
    return utf8.encode(token.replaceAll(METASPACE, " "));
  }
  const bytes = new Uint8Array(token.length);
  for (let i = 0; i < token.length; i++) {
    const byte = byteAlphabet.byteOf.get(token[i]!);
    // Added tokens are plain text; one character outside the alphabet shows it.
    if (byte === undefined) return utf8.encode(token);
    bytes[i] = byte;
  }
  return bytes;
}

// Most bytes of normalized text one token can swallow; no bound where a token may swallow any number.
function longestEntryBytes(spec: TokenizerSpec): number {
  const endless =
    spec.added.some((token) => token.lstrip || token.rstrip) ||
    (!spec.byteLevel && !spec.byteFallback) ||
    spec.steps.some((step) => step.kind === "split" && step.drop !== "none");
  if (endless) return Number.MAX_SAFE_INTEGER;
  let longest = 1;
  for (const token of spec.added) longest = Math.max(longest, Buffer.byteLength(token.content));
  for (const token of spec.tokens) {
    // Bytes of a token: its length in the byte alphabet, otherwise its UTF-8, of at most three
    // bytes a UTF-16 unit. A text may spell U+2581 itself, so it counts as three bytes here.
    if (token === undefined || token.length * (spec.byteLevel ? 1 : 3) <= longest) continue;
    longest = Math.max(longest, spec.byteLevel ? token.length : Buffer.byteLength(token));
  }
  return longest;
}

// How many bytes of text one byte of normalized text stands for at most.
function shrinkFactor(normalizer: unknown): number {
  if (normalizer === null) return 1;
  const { type, normalizers, pattern, content } = normalizer as {
    type: string;
    normalizers?: unknown[];
    pattern?: { String?: string };
    content?: string;
  };
  switch (type) {
    case "Sequence":
      return (normalizers ?? []).reduce<number>((factor, n) => factor * shrinkFactor(n), 1);
    case "Prepend":
      return 1;
    case "Replace":
      return pattern?.String?.length === 1 && content ? 1 : Number.POSITIVE_INFINITY;
    case "NFC":
    case "NFD":
    case "Lowercase":
      return SHRINK_CANONICAL;
    case "NFKC":
    case "NFKD":
      return SHRINK_COMPATIBLE;
    default:
      return Number.POSITIVE_INFINITY; // Strip
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
