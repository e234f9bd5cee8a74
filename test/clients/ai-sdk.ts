// The Vercel AI SDK with its OpenAI provider, as the scripted tests drive it. `.chat()` and `.completion()`
// are the provider's models for servers like this one; its default is the Responses API.

import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, Output, streamText, tool } from "ai";
import { z } from "zod";
import { type Ask, type Client, MODEL, rejection, type Thrown } from "./client.ts";

// Its completion model says at each call that it knows no tools.
globalThis.AI_SDK_LOG_WARNINGS = false;

/** The provider's fields that mean nothing here; the system message goes out as `developer`. */
const NEUTRAL = {
  parallelToolCalls: true,
  reasoningEffort: "low",
  store: false,
  metadata: { purpose: "test" },
  serviceTier: "auto",
  logprobs: false,
  user: "someone",
  systemMessageMode: "developer",
} as const;

export function aiSdkClient(url: string): Client {
  const openai = provider(url);
  const model = openai.chat(MODEL);
  return {
    async chat(ask) {
      const reply = await generateText({
        ...settingsOf(ask),
        model,
        presencePenalty: 0,
        frequencyPenalty: 0,
        providerOptions: { openai: NEUTRAL },
      });
      return { text: reply.text, ...countsOf(reply.usage), finish: reply.finishReason };
    },
    async stream(ask) {
      const reply = streamText({ ...settingsOf(ask), model });
      const pieces = await Array.fromAsync(reply.textStream);
      const counts = countsOf(await reply.usage);
      const finish = await reply.finishReason;
      return { text: pieces.join(""), pieces: pieces.length, finish, ...counts };
    },
    async abandon(ask, pieces) {
      const leave = new AbortController();
      const reply = streamText({ ...settingsOf(ask), model, abortSignal: leave.signal });
      let seen = 0;
      for await (const _ of reply.textStream) if (++seen === pieces) leave.abort();
    },
    refusedChat: async (ask) =>
      thrown(await rejection(generateText({ ...settingsOf(ask), model }))),
    async refusedFeature(feature) {
      const ask = settingsOf({ user: "Hi", maxTokens: 1 });
      const inputSchema = z.object({});
      const tries = {
        tools: () => generateText({ ...ask, model, tools: { look: tool({ inputSchema }) } }),
        response_format: () =>
          generateText({ ...ask, model, output: Output.object({ schema: inputSchema }) }),
        responses: () => generateText({ ...ask, model: openai(MODEL) }),
      };
      return thrown(await rejection(tries[feature]()));
    },
  };
}

export function provider(url: string) {
  return createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
}

function settingsOf(ask: Ask) {
  return {
    ...(ask.system === undefined ? {} : { system: ask.system }),
    prompt: ask.user,
    maxOutputTokens: ask.maxTokens,
    ...(ask.stop === undefined ? {} : { stopSequences: [ask.stop] }),
    ...(ask.temperature === undefined ? {} : { temperature: ask.temperature }),
    ...(ask.topP === undefined ? {} : { topP: ask.topP }),
    ...(ask.seed === undefined ? {} : { seed: ask.seed }),
    maxRetries: 0,
  };
}

function countsOf(usage: { inputTokens: number | undefined; outputTokens: number | undefined }) {
  return { promptTokens: usage.inputTokens ?? 0, completionTokens: usage.outputTokens ?? 0 };
}

const ERROR_BODY = z.object({ error: z.object({ param: z.string().nullable() }) });

function thrown(error: unknown): Thrown {
  if (!APICallError.isInstance(error)) throw error;
  const { param } = ERROR_BODY.parse(error.data).error;
  return { name: error.name, status: error.statusCode ?? 0, param, message: error.message };
}
