// POST /v1/completions: a text or token ids as the prompt, as they are. Called by server.ts.

import { ApiError } from "../errors.ts";
import type { Call, ServerContext } from "./context.ts";
import { generate, readJson, requireTextRoom } from "./generate.ts";
import { COMPLETION_FORMAT } from "./respond.ts";

/** Answers a completion request; see docs/api.md. */
export async function completions(context: ServerContext, call: Call): Promise<Response> {
  const fields = context.bodies.completion(await readJson(context, call));
  return generate(context, call, COMPLETION_FORMAT, fields, "prompt", () => {
    const ids = promptIds(context, fields.prompt);
    if (ids.length > 0) return ids;
    const { bosId } = context.options.model.tokenizer;
    if (bosId !== null) return Int32Array.of(bosId);
    throw new ApiError(400, "must not be empty: the model has no token to start from", "prompt");
  });
}

function promptIds(context: ServerContext, prompt: string | Int32Array): Int32Array {
  if (typeof prompt !== "string") return prompt;
  requireTextRoom(context, prompt, "prompt");
  return context.options.model.tokenizer.encode(prompt, true);
}
