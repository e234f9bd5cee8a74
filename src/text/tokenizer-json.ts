// A Hugging Face tokenizer.json (and tokenizer_config.json) as a tokenizer description. What the
// rest of caldrix would tokenise differently from the reference is refused here, by name.
// The files are not trusted. Called by tokenizer.ts.
import { ModelError } from "../errors.ts";
import { listedMerges } from "./bpe.ts";
import { setMerge } from "./gguf-vocab.ts";
import {
  type AddedToken,
  GPT2_REGEX,
  MAX_TOKEN_LENGTH,
  MAX_VOCAB,
  METASPACE,
  quote,
  type SplitStep,
  type TokenizerSpec,
} from "./vocabulary.ts";

/** The parsed files of one model directory. */
export interface JsonVocab {
  readonly kind: "json";
  readonly tokenizerJson: unknown;
  readonly tokenizerConfig: unknown;
  readonly where: string;
}

type Dict = Readonly<Record<string, unknown>>;

/**
 * Turns the parsed files into a tokenizer description.
 * @throws ModelError naming the file and the field.
 */
export function specFromJson(source: JsonVocab): TokenizerSpec {
  const { where } = source;
  const root = dict(where, "the top level", source.tokenizerJson);
  const model = dict(where, "model", root.model);
  // Old files have no type; merges then mean BPE.
  if (model.type !== "BPE" && !(model.type === undefined && Array.isArray(model.merges))) {
    throw new ModelError(`${where}: model.type ${show(model.type)} is not supported; wanted "BPE"`);
  }
  for (const field of ["dropout", "continuing_subword_prefix", "end_of_word_suffix"]) {
    if (model[field]) throw new ModelError(`${where}: model.${field} is not supported`);
  }
  const ids = new Map<string, number>();
  const tokens: (string | undefined)[] = [];
  readVocab(where, dict(where, "model.vocab", model.vocab), ids, tokens);
  const pairs = readMerges(where, model.merges, ids);
  const added = readAdded(where, root.added_tokens, ids, tokens);
  for (let id = 0; id < tokens.length; id++) tokens[id] ??= undefined; // no holes: one array shape

  const decoderByteLevel = readDecoder(where, root.decoder);
  const pre = readPreTokenizer(where, root.pre_tokenizer, root.normalizer);
  if (pre.byteLevel !== decoderByteLevel) {
    throw new ModelError(
      `${where}: pre_tokenizer and decoder disagree: only one of them is ByteLevel`,
    );
  }
  const unk = model.unk_token ?? null;
  if (unk !== null && typeof unk !== "string") {
    throw new ModelError(`${where}: model.unk_token is ${show(unk)}, wanted a string or null`);
  }
  if (unk !== null && !ids.has(unk)) {
    throw new ModelError(`${where}: model.unk_token ${quote(unk)} is not in the vocabulary`);
  }
  const prefix: number[] = [];
  const suffix: number[] = [];
  readPostProcessor(where, root.post_processor, ids, prefix, suffix);
  return {
    where,
    tokens,
    ids,
    merges: listedMerges(pairs),
    byteLevel: pre.byteLevel,
    byteFallback: model.byte_fallback === true,
    ignoreMerges: model.ignore_merges === true,
    fuseUnk: model.fuse_unk === true,
    unkId: unk === null ? null : ids.get(unk)!,
    normalizer: readNormalizer(where, root.normalizer ?? null),
    steps: pre.steps,
    added,
    prefix,
    suffix,
    bosId: readBos(where, source.tokenizerConfig, ids),
  };
}

function readVocab(
  where: string,
  vocab: Dict,
  ids: Map<string, number>,
  tokens: (string | undefined)[],
): void {
  for (const token in vocab) {
    const id = vocab[token];
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id >= MAX_VOCAB) {
      throw new ModelError(
        `${where}: model.vocab[${quote(token)}] is ${show(id)}, wanted an id from 0 to ${MAX_VOCAB - 1}`,
      );
    }
    if (tokens[id] !== undefined) {
      throw new ModelError(
        `${where}: model.vocab gives id ${id} to ${quote(tokens[id])} and to ${quote(token)}`,
      );
    }
    if (token.length > MAX_TOKEN_LENGTH) {
      throw new ModelError(`${where}: model.vocab has a token of ${token.length} characters`);
    }
    ids.set(token, id);
    tokens[id] = token;
  }
}

