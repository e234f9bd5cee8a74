// POST /v1/chat/completions: messages through the model's chat template. The work it makes of a body
// is also that of a WebSocket's chat. Called by server.ts and websocket.ts.

import type { JsonDocument } from "../decide/json.ts";
import { ApiError } from "../errors.ts";
import type { Call, ServerContext } from "./context.ts";
import { generate, readJson } from "./generate.ts";
import type { Work } from "./job.ts";
import { requireTextRoom } from "./prompt.ts";
import { CHAT_FORMAT } from "./respond.ts";
import type { BodyReaders } from "./schema.ts";

const FOLDED_NOTE =
  "the model's chat template takes no system message; its text goes on top of the first user message";

/** Answers a chat request; see docs/api.md. */
export async function chat(context: ServerContext, call: Call): Promise<Response> {
  const document = await readJson(context, call);
  return generate(context, call, chatWork(context, context.bodies, document));
}

/** What a body asks for. @throws ApiError 400 naming the field */
export function chatWork(
  context: ServerContext,
  bodies: BodyReaders,
  document: JsonDocument,
): Work {
  const fields = bodies.chat(document);
  const { template, tokenizer } = context.options.model;
  if (template === null) {
    throw new ApiError(400, "the model has no chat template; use /v1/completions", "messages");
  }
  return {
    format: CHAT_FORMAT,
    fields,
    promptParam: "messages",
    makeIds() {
      const { prompt, systemFolded } = template.render(fields.messages);
      if (systemFolded) context.noteOnce(FOLDED_NOTE);
      requireTextRoom(context, prompt, "messages", fields.maxTokens);
      return tokenizer.encode(prompt, false);
    },
  };
}
