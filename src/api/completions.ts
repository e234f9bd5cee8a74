// POST /v1/completions: a text or token ids as the prompt, as they are. The work it makes of a body is
// also that of a WebSocket's completion. Called by server.ts and websocket.ts.

import type { JsonDocument } from "../decide/json.ts";
import type { Call, ServerContext } from "./context.ts";
import { generate, readJson } from "./generate.ts";
import type { Work } from "./job.ts";
import { requireTextRoom } from "./prompt.ts";
import { COMPLETION_FORMAT } from "./respond.ts";
import type { BodyReaders } from "./schema.ts";

/** Answers a completion request; see docs/api.md. */
export async function completions(context: ServerContext, call: Call): Promise<Response> {
  const document = await readJson(context, call);
  return generate(context, call, completionWork(context, context.bodies, document));
}

/** What a body asks for. @throws ApiError 400 naming the field */
export function completionWork(
  context: ServerContext,
  bodies: BodyReaders,
  document: JsonDocument,
): Work {
  const fields = bodies.completion(document);
  const { prompt, maxTokens } = fields;
  return {
    format: COMPLETION_FORMAT,
    fields,
    promptParam: "prompt",
    makeIds() {
      if (typeof prompt !== "string") return prompt;
      requireTextRoom(context, prompt, "prompt", maxTokens);
      return context.options.model.tokenizer.encode(prompt, true);
    },
  };
}
