// Opens a model: a folder in Hugging Face layout or a .gguf file -> plan, tokenizer, template and end
// tokens. Reads headers and vocabularies only, never weights. Called by the commands and the tests.

import { basename, join, resolve } from "node:path";
import { z } from "zod";
import { archOfGguf, archOfModelType } from "../arch/index.ts";
import type { ArchPlan } from "../arch/types.ts";
import { readDeciderConfig } from "../decide/decider-config.ts";
import { ModelError } from "../errors.ts";
import { createTemplate } from "../text/template.ts";
import { createTokenizer } from "../text/tokenizer.ts";
import type { Tokenizer } from "../text/types.ts";
import { int, maybe } from "./config.ts";
import { look } from "./file.ts";
import { type GgufArray, readGguf } from "./gguf.ts";
import { checked, type JsonObject, parseJson, readJsonObject, readTextFile } from "./json-file.ts";
import { type Metadata, metaArray, metaBool, metaInt, metaString, required } from "./metadata.ts";
import { MAX_VOCAB } from "./plan-format.ts";
import { hasSafetensors, readSafetensors } from "./safetensors.ts";
import type { LoadedModel } from "./types.ts";
import { createWeights } from "./weights.ts";

/** Published configs have some KB; vocabularies of 262 144 tokens make 34 MB of JSON. */
const MAX_CONFIG_BYTES = 1024 * 1024;
const MAX_TOKENIZER_BYTES = 128 * 1024 * 1024;
const MAX_TOKENIZER_CONFIG_BYTES = 16 * 1024 * 1024;
/** More end tokens than any model has. */
const MAX_EOS_IDS = 64;

/**
 * Tokens that end a turn or a text wherever they are control tokens. GGUF files name one end token,
 * though chat models have two; llama.cpp finds the others by the same texts.
 */
const END_TOKENS = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"];
/** tokenizer.ggml.token_type of a control token. */
const CONTROL = 3;

/**
 * Opens a model folder or GGUF file.
 * @param options.name served name, when it is not the folder's or file's own.
 * @throws ModelError naming the file and the field at fault.
 */
export function openModel(path: string, options: { readonly name?: string } = {}): LoadedModel {
  const stat = look(path);
  if (stat === undefined) throw new ModelError(`${path}: no such file or folder`);
  const base = basename(resolve(path));
  return stat.isDirectory()
    ? openFolder(path, options.name ?? base)
    : openGguf(path, options.name ?? base.replace(/\.gguf$/i, ""));
}

// ---- a folder ----------------------------------------------------------------------------------

const eosSchema = maybe(
  z.union([
    int(0, MAX_VOCAB).transform((id) => [id]),
    z.array(int(0, MAX_VOCAB)).min(1).max(MAX_EOS_IDS),
  ]),
);
const eosFileSchema = z.object({ eos_token_id: eosSchema });
const modelTypeSchema = z.object({ model_type: z.string("wanted the name of an architecture") });
/** A special token is a string or an AddedToken object. */
const tokenSchema = maybe(
  z.union([z.string(), z.object({ content: z.string() }).transform((t) => t.content)]),
);
const tokenizerConfigSchema = z.object({
  bos_token: tokenSchema,
  eos_token: tokenSchema,
  chat_template: maybe(
    z.union([
      z.string(),
      z
        .array(z.object({ name: z.string(), template: z.string() }))
        .transform((list) => list.find((t) => t.name === "default")?.template),
    ]),
  ),
});
const templateFileSchema = z.object({ chat_template: z.string("wanted a template") });