function readMerges(where: string, merges: unknown, ids: ReadonlyMap<string, number>): Int32Array {
  if (!Array.isArray(merges)) throw new ModelError(`${where}: model.merges is not an array`);
  const pairs = new Int32Array(merges.length * 3);
  for (let i = 0; i < merges.length; i++) {
    const merge: unknown = merges[i];
    // Older files write "a b", newer ones ["a", "b"].
    const parts: unknown[] =
      typeof merge === "string" ? merge.split(" ") : Array.isArray(merge) ? merge : [];
    const [left, right] = parts;
    if (parts.length !== 2 || typeof left !== "string" || typeof right !== "string") {
      throw new ModelError(`${where}: model.merges[${i}] ${show(merge)} is not a pair of tokens`);
    }
    setMerge(pairs, i, left, right, ids, (text) => {
      return `${where}: model.merges[${i}] ${show(merge)}: ${quote(text)} is no token`;
    });
  }
  return pairs;
}

function readAdded(
  where: string,
  list: unknown,
  ids: Map<string, number>,
  tokens: (string | undefined)[],
): AddedToken[] {
  if (list === undefined || list === null) return [];
  if (!Array.isArray(list)) throw new ModelError(`${where}: added_tokens is not an array`);
  return list.map((item: unknown, i) => {
    const token = dict(where, `added_tokens[${i}]`, item);
    const { content, id } = token;
    if (typeof content !== "string" || content === "" || content.length > MAX_TOKEN_LENGTH) {
      throw new ModelError(`${where}: added_tokens[${i}].content is ${show(content)}`);
    }
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id >= MAX_VOCAB) {
      throw new ModelError(
        `${where}: added_tokens[${i}].id is ${show(id)}, wanted an id from 0 to ${MAX_VOCAB - 1}`,
      );
    }
    if (token.single_word === true) {
      throw new ModelError(`${where}: added_tokens[${i}].single_word is not supported`);
    }
    ids.set(content, id);
    tokens[id] = content;
    return {
      content,
      id,
      special: token.special === true,
      normalized: token.normalized === true,
      lstrip: token.lstrip === true,
      rstrip: token.rstrip === true,
    };
  });
}

// Returns whether tokens are bytes in GPT-2's alphabet.
function readDecoder(where: string, value: unknown): boolean {
  const decoder = dict(where, "decoder", value);
  if (decoder.type === "ByteLevel") return true;
  const parts = decoder.type === "Sequence" ? decoder.decoders : [decoder];
  // What these do to a piece of a reply is the same for all: U+2581 to a space, <0xNN> to a byte.
  // Strip only touches the first space of a whole text, which a reply does not begin.
  const known = ["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"];
  for (const part of Array.isArray(parts) ? parts : []) {
    const type = dict(where, "decoder", part).type;
    if (typeof type !== "string" || !known.includes(type)) {
      throw new ModelError(`${where}: decoder ${show(type)} is not supported`);
    }
  }
  return false;
}

function readPreTokenizer(
  where: string,
  value: unknown,
  normalizer: unknown,
): { steps: SplitStep[]; byteLevel: boolean } {
  const steps: SplitStep[] = [];
  let byteLevel = false;
  const read = (item: unknown): void => {
    const step = dict(where, "pre_tokenizer", item);
    if (byteLevel) throw new ModelError(`${where}: pre_tokenizer goes on after ByteLevel`);
    if (step.type === "Sequence" && Array.isArray(step.pretokenizers)) {
      for (const inner of step.pretokenizers) read(inner);
    } else if (step.type === "Digits") {
      // The reference means Unicode's numeric characters, not only 0 to 9.
      const regex = step.individual_digits === true ? "\\p{N}" : "\\p{N}+";
      steps.push({ kind: "split", regex, drop: "none" });
    } else if (step.type === "ByteLevel") {
      byteLevel = true;
      if (step.add_prefix_space === true) steps.push({ kind: "prefix-space" });
      if (step.use_regex !== false) steps.push({ kind: "split", regex: GPT2_REGEX, drop: "none" });
    } else if (step.type === "Metaspace") {
      steps.push(readMetaspace(where, step));
    } else if (step.type === "Split") {
      const split = readSplit(where, step, normalizer);
      if (split) steps.push(split);
    } else {
      throw new ModelError(`${where}: pre_tokenizer ${show(step.type)} is not supported`);
    }
  };
  if (value !== undefined && value !== null) read(value);
  return { steps, byteLevel };
}

