// The vocabulary arrays of a GGUF file as a tokenizer description: byte-level BPE ("gpt2") with
// its splitting rule by name, and SentencePiece ("llama") whose merges follow from the scores.
// The file is not trusted: every array is checked. Called by tokenizer.ts; reads no file itself.
import { ModelError } from "../errors.ts";
import { listedMerges, scoredMerges } from "./bpe.ts";
import {
  type AddedToken,
  checkId,
  GPT2_REGEX,
  MAX_TOKEN_LENGTH,
  MAX_VOCAB,
  METASPACE,
  quote,
  type SplitStep,
  type TokenizerSpec,
} from "./vocabulary.ts";

/** The tokenizer arrays and settings of one GGUF file. */
export interface GgufVocab {
  readonly kind: "gguf";
  readonly model: string;
  readonly pre: string | null;
  readonly tokens: readonly string[];
  readonly tokenTypes: Int32Array | null;
  readonly scores: Float32Array | null;
  readonly merges: readonly string[] | null;
  readonly addBos: boolean | null;
  readonly addEos: boolean | null;
  readonly addSpacePrefix: boolean | null;
  readonly bosId: number | null;
  readonly eosId: number | null;
  readonly unkId: number | null;
  readonly where: string;
}

// tokenizer.ggml.token_type, as llama.cpp's llama_token_type.
const TYPE_NORMAL = 1;
const TYPE_UNKNOWN = 2;
const TYPE_CONTROL = 3;
const TYPE_USER_DEFINED = 4;
const TYPE_BYTE = 6;