function openFolder(dir: string, name: string): LoadedModel {
  const configPath = join(dir, "config.json");
  const config = readJsonObject(configPath, MAX_CONFIG_BYTES);
  if (config === null) throw new ModelError(`${configPath}: no such file`);
  const { model_type } = checked(modelTypeSchema, config, configPath);
  const arch = archOfModelType(model_type, `${configPath}: model_type`);
  if (!hasSafetensors(dir)) {
    throw new ModelError(`${dir}: neither model.safetensors nor model.safetensors.index.json here`);
  }
  const weights = createWeights(readSafetensors(dir));
  const built = arch.build({ kind: "hf", config, where: configPath, weights });

  const tokenizerConfigPath = join(dir, "tokenizer_config.json");
  const tokenizerConfig = readJsonObject(tokenizerConfigPath, MAX_TOKENIZER_CONFIG_BYTES) ?? {};
  const texts = checked(tokenizerConfigSchema, tokenizerConfig, tokenizerConfigPath);
  const tokenizer = folderTokenizer(dir, tokenizerConfig, built.vocabSize);
  const template = folderTemplate(dir) ?? texts.chat_template;
  return {
    ...loaded(name, arch.id, built),
    eosIds: folderEosIds(dir, config, texts.eos_token, tokenizer, built.vocabSize),
    tokenizer,
    template:
      template === undefined
        ? null
        : createTemplate(template, { bos: texts.bos_token ?? "", eos: texts.eos_token ?? "" }, dir),
    decider: readDeciderConfig(dir),
  };
}

function folderTokenizer(dir: string, tokenizerConfig: JsonObject, vocabSize: number): Tokenizer {
  const path = join(dir, "tokenizer.json");
  const text = readTextFile(path, MAX_TOKENIZER_BYTES);
  if (text === null) throw new ModelError(`${path}: no such file`);
  const tokenizerJson = withoutUnembedded(parseJson(text, path), vocabSize);
  const tokenizer = createTokenizer({ kind: "json", tokenizerJson, tokenizerConfig, where: path });
  if (tokenizer.vocabSize > vocabSize) {
    throw new ModelError(
      `${path}: the vocabulary has ${tokenizer.vocabSize} tokens, the embedding only ${vocabSize} rows`,
    );
  }
  return tokenizer;
}

/**
 * The published tokenizer of text-only Gemma 3 still has the image token, one past the embedding. Such
 * added tokens are left out, so that their text is plain text.
 */
function withoutUnembedded(tokenizerJson: unknown, vocabSize: number): unknown {
  if (typeof tokenizerJson !== "object" || tokenizerJson === null) return tokenizerJson;
  const added = (tokenizerJson as JsonObject).added_tokens;
  if (!Array.isArray(added)) return tokenizerJson;
  const embedded = (token: unknown) => {
    const id = (token as JsonObject | null)?.id;
    return typeof id !== "number" || id < vocabSize;
  };
  return { ...tokenizerJson, added_tokens: added.filter(embedded) };
}

/** Newer checkpoints keep the template in a file of its own, which wins in transformers. */
function folderTemplate(dir: string): string | undefined {
  const jinja = readTextFile(join(dir, "chat_template.jinja"), MAX_CONFIG_BYTES);
  if (jinja !== null) return jinja;
  const path = join(dir, "chat_template.json");
  const json = readJsonObject(path, MAX_CONFIG_BYTES);
  return json === null ? undefined : checked(templateFileSchema, json, path).chat_template;
}

/** generation_config.json wins over config.json; the tokenizer's own end token is the last resort. */
function folderEosIds(
  dir: string,
  config: JsonObject,
  eosToken: string | undefined,
  tokenizer: Tokenizer,
  vocabSize: number,
): readonly number[] {
  const generationPath = join(dir, "generation_config.json");
  const generation = readJsonObject(generationPath, MAX_CONFIG_BYTES) ?? {};
  const sources = [
    { where: generationPath, ids: checked(eosFileSchema, generation, generationPath).eos_token_id },
    {
      where: join(dir, "config.json"),
      ids: checked(eosFileSchema, config, join(dir, "config.json")).eos_token_id,
    },
  ];
  for (const { where, ids } of sources) {
    if (ids === undefined) continue;
    const outside = ids.find((id) => id >= vocabSize);
    if (outside !== undefined) {
      throw new ModelError(`${where}: eos_token_id ${outside} is not below ${vocabSize}`);
    }
    return [...new Set(ids)];
  }
  const id = eosToken === undefined ? null : tokenizer.idOf(eosToken);
  if (id === null) {
    throw new ModelError(`${dir}: no eos_token_id in generation_config.json or config.json`);
  }
  return [id];
}

