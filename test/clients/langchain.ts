// LangChain's ChatOpenAI for Node, as the scripted tests drive it.

import { HumanMessage, SystemMessage, type UsageMetadata } from "@langchain/core/messages";
import { ChatOpenAI, type ChatOpenAIFields } from "@langchain/openai";
import { type Answer, type Ask, type Client, EMPTY_SCHEMA, MODEL, rejection } from "./client.ts";
import { thrown } from "./openai.ts";

/** The fields that LangChain fills in, or lets its users fill in, though they mean nothing here. */
const NEUTRAL: ChatOpenAIFields = {
  n: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  logprobs: false,
  logitBias: {},
  user: "someone",
  modelKwargs: { parallel_tool_calls: true, store: false },
  reasoning: { effort: "low" },
  service_tier: "auto",
};

export function langChainClient(url: string): Client {
  return {
    async chat(ask) {
      // batch() runs invoke(), here twice at the same time.
      const messages = messagesOf(ask);
      const model = chatModel(url, ask, NEUTRAL);
      const [reply, other] = await model.batch([messages, messages], optionsOf(ask));
      if (reply?.text !== other?.text) throw new Error("the two replies of a batch differ");
      return answerOf(reply);
    },
    async stream(ask) {
      const stream = await chatModel(url, ask).stream(messagesOf(ask), optionsOf(ask));
      // Not concat(): the library makes generic messages of chunks without a role, and sums of those
      // have no usage.
      const texts: string[] = [];
      let last = answerOf();
      for await (const chunk of stream) {
        const part = answerOf(chunk);
        if (part.text !== "") texts.push(part.text);
        last = { ...part, finish: part.finish ?? last.finish };
      }
      return { ...last, text: texts.join(""), pieces: texts.length };
    },
    async abandon(ask, pieces) {
      const stream = await chatModel(url, ask).stream(messagesOf(ask));
      let seen = 0;
      for await (const _ of stream) if (++seen === pieces) break;
    },
    refusedChat: async (ask) =>
      thrown(await rejection(chatModel(url, ask).invoke(messagesOf(ask)))),
    async refusedFeature(feature) {
      const ask = { user: "Hi", maxTokens: 1 };
      const look = { type: "function", function: { name: "look", parameters: EMPTY_SCHEMA } };
      const tries = {
        tools: () => chatModel(url, ask).bindTools([look]).invoke("Hi"),
        response_format: () => chatModel(url, ask).withStructuredOutput(EMPTY_SCHEMA).invoke("Hi"),
        responses: () => chatModel(url, ask, { useResponsesApi: true }).invoke("Hi"),
      };
      return thrown(await rejection(tries[feature]()));
    },
  };
}

function chatModel(url: string, ask: Ask, more: ChatOpenAIFields = {}): ChatOpenAI {
  return new ChatOpenAI({
    model: MODEL,
    apiKey: "none",
    maxRetries: 0,
    configuration: { baseURL: `${url}/v1` },
    maxTokens: ask.maxTokens,
    ...(ask.stop === undefined ? {} : { stop: [ask.stop] }),
    ...(ask.temperature === undefined ? {} : { temperature: ask.temperature }),
    ...(ask.topP === undefined ? {} : { topP: ask.topP }),
    ...more,
  });
}

function messagesOf(ask: Ask) {
  const system = ask.system === undefined ? [] : [new SystemMessage(ask.system)];
  return [...system, new HumanMessage(ask.user)];
}

function optionsOf(ask: Ask) {
  return ask.seed === undefined ? {} : { seed: ask.seed };
}

/** What is read of a message; the library's own type of the usage depends on its structures. */
interface Reply {
  readonly text: string;
  readonly usage_metadata?: UsageMetadata | undefined;
  readonly response_metadata: Readonly<Record<string, unknown>>;
}

function answerOf(message?: Reply): Answer {
  const usage = message?.usage_metadata;
  const finish: unknown = message?.response_metadata.finish_reason;
  return {
    text: message?.text ?? "",
    finish: typeof finish === "string" ? finish : null,
    promptTokens: usage?.input_tokens ?? 0,
    completionTokens: usage?.output_tokens ?? 0,
  };
}