// The splitting rules by tokenizer.ggml.pre. The regexes are those of the published tokenizer.json
// files (for "default", of llama.cpp); each one splits what the one before it left.
const CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const QWEN2_REGEX = `${CONTRACTION}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;
const QWEN35_REGEX = `${CONTRACTION}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;
const LLAMA3_REGEX = `${CONTRACTION}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;

interface PreRule {
  readonly regexes: readonly string[];
  readonly nfc: boolean;
  readonly addBos: boolean;
  readonly ignoreMerges: boolean;
}
const GPT2: PreRule = { regexes: [GPT2_REGEX], nfc: false, addBos: false, ignoreMerges: false };
const LLAMA3: PreRule = { regexes: [LLAMA3_REGEX], nfc: false, addBos: true, ignoreMerges: true };
const QWEN2: PreRule = { ...GPT2, regexes: [QWEN2_REGEX], nfc: true };
const PRE_RULES: ReadonlyMap<string, PreRule> = new Map([
  ["gpt-2", GPT2],
  ["smollm", { ...GPT2, regexes: ["\\p{N}", GPT2_REGEX] }],
  ["qwen2", QWEN2],
  ["deepseek-r1-qwen", QWEN2],
  ["qwen35", { ...QWEN2, regexes: [QWEN35_REGEX] }],
  ["llama-bpe", LLAMA3],
  ["llama3", LLAMA3],
  ["llama-v3", LLAMA3],
  [
    "default",
    {
      ...GPT2,
      regexes: [
        "[\\p{P}\\$\\+<=>\\^~\\|]+",
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)",
        "\\p{N}+",
        "[0-9][0-9][0-9]",
      ],
    },
  ],
]);

/**
 * Turns checked GGUF arrays into a tokenizer description.
 * @throws ModelError naming the file and the metadata key.
 */
export function specFromGguf(source: GgufVocab): TokenizerSpec {
  if (source.model !== "gpt2" && source.model !== "llama") {
    throw new ModelError(
      `${source.where}: tokenizer.ggml.model ${quote(source.model)} is not supported; wanted "gpt2" or "llama"`,
    );
  }
  checkArrays(source);
  const ids = new Map<string, number>();
  // Of two tokens with one text the last has the id, as in llama.cpp.
  for (let id = 0; id < source.tokens.length; id++) ids.set(source.tokens[id]!, id);
  return source.model === "gpt2" ? byteLevelSpec(source, ids) : sentencePieceSpec(source, ids);
}

function checkArrays(source: GgufVocab): void {
  const { where, tokens, tokenTypes, scores } = source;
  if (!Array.isArray(tokens) || tokens.length === 0) {
    throw new ModelError(`${where}: tokenizer.ggml.tokens is missing or empty`);
  }
  if (tokens.length > MAX_VOCAB) {
    throw new ModelError(
      `${where}: tokenizer.ggml.tokens has ${tokens.length} entries, more than ${MAX_VOCAB}`,
    );
  }
  for (let id = 0; id < tokens.length; id++) {
    const token: unknown = tokens[id];
    if (typeof token !== "string") {
      throw new ModelError(
        `${where}: tokenizer.ggml.tokens[${id}] is a ${typeof token}, wanted a string`,
      );
    }
    if (token.length > MAX_TOKEN_LENGTH) {
      throw new ModelError(
        `${where}: tokenizer.ggml.tokens[${id}] has ${token.length} characters, more than ${MAX_TOKEN_LENGTH}`,
      );
    }
  }
  const same = (field: string, length: number | undefined): void => {
    if (length !== undefined && length !== tokens.length) {
      throw new ModelError(
        `${where}: tokenizer.ggml.${field} has ${length} entries, wanted ${tokens.length} (one per token)`,
      );
    }
  };
  same("token_type", tokenTypes?.length);
  same("scores", scores?.length);
  checkId(where, "tokenizer.ggml.bos_token_id", source.bosId, tokens.length);
  checkId(where, "tokenizer.ggml.eos_token_id", source.eosId, tokens.length);
  checkId(where, "tokenizer.ggml.unknown_token_id", source.unkId, tokens.length);
}

function byteLevelSpec(source: GgufVocab, ids: ReadonlyMap<string, number>): TokenizerSpec {
  const { where, tokens } = source;
  const pre = source.pre ?? "default";
  const rule = PRE_RULES.get(pre);
  if (!rule) {
    const known = [...PRE_RULES.keys()].join(", ");
    throw new ModelError(
      `${where}: tokenizer.ggml.pre ${quote(pre)} is not known; known are ${known}`,
    );
  }
  return {
    where,
    tokens,
    ids,
    merges: listedMerges(readMerges(source, ids)),
    byteLevel: true,
    byteFallback: false,
    ignoreMerges: rule.ignoreMerges,
    fuseUnk: false,
    // A byte without a token (SmolLM2 lacks some control characters) is dropped, as the reference
    // does; unknown_token_id is not used by these vocabularies.
    unkId: null,
    normalizer: rule.nfc ? { type: "NFC" } : null,
    steps: rule.regexes.map((regex): SplitStep => ({ kind: "split", regex, drop: "none" })),
    added: addedTokens(source),
    ...ends(source, rule.addBos),
  };
}

function readMerges(source: GgufVocab, ids: ReadonlyMap<string, number>): Int32Array {
  const { where, merges } = source;
  if (!Array.isArray(merges)) {
    throw new ModelError(`${where}: tokenizer.ggml.merges is missing`);
  }
  if (merges.length > MAX_VOCAB) {
    throw new ModelError(
      `${where}: tokenizer.ggml.merges has ${merges.length} entries, more than ${MAX_VOCAB}`,
    );
  }
  const pairs = new Int32Array(merges.length * 3);
  for (let i = 0; i < merges.length; i++) {
    const merge: unknown = merges[i];
    if (typeof merge !== "string") {
      throw new ModelError(
        `${where}: tokenizer.ggml.merges[${i}] is a ${typeof merge}, wanted a string`,
      );
    }
    const space = merge.indexOf(" ", 1);
    if (space < 0 || space === merge.length - 1) {
      throw new ModelError(
        `${where}: tokenizer.ggml.merges[${i}] ${quote(merge)} is not two parts with a space between`,
      );
    }
    const left = merge.slice(0, space);
    const right = merge.slice(space + 1);
    setMerge(pairs, i, left, right, ids, (text) => {
      return `${where}: tokenizer.ggml.merges[${i}] ${quote(merge)}: ${quote(text)} is no token`;
    });
  }
  return pairs;
}

/** Writes one merge of two texts into a table's pairs. @throws ModelError for an unknown token. */
export function setMerge(
  pairs: Int32Array,
  at: number,
  left: string,
  right: string,
  ids: ReadonlyMap<string, number>,
  message: (text: string) => string,
): void {
  const known = (text: string): number => {
    const id = ids.get(text);
    if (id === undefined) throw new ModelError(message(text));
    return id;
  };
  pairs[at * 3] = known(left);
  pairs[at * 3 + 1] = known(right);
  pairs[at * 3 + 2] = known(left + right);
}

function sentencePieceSpec(source: GgufVocab, ids: ReadonlyMap<string, number>): TokenizerSpec {
  const { where, tokens, tokenTypes, scores } = source;
  if (!scores) throw new ModelError(`${where}: tokenizer.ggml.scores is missing`);
  if (tokenTypes) checkByteTokens(where, tokens, tokenTypes);
  const typeOf = (id: number): number => tokenTypes?.[id] ?? TYPE_NORMAL;
  const spaces = { type: "Replace", pattern: { String: " " }, content: METASPACE };
  const prefixed = {
    type: "Sequence",
    normalizers: [{ type: "Prepend", prepend: METASPACE }, spaces],
  };
  let unkId = source.unkId;
  for (let id = 0; id < tokens.length && unkId === null; id++) {
    if (typeOf(id) === TYPE_UNKNOWN) unkId = id;
  }
  return {
    where,
    tokens,
    ids,
    merges: scoredMerges(tokens, ids, rankByScore(where, scores, typeOf)),
    byteLevel: false,
    byteFallback: true,
    ignoreMerges: false,
    fuseUnk: true,
    unkId,
    normalizer: source.addSpacePrefix === false ? spaces : prefixed,
    steps: [],
    added: addedTokens(source),
    ...ends(source, true),
  };
}

function checkByteTokens(where: string, tokens: readonly string[], types: Int32Array): void {
  for (let id = 0; id < tokens.length; id++) {
    if (types[id] === TYPE_BYTE && !/^<0x[0-9A-Fa-f]{2}>$/.test(tokens[id]!)) {
      throw new ModelError(
        `${where}: tokenizer.ggml.tokens[${id}] ${quote(tokens[id]!)} is a byte token, wanted <0x00> to <0xFF>`,
      );
    }
  }
}

// Rank of each normal token: highest score first, of equal scores the lower id. Control, byte and
// user-defined tokens are never made by merging.
function rankByScore(
  where: string,
  scores: Float32Array,
  typeOf: (id: number) => number,
): Int32Array {
  const normal: number[] = [];
  let sorted = true;
  let last = Number.POSITIVE_INFINITY;
  for (let id = 0; id < scores.length; id++) {
    const score = scores[id]!;
    if (!Number.isFinite(score)) {
      throw new ModelError(`${where}: tokenizer.ggml.scores[${id}] is ${score}, wanted a number`);
    }
    if (typeOf(id) !== TYPE_NORMAL) continue;
    normal.push(id);
    sorted &&= score <= last;
    last = score;
  }
  if (!sorted) normal.sort((a, b) => scores[b]! - scores[a]! || a - b);
  const rank = new Int32Array(scores.length).fill(-1);
  for (let i = 0; i < normal.length; i++) rank[normal[i]!] = i;
  return rank;
}

function addedTokens(source: GgufVocab): AddedToken[] {
  const { tokens, tokenTypes } = source;
  const added: AddedToken[] = [];
  for (let id = 0; tokenTypes && id < tokens.length; id++) {
    const type = tokenTypes[id];
    if (type !== TYPE_CONTROL && type !== TYPE_USER_DEFINED && type !== TYPE_UNKNOWN) continue;
    const content = tokens[id]!;
    if (content === "") continue;
    const special = type !== TYPE_USER_DEFINED;
    added.push({ content, id, special, normalized: false, lstrip: false, rstrip: false });
  }
  return added;
}

function ends(
  source: GgufVocab,
  addBosByDefault: boolean,
): Pick<TokenizerSpec, "prefix" | "suffix" | "bosId"> {
  const need = (field: string, id: number | null): number[] => {
    if (id !== null) return [id];
    throw new ModelError(
      `${source.where}: tokenizer.ggml.add_${field}_token is true, but there is no tokenizer.ggml.${field}_token_id`,
    );
  };
  const addBos = source.addBos ?? (addBosByDefault && source.bosId !== null);
  return {
    prefix: addBos ? need("bos", source.bosId) : [],
    suffix: source.addEos ? need("eos", source.eosId) : [],
    bosId: source.bosId,
  };
}