// ---- a GGUF file -------------------------------------------------------------------------------

function openGguf(path: string, name: string): LoadedModel {
  const file = readGguf(path);
  const splits = metaInt(file, "split.count", 0, MAX_VOCAB) ?? 0;
  if (splits > 1) {
    throw new ModelError(`${path}: split.count is ${splits}; a model split over files is not read`);
  }
  const architecture = metaString(file, "general.architecture");
  const arch = archOfGguf(
    required(file, "general.architecture", architecture),
    `${path}: general.architecture`,
  );
  const weights = createWeights(file);
  const built = arch.build({ kind: "gguf", metadata: file, weights });

  const vocab = readVocabulary(file, path, built.vocabSize);
  const tokenizer = createTokenizer(vocab);
  const template = metaString(file, "tokenizer.chat_template");
  const text = (id: number | null) => (id === null ? "" : vocab.tokens[id]!);
  return {
    ...loaded(name, arch.id, built),
    eosIds: ggufEosIds(file, path, vocab, tokenizer),
    tokenizer,
    template:
      template === undefined
        ? null
        : createTemplate(template, { bos: text(vocab.bosId), eos: text(vocab.eosId) }, path),
    decider: null,
  };
}

type GgufVocab = Extract<Parameters<typeof createTokenizer>[0], { kind: "gguf" }>;

function readVocabulary(m: Metadata, path: string, vocabSize: number): GgufVocab {
  const key = (suffix: string) => `tokenizer.ggml.${suffix}`;
  const tokens = required(m, key("tokens"), metaArray(m, key("tokens"))).strings();
  if (tokens.length !== vocabSize) {
    throw new ModelError(
      `${path}: ${key("tokens")} has ${tokens.length} tokens, the embedding ${vocabSize} rows`,
    );
  }
  const perToken = (suffix: string): GgufArray | undefined => {
    const array = metaArray(m, key(suffix));
    if (array !== undefined && array.length !== tokens.length) {
      throw new ModelError(
        `${path}: ${key(suffix)} has ${array.length} entries for ${tokens.length} tokens`,
      );
    }
    return array;
  };
  const types = perToken("token_type")?.numbers();
  const scores = perToken("scores")?.numbers();
  const id = (suffix: string) => metaInt(m, key(suffix), 0, tokens.length - 1) ?? null;
  return {
    kind: "gguf",
    model: required(m, key("model"), metaString(m, key("model"))),
    pre: metaString(m, key("pre")) ?? null,
    tokens,
    tokenTypes: types === undefined ? null : Int32Array.from(types),
    scores: scores === undefined ? null : Float32Array.from(scores),
    merges: metaArray(m, key("merges"))?.strings() ?? null,
    addBos: metaBool(m, key("add_bos_token")) ?? null,
    addEos: metaBool(m, key("add_eos_token")) ?? null,
    addSpacePrefix: metaBool(m, key("add_space_prefix")) ?? null,
    bosId: id("bos_token_id"),
    eosId: id("eos_token_id"),
    unkId: id("unknown_token_id"),
    where: path,
  };
}

/** Every end token: those the metadata names, and control tokens known to end a turn. */
function ggufEosIds(m: Metadata, path: string, vocab: GgufVocab, tokenizer: Tokenizer): number[] {
  const ids = new Set<number>();
  for (const kind of ["eos", "eot", "eom"]) {
    const id = metaInt(m, `tokenizer.ggml.${kind}_token_id`, 0, vocab.tokens.length - 1);
    if (id !== undefined) ids.add(id);
  }
  for (const text of END_TOKENS) {
    const id = tokenizer.idOf(text);
    if (id !== null && vocab.tokenTypes?.[id] === CONTROL) ids.add(id);
  }
  if (ids.size === 0) throw new ModelError(`${path}: tokenizer.ggml.eos_token_id is missing`);
  return [...ids];
}

function loaded(name: string, arch: string, built: ArchPlan) {
  return {
    name,
    arch,
    plan: built.plan.blob,
    registers: built.plan.registers,
    vocabSize: built.vocabSize,
    contextLength: built.contextLength,
  };
}
