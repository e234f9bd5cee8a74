import { afterAll, beforeAll, expect, test } from "bun:test";
import OpenAI from "openai";
import { idsOf, MODEL, startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let client: OpenAI;

beforeAll(() => {
  server = startTestServer({ engine: { reply: () => idsOf("Hello 🙂") } });
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "unused", maxRetries: 0 });
});

afterAll(() => server.stop());

const messages = [{ role: "user" as const, content: "hi" }];

test("OpenAI's client reads a chat reply", async () => {
  const reply = await client.chat.completions.create({ model: MODEL, messages });
  expect(reply.choices[0]?.message.content).toBe("Hello 🙂");
  expect(reply.usage?.completion_tokens).toBe(10);
});

test("OpenAI's client reads a chat stream with usage", async () => {
  const stream = await client.chat.completions.create({
    model: MODEL,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let total = 0;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    total += chunk.usage?.total_tokens ?? 0;
  }
  expect(text).toBe("Hello 🙂");
  expect(total).toBe(30);
});

test("OpenAI's client reads completions, whole and streamed", async () => {
  const reply = await client.completions.create({ model: MODEL, prompt: "a", max_tokens: 5 });
  expect(reply.choices[0]).toMatchObject({ text: "Hello", finish_reason: "length" });
  let text = "";
  const stream = await client.completions.create({ model: MODEL, prompt: "a", stream: true });
  for await (const chunk of stream) text += chunk.choices[0]?.text;
  expect(text).toBe("Hello 🙂");
});

test("OpenAI's client lists the model", async () => {
  const names: string[] = [];
  for await (const model of client.models.list()) names.push(model.id);
  expect(names).toEqual([MODEL]);
});

test("OpenAI's client sees refusals as its own errors", async () => {
  const body = { model: MODEL, messages, top_p: 2 };
  const refused: unknown = await client.chat.completions.create(body).catch((error) => error);
  expect(refused).toBeInstanceOf(OpenAI.BadRequestError);
  expect(refused).toMatchObject({ param: "top_p", status: 400 });
  const embedding = { model: MODEL, input: "a" };
  const missing: unknown = await client.embeddings.create(embedding).catch((error) => error);
  expect(missing).toBeInstanceOf(OpenAI.NotFoundError);
});
