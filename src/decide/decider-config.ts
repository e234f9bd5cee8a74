// decider_config.json, which makes a model folder a decider: read once at load, strictly, so that no
// model is read in another form than it was trained in. Called by model/open.ts.

import { join } from "node:path";
import { z } from "zod";
import { ModelError } from "../errors.ts";
import { checked, duplicateKey, parseJsonObject, readTextFile } from "../model/json-file.ts";
import type { Question } from "./request.ts";

const FILE_NAME = "decider_config.json";
/** The contract's limit; published files have a few hundred bytes. */
const MAX_BYTES = 64 * 1024;
/** There are no more labels (decider.ts). */
export const MAX_LABELS = 255;
/** What decider's own package reads of a state when nothing else is set. */
const DEFAULT_STATE_TOKENS = 32_768;
/** Far above every context. */
const MOST_STATE_TOKENS = 2 ** 30;

/** What the reading needs of the file. */
export interface DeciderConfig {
  readonly temperature: number;
  /** Temperatures that replace it for a type of question. */
  readonly temperatureByType: { readonly [type in Question["type"]]?: number | undefined };
  /** Each level of a score is asked on its own. */
  readonly isolatedLevels: boolean;
  readonly maxOptions: number;
  readonly maxStateTokens: number;
}

const temperature = z
  .number("wanted a number above 0")
  .refine((value) => value > 0, "wanted a number above 0");
const flag = z.boolean("wanted true or false").optional();
const text = z.string("wanted a string").optional();
/** A flag whose other value is a form that is not built. */
const onlyFalse = z.literal(false, "only false is supported by this release");
const notBuilt = z.undefined("not supported by this release").optional();
const byType = z
  .strictObject(
    {
      choice: temperature.optional(),
      noul: temperature.optional(),
      score: temperature.optional(),
    },
    "wanted temperatures for choice, noul and score",
  )
  .optional();

const count = (least: number, most: number) => {
  const wanted = `wanted an integer from ${least} to ${most}`;
  return z.int(wanted).min(least, wanted).max(most, wanted).optional();
};

/** Every key that decider's package knows; those without effect on this reading are only checked. */
const SCHEMA = z.object({
  temperature,
  neutralize_none: onlyFalse,
  isolated_levels: flag,
  schema_first: onlyFalse.optional(),
  layout: z.literal("plain", 'only "plain" is supported by this release').optional(),
  chat_template: onlyFalse.optional(),
  images: onlyFalse.optional(),
  max_options: count(2, MAX_LABELS),
  max_state_tokens: count(1, MOST_STATE_TOKENS),
  temperature_by_type: byType,
  temperature_by_options: notBuilt,
  second_reading: notBuilt,
  schema_first_trained: flag,
  temperature_schema_first: temperature.optional(),
  temperature_schema_first_by_type: byType,
  vllm_attention: text,
  version: text,
  base: text,
  release_date: text,
});

/**
 * The config in a model folder; null when the model is no decider.
 * @throws ModelError naming the file and the key, or the file and its limit
 */
export function readDeciderConfig(dir: string): DeciderConfig | null {
  const path = join(dir, FILE_NAME);
  const json = readTextFile(path, MAX_BYTES);
  return json === null ? null : parseDeciderConfig(json, path);
}

/** @param where what messages call the file */
export function parseDeciderConfig(json: string, where: string): DeciderConfig {
  const object = parseJsonObject(json, where);
  const twice = duplicateKey(json);
  if (twice !== null) throw new ModelError(`${where}: ${twice}: the key is there twice`);
  const unknown = Object.keys(object).find((key) => !Object.hasOwn(SCHEMA.shape, key));
  if (unknown !== undefined) throw new ModelError(`${where}: ${unknown}: unknown key`);
  const config = checked(SCHEMA, object, where);
  return {
    temperature: config.temperature,
    temperatureByType: config.temperature_by_type ?? {},
    isolatedLevels: config.isolated_levels ?? false,
    maxOptions: config.max_options ?? MAX_LABELS,
    maxStateTokens: config.max_state_tokens ?? DEFAULT_STATE_TOKENS,
  };
}
