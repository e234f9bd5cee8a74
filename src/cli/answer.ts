// One answer of the engine as text, for `caldrix run`: prompt to ids, ids to text as it comes.

import { freshSeed } from "../engine/sampling.ts";
import type { EngineClient } from "../engine/types.ts";
import { ModelError } from "../errors.ts";
import type { LoadedModel } from "../model/types.ts";
import { createDetokenizer } from "../text/detokenizer.ts";
import type { ChatMessage } from "../text/types.ts";
import type { FlagValues } from "./flags.ts";
import { samplingOf } from "./load.ts";

/** A model that answers, and how. */
export interface Session {
  readonly model: LoadedModel;
  readonly engine: EngineClient;
  readonly flags: FlagValues;
}

/** A prompt that does not fit the context. */
export class TooLong extends ModelError {}

/**
 * Ids of what is said so far: through the chat template, or the last text as it is for a base model.
 * @throws TooLong naming both lengths
 */
export function promptIds(
  { model, engine }: Session,
  messages: readonly ChatMessage[],
): Int32Array {
  const { template, tokenizer } = model;
  const ids = template
    ? tokenizer.encode(template.render(messages).prompt, false)
    : tokenizer.encode(messages.at(-1)?.content ?? "", true);
  if (ids.length >= 1 && ids.length < engine.context) return ids;
  throw new TooLong(
    `the prompt has ${ids.length} tokens; wanted 1 to ${engine.context - 1} in a context of ${engine.context}`,
  );
}

/** Text of the answer, piece by piece; ends early when the signal aborts. */
export async function* answer(
  { model, engine, flags }: Session,
  ids: Int32Array,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  const sampling = samplingOf(flags);
  const detokenizer = createDetokenizer(model.tokenizer);
  const events = engine.submit(
    {
      ids,
      maxTokens: flags["max-tokens"] ?? engine.context - ids.length,
      stopIds: model.eosIds,
      sampling: { ...sampling, seed: sampling.seed ?? freshSeed() },
    },
    signal,
  );
  for await (const event of events) {
    if (event.kind !== "tokens") continue;
    for (const id of event.ids) {
      const text = detokenizer.push(id);
      if (text !== "") yield text;
    }
  }
  const rest = detokenizer.end();
  if (rest !== "") yield rest;
}

/** A model's text must not steer the terminal: control characters other than newline and tab go. */
export function forTerminal(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "");
}
