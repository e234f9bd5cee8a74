// POST /v1/completions: a text or token ids as the prompt, as they are. Called by server.ts.

import type { Call, ServerContext } from "./context.ts";
import { generate, readJson, requireTextRoom } from "./generate.ts";
import { COMPLETION_FORMAT } from "./respond.ts";

/** Answers a completion request; see docs/api.md. */
export async function completions(context: ServerContext, call: Call): Promise<Response> {
  const fields = context.bodies.completion(await readJson(context, call));
  return generate(context, call, COMPLETION_FORMAT, fields, "prompt", () =>
    promptIds(context, fields.prompt),
  );
}

function promptIds(context: ServerContext, prompt: string | Int32Array): Int32Array {
  if (typeof prompt !== "string") return prompt;
  requireTextRoom(context, prompt, "prompt");
  return context.options.model.tokenizer.encode(prompt, true);
}
