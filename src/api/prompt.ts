// Whether a prompt fits: the bound on its text before it is tokenised and the exact count after. The
// strict mode's check takes only bytes, so that it is the same for every tokenizer. Called by chat.ts,
// completions.ts and job.ts.

import { ApiError } from "../errors.ts";
import type { ServerContext } from "./context.ts";

/** The strict mode's context: at most this, whatever the model could hold. */
export const STRICT_CONTEXT = 4096;

/**
 * Refuses text that cannot fit, before the tokenizer spends time on it. In the default mode: text so
 * long that even the vocabulary's longest tokens would be too many. In the strict mode: every byte
 * counts as a token, and the answer's limit is added.
 * @param text the whole prompt, the template's own words included
 * @param maxTokens the answer's limit; null for none
 */
export function requireTextRoom(
  context: ServerContext,
  text: string,
  param: string,
  maxTokens: number | null,
): void {
  const { engine, model, strict } = context.options;
  const bytes = Buffer.byteLength(text);
  if (!strict) {
    const least = Math.ceil(bytes / model.tokenizer.longestTokenBytes);
    requireRoom(least, engine.context, param, "at least ");
    return;
  }
  const most = Math.min(STRICT_CONTEXT, engine.context);
  const counted = bytes + (maxTokens ?? 0);
  if (counted <= most) return;
  const message = `${bytes} bytes of prompt and template and max_tokens ${maxTokens} make ${counted}; at most ${most} are admitted`;
  throw new ApiError(400, message, param);
}

/** Refuses a prompt that leaves no room for an answer. @param bound "at least " for a lower bound */
export function requireRoom(nTokens: number, context: number, param: string, bound: string): void {
  if (nTokens < context) return;
  const message =
    `the prompt has ${bound}${nTokens} tokens; ` +
    `the context holds ${context}, one of them for the answer`;
  throw new ApiError(400, message, param);
}

/** An empty prompt starts from the model's BOS token; without one there is nothing to start from. */
export function startable(ids: Int32Array, bosId: number | null, param: string): Int32Array {
  if (ids.length > 0) return ids;
  if (bosId !== null) return Int32Array.of(bosId);
  throw new ApiError(400, "must not be empty: the model has no token to start from", param);
}
