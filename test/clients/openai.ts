// OpenAI's own client for Node, as the scripted tests drive it.

import OpenAI from "openai";
import { type Ask, type Client, EMPTY_SCHEMA, MODEL, rejection, type Thrown } from "./client.ts";

/** The fields that applications fill in though they mean nothing here. */
const NEUTRAL = {
  n: 1,
  frequency_penalty: 0,
  presence_penalty: 0,
  logprobs: false,
  logit_bias: {},
  tools: [],
  tool_choice: "none",
  response_format: { type: "text" },
  parallel_tool_calls: true,
  reasoning_effort: "low",
  store: false,
  metadata: { purpose: "test" },
  service_tier: "auto",
  user: "someone",
} as const;

export function openAiClient(url: string): Client {
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  return {
    async chat(ask) {
      const body = { ...requestOf(ask), ...NEUTRAL, metadata: { ...NEUTRAL.metadata }, tools: [] };
      const { choices, usage } = await openai.chat.completions.create(body);
      return {
        text: choices[0]?.message.content ?? "",
        finish: choices[0]?.finish_reason ?? null,
        promptTokens: usage?.prompt_tokens ?? 0,
        completionTokens: usage?.completion_tokens ?? 0,
      };
    },
    async stream(ask) {
      const stream = await openai.chat.completions.create({
        ...requestOf(ask),
        stream: true,
        stream_options: { include_usage: true },
      });
      const pieces: string[] = [];
      let finish: string | null = null;
      let usage: OpenAI.CompletionUsage | null | undefined;
      for await (const chunk of stream) {
        const [choice] = chunk.choices;
        if (choice?.delta.content) pieces.push(choice.delta.content);
        finish = choice?.finish_reason ?? finish;
        usage = chunk.usage ?? usage;
      }
      return {
        text: pieces.join(""),
        pieces: pieces.length,
        finish,
        promptTokens: usage?.prompt_tokens ?? 0,
        completionTokens: usage?.completion_tokens ?? 0,
      };
    },
    async abandon(ask, pieces) {
      const stream = await openai.chat.completions.create({ ...requestOf(ask), stream: true });
      let seen = 0;
      // Leaving the loop closes the connection: the client's documented way.
      for await (const _ of stream) if (++seen === pieces) break;
    },
    refusedChat: async (ask) =>
      thrown(await rejection(openai.chat.completions.create(requestOf(ask)))),
    async refusedFeature(feature) {
      const body = requestOf({ user: "Hi", maxTokens: 1 });
      const format = { name: "answer", schema: EMPTY_SCHEMA };
      const tries = {
        tools: () =>
          openai.chat.completions.create({
            ...body,
            tools: [{ type: "function", function: { name: "look", parameters: EMPTY_SCHEMA } }],
          }),
        response_format: () =>
          openai.chat.completions.parse({
            ...body,
            response_format: { type: "json_schema", json_schema: format },
          }),
        responses: () => openai.responses.create({ model: MODEL, input: "Hi" }),
      };
      return thrown(await rejection(tries[feature]()));
    },
  };
}

function requestOf(ask: Ask) {
  const system = ask.system === undefined ? [] : [{ role: "system" as const, content: ask.system }];
  return {
    model: MODEL,
    messages: [...system, { role: "user" as const, content: ask.user }],
    max_tokens: ask.maxTokens,
    stop: ask.stop ?? null,
    temperature: ask.temperature ?? null,
    top_p: ask.topP ?? null,
    seed: ask.seed ?? null,
  };
}

/** The client's errors in the fields that its users look at; LangChain for Node throws them too. */
export function thrown(error: unknown): Thrown {
  if (!(error instanceof OpenAI.APIError)) throw error;
  const { status, param, message } = error;
  return { name: error.constructor.name, status: status ?? 0, param: param ?? null, message };
}
