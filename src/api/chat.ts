// POST /v1/chat/completions: messages through the model's chat template. Called by server.ts.

import { ApiError } from "../errors.ts";
import type { Call, ServerContext } from "./context.ts";
import { generate, readJson, requireTextRoom } from "./generate.ts";
import { CHAT_FORMAT } from "./respond.ts";

const FOLDED_NOTE =
  "note: the chat template takes no system message; its text goes on top of the first user message";

/** Answers a chat request; see docs/api.md. */
export async function chat(context: ServerContext, call: Call): Promise<Response> {
  const fields = context.bodies.chat(await readJson(context, call));
  const { template, tokenizer } = context.options.model;
  if (template === null) {
    throw new ApiError(400, "the model has no chat template; use /v1/completions", "messages");
  }
  return generate(context, call, CHAT_FORMAT, fields, "messages", () => {
    const { prompt, systemFolded } = template.render(fields.messages);
    if (systemFolded) context.noteOnce(FOLDED_NOTE);
    requireTextRoom(context, prompt, "messages");
    return tokenizer.encode(prompt, false);
  });
}