function readMetaspace(where: string, step: Dict): SplitStep {
  const scheme = step.prepend_scheme ?? (step.add_prefix_space === false ? "never" : "always");
  if (scheme !== "always" && scheme !== "first" && scheme !== "never") {
    throw new ModelError(`${where}: pre_tokenizer.prepend_scheme ${show(scheme)} is not supported`);
  }
  if (step.replacement !== undefined && step.replacement !== METASPACE) {
    throw new ModelError(
      `${where}: pre_tokenizer.replacement ${show(step.replacement)} is not supported`,
    );
  }
  return { kind: "metaspace", prepend: scheme, split: step.split !== false };
}

function readSplit(where: string, step: Dict, normalizer: unknown): SplitStep | null {
  const pattern = dict(where, "pre_tokenizer.pattern", step.pattern);
  const literal = pattern.String;
  const regex = typeof literal === "string" ? escapeRegex(literal) : pattern.Regex;
  if (typeof regex !== "string" || regex === "") {
    throw new ModelError(`${where}: pre_tokenizer.pattern is neither Regex nor String`);
  }
  const behavior = typeof step.behavior === "string" ? step.behavior.toLowerCase() : "";
  if (behavior === "removed") {
    return { kind: "split", regex, drop: step.invert === true ? "rest" : "match" };
  }
  if (behavior === "isolated") return { kind: "split", regex, drop: "none" };
  // Gemma splits at spaces which its normalizer has just turned into U+2581: it never splits.
  const spaceGone = isDict(normalizer) && normalizer.type === "Replace";
  if (literal === " " && spaceGone && isDict(normalizer.pattern)) {
    if (normalizer.pattern.String === " " && !String(normalizer.content).includes(" ")) return null;
  }
  throw new ModelError(
    `${where}: pre_tokenizer Split with behavior ${show(step.behavior)} is not supported`,
  );
}

// Normalizers @huggingface/tokenizers does exactly as the reference; it only approximates others.
const NORMALIZERS = ["NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Strip", "Lowercase"];

function readNormalizer(where: string, value: unknown): unknown {
  if (value === null) return null;
  const step = dict(where, "normalizer", value);
  if (step.type === "Sequence" && Array.isArray(step.normalizers)) {
    return { type: "Sequence", normalizers: step.normalizers.map((n) => readNormalizer(where, n)) };
  }
  if (typeof step.type !== "string" || !NORMALIZERS.includes(step.type)) {
    throw new ModelError(`${where}: normalizer ${show(step.type)} is not supported`);
  }
  if (step.type === "Replace" && typeof step.content === "string") {
    // The library hands this text to replaceAll, where "$" has a meaning.
    return { ...step, content: step.content.replaceAll("$", "$$$$") };
  }
  return step;
}

function readPostProcessor(
  where: string,
  value: unknown,
  ids: ReadonlyMap<string, number>,
  prefix: number[],
  suffix: number[],
): void {
  if (value === undefined || value === null) return;
  const processor = dict(where, "post_processor", value);
  if (processor.type === "ByteLevel") return;
  if (processor.type === "Sequence" && Array.isArray(processor.processors)) {
    for (const inner of processor.processors) readPostProcessor(where, inner, ids, prefix, suffix);
    return;
  }
  if (processor.type !== "TemplateProcessing" || !Array.isArray(processor.single)) {
    throw new ModelError(`${where}: post_processor ${show(processor.type)} is not supported`);
  }
  let before = true;
  for (const item of processor.single as unknown[]) {
    const part = dict(where, "post_processor.single", item);
    if (isDict(part.Sequence)) {
      before = false;
      continue;
    }
    const token = dict(where, "post_processor.single", part.SpecialToken).id;
    const id = typeof token === "string" ? ids.get(token) : undefined;
    if (id === undefined) {
      throw new ModelError(`${where}: post_processor names ${show(token)}, which is no token`);
    }
    (before ? prefix : suffix).push(id);
  }
}

function readBos(where: string, config: unknown, ids: ReadonlyMap<string, number>): number | null {
  if (!isDict(config)) return null;
  const bos = isDict(config.bos_token) ? config.bos_token.content : config.bos_token;
  if (bos === undefined || bos === null) return null;
  const id = typeof bos === "string" ? ids.get(bos) : undefined;
  if (id === undefined) {
    throw new ModelError(`${where}: bos_token ${show(bos)} of tokenizer_config.json is no token`);
  }
  return id;
}

function isDict(value: unknown): value is Dict {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function dict(where: string, field: string, value: unknown): Dict {
  if (isDict(value)) return value;
  throw new ModelError(`${where}: ${field} is ${show(value)}, wanted an object`);
}

function show(value: unknown): string {
  return value === undefined ? "missing" : quote(JSON.stringify(value) ?? typeof value);
}

function escapeRegex(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
}
