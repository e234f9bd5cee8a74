// The clients that people really use, against the compiled server with the default model: each must hand
// its user what a plain request gets, in its own types and errors. One server for all of them.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { generateText, streamText } from "ai";
import OpenAI from "openai";
import { type Served, startServe } from "../support/binary.ts";
import { bodyOf, type WholeReply } from "../support/server.ts";
import { aiSdkClient, provider } from "./ai-sdk.ts";
import { type Answer, type Ask, type Client, type Feature, MODEL } from "./client.ts";
import { langChainClient } from "./langchain.ts";
import { openAiClient } from "./openai.ts";
import { type MetricFamily, type PythonClients, startPython } from "./python.ts";

/** A fresh clone installs the Python clients first, and the machine may be busy. */
const START_MS = 300_000;
setDefaultTimeout(60_000);
/** The promise about clients that leave. */
const FREED_MS = 250;
/** For what a busy machine does soon. */
const EVENTUALLY_MS = 10_000;
/** A second, less what a timer may be early. */
const RETRY_AFTER_MS = 990;
const ROWS = 4;
const QUEUE = 2;

const QUESTION: Ask = {
  user: "What is the capital of France?",
  system: "Be short.",
  maxTokens: 16,
};
/** Runs for hundreds of tokens. */
const STORY: Ask = { user: "Write a long story about a ship and its captain.", maxTokens: 2000 };

let served: Served;
let python: PythonClients;
beforeAll(async () => {
  const limits = ["--max-batch", String(ROWS), "--queue-depth", String(QUEUE)];
  served = await startServe([...limits, "--metrics-compat", "vllm"]);
  python = await startPython(served.url);
}, START_MS);
afterAll(() => {
  served.process.kill();
  python.stop();
});

/** Each library, and its names for a 400 and a 404. */
const CLIENTS: [string, () => Client, string, string][] = [
  ["OpenAI for Node", () => openAiClient(served.url), "BadRequestError", "NotFoundError"],
  ["AI SDK", () => aiSdkClient(served.url), "AI_APICallError", "AI_APICallError"],
  ["LangChain for Node", () => langChainClient(served.url), "BadRequestError", "NotFoundError"],
  ["OpenAI for Python", () => python.openai, "BadRequestError", "NotFoundError"],
  ["LangChain for Python", () => python.langchain, "BadRequestError", "NotFoundError"],
];

describe.each(CLIENTS)("%s", (_, makeClient, badRequest, notFound) => {
  let client: Client;
  let plain: Answer;
  beforeAll(async () => {
    client = makeClient();
    plain = await plainAnswer(QUESTION);
  });

  test("hands on a whole reply and its usage, with a system message", async () => {
    expect(await client.chat(QUESTION)).toEqual(plain);
  });

  test("hands on a stream whose pieces make the same reply, and its usage", async () => {
    const { pieces, ...answer } = await client.stream(QUESTION);
    expect(answer).toEqual(plain);
    expect(pieces).toBeGreaterThan(1);
  });

  test("stops at the token limit", async () => {
    const short = { ...QUESTION, maxTokens: 3 };
    const cut = { finish: "length", completionTokens: 3 };
    expect(await client.chat(short)).toMatchObject(cut);
    expect(await client.stream(short)).toMatchObject(cut);
  });

  test("stops before a stop string", async () => {
    const stop = plain.text.split(" ")[2]!;
    const before = { text: plain.text.slice(0, plain.text.indexOf(stop)), finish: "stop" };
    expect(await client.chat({ ...QUESTION, stop })).toMatchObject(before);
    expect(await client.stream({ ...QUESTION, stop })).toMatchObject(before);
  });

  test("draws the same reply with the same seed, another with another", async () => {
    const drawn = { ...QUESTION, temperature: 1.5 };
    const one = await client.chat({ ...drawn, seed: 1 });
    expect(await client.stream({ ...drawn, seed: 1 })).toMatchObject(one);
    expect((await client.chat({ ...drawn, seed: 2 })).text).not.toBe(one.text);
  });

  test("throws its own error for a value that is refused, naming the field", async () => {
    const error = await client.refusedChat({ ...QUESTION, topP: 2 });
    expect(error).toMatchObject({ name: badRequest, status: 400, param: "top_p" });
    expect(error.message).toContain("must be 0 < p <= 1, got 2");
  });

  test.each<[Feature, string, number, string | null, string]>([
    ["tools", badRequest, 400, "tools", "tools is not implemented"],
    ["response_format", badRequest, 400, "response_format", "response_format is not implemented"],
    ["responses", notFound, 404, null, "no such path"],
  ])("throws its own error for %s", async (feature, name, status, param, message) => {
    const error = await client.refusedFeature(feature);
    expect(error).toMatchObject({ name, status, param });
    expect(error.message).toContain(message);
  });

  test("frees the server at once when its user leaves a stream", async () => {
    await client.abandon(STORY, 3);
    await expectFreed();
  });
});

const PROMPT = "The capital of France is";

test("OpenAI's clients complete a text, whole and streamed", async () => {
  const openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: "none" });
  const body = { model: MODEL, prompt: PROMPT, max_tokens: 6 };
  const { text } = (await openai.completions.create(body)).choices[0]!;
  expect(text).not.toBe("");
  let joined = "";
  for await (const chunk of await openai.completions.create({ ...body, stream: true })) {
    joined += chunk.choices[0]?.text ?? "";
  }
  expect(joined).toBe(text);
  expect(await python.complete(PROMPT, 6)).toEqual([text, text]);
});

test("the AI SDK completes a text, whole and streamed", async () => {
  const model = provider(served.url).completion(MODEL);
  const { text, usage } = await generateText({ model, prompt: PROMPT, maxOutputTokens: 6 });
  const stream = streamText({ model, prompt: PROMPT, maxOutputTokens: 6 });
  expect((await Array.fromAsync(stream.textStream)).join("")).toBe(text);
  expect(await stream.usage).toEqual(usage);
  expect(usage.outputTokens).toBe(6);
});

test("OpenAI's clients list the model", async () => {
  const openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: "none" });
  const models = await Array.fromAsync(openai.models.list());
  expect(models.map((model) => model.id)).toEqual([MODEL]);
  expect(await python.models()).toEqual([MODEL]);
});

test("all clients at the same time get what each gets alone", async () => {
  const plain = await plainAnswer(QUESTION);
  const answers = CLIENTS.map(([, makeClient]) => makeClient().stream(QUESTION));
  for (const answer of await Promise.all(answers)) expect(answer).toMatchObject(plain);
});

describe("a full server", () => {
  /** Fills the rows and the queue with streams that go on; returns what ends them. */
  async function fill(): Promise<() => Promise<void>> {
    const leave = new AbortController();
    const body = { ...bodyOfAsk(STORY), stream: true, ignore_eos: true };
    const streams = Array.from({ length: ROWS + QUEUE }, () =>
      post(body, leave.signal).catch(() => null),
    );
    await eventually(
      async () => (await gauge("running")) === ROWS && (await gauge("waiting")) === QUEUE,
    );
    return async () => {
      leave.abort();
      await Promise.all(streams);
      await expectFreed();
    };
  }

  test("is a RateLimitError, and a client that may retry waits as told and gets its reply", async () => {
    const refusedBefore = await refusals();
    const release = await fill();
    const once = openAiClient(served.url);
    const error = await once.refusedChat(QUESTION);
    expect(error).toMatchObject({ name: "RateLimitError", status: 429 });
    const patient = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: "none", maxRetries: 5 });
    const started = performance.now();
    const reply = patient.completions.create({ model: MODEL, prompt: PROMPT, max_tokens: 2 });
    await eventually(async () => (await refusals()) >= refusedBefore + 2);
    await release();
    expect((await reply).usage?.completion_tokens).toBe(2);
    expect(performance.now() - started).toBeGreaterThan(RETRY_AFTER_MS);
  });

  test("has metrics that the Prometheus client reads, named as documented", async () => {
    const before = await python.parseMetrics(await metrics());
    const release = await fill();
    const during = await python.parseMetrics(await metrics());
    await release();
    const after = await python.parseMetrics(await metrics());
    for (const families of [before, during, after]) expectDocumented(families);
    expectGrowth(before, during);
    expectGrowth(during, after);
    const ended = (families: readonly MetricFamily[]) => seriesOf(families).get(ENDED) ?? 0;
    expect(ended(after) - ended(before)).toBe(ROWS + QUEUE);
  });
});

/** /metrics: each name of docs/api.md as the Prometheus client gives it, without `_total`. */
const DOCUMENTED = {
  caldrix_http_requests: "counter",
  caldrix_requests_waiting: "gauge",
  caldrix_requests_running: "gauge",
  caldrix_kv_usage_ratio: "gauge",
  caldrix_prompt_tokens: "counter",
  caldrix_generated_tokens: "counter",
  caldrix_cached_prompt_tokens: "counter",
  caldrix_queue_time_seconds: "histogram",
  caldrix_time_to_first_token_seconds: "histogram",
  caldrix_time_per_output_token_seconds: "histogram",
  caldrix_end_to_end_seconds: "histogram",
  "vllm:num_requests_waiting": "gauge",
  "vllm:num_requests_running": "gauge",
  "vllm:kv_cache_usage_perc": "gauge",
};

function expectDocumented(families: readonly MetricFamily[]): void {
  const types = families.map(({ name, type }) => [name, type]);
  // No name comes twice.
  expect(types.length).toBe(new Set(families.map(({ name }) => name)).size);
  expect(Object.fromEntries(types)).toMatchObject(DOCUMENTED);
  for (const { name, type, help, samples } of families) {
    expect(help).not.toBe("");
    for (const [sample, labels, value] of samples) {
      expect(Number.isFinite(value) && value >= 0).toBe(true);
      if (type === "counter") expect(sample).toBe(`${name}_total`);
      if (name.endsWith("_ratio")) expect(value).toBeLessThanOrEqual(1);
      if (name === "caldrix_http_requests")
        expect(Object.keys(labels)).toEqual(["route", "status"]);
    }
    if (type === "histogram") expectHistogram(name, samples);
  }
}

/** Bounds and counts rise, and the last bucket holds everything. */
function expectHistogram(name: string, samples: MetricFamily["samples"]): void {
  expect(name).toEndWith("_seconds");
  const buckets = samples.filter(([sample]) => sample === `${name}_bucket`);
  const rising = (values: number[]) => expect(values).toEqual(values.toSorted((a, b) => a - b));
  rising(buckets.map(([, { le }]) => (le === "+Inf" ? Number.POSITIVE_INFINITY : Number(le))));
  rising(buckets.map(([, , count]) => count));
  const [, last, count] = buckets.at(-1)!;
  expect(last).toEqual({ le: "+Inf" });
  expect(samples).toContainEqual([`${name}_count`, {}, count]);
}

/** How many generations have ended. */
const ENDED = "caldrix_end_to_end_seconds_count {}";

/** Everything that counts, under its name and labels. */
function seriesOf(families: readonly MetricFamily[]): Map<string, number> {
  const counting = families.filter(({ type }) => type !== "gauge");
  const samples = counting.flatMap((family) => family.samples);
  return new Map(
    samples.map(([name, labels, value]) => [`${name} ${JSON.stringify(labels)}`, value]),
  );
}

/** Nothing that counts may fall, and no series may go. */
function expectGrowth(from: readonly MetricFamily[], to: readonly MetricFamily[]): void {
  const later = seriesOf(to);
  for (const [name, value] of seriesOf(from)) {
    expect(later.get(name)).toBeGreaterThanOrEqual(value);
  }
}

function post(body: object, signal: AbortSignal | null = null): Promise<Response> {
  const url = `${served.url}/v1/chat/completions`;
  return fetch(url, { method: "POST", body: JSON.stringify(body), signal });
}

function bodyOfAsk({ user, system, maxTokens }: Ask) {
  const systems = system === undefined ? [] : [{ role: "system", content: system }];
  const messages = [...systems, { role: "user", content: user }];
  return { model: MODEL, messages, max_tokens: maxTokens };
}

/** The reply to a plain request. */
async function plainAnswer(ask: Ask): Promise<Answer> {
  const { choices, usage } = await bodyOf<WholeReply>(await post(bodyOfAsk(ask)));
  return {
    text: choices[0].message?.content ?? "",
    finish: choices[0].finish_reason,
    promptTokens: usage.prompt_tokens,
    completionTokens: usage.completion_tokens,
  };
}

async function metrics(): Promise<string> {
  return (await fetch(`${served.url}/metrics`)).text();
}

async function gauge(name: "running" | "waiting"): Promise<number> {
  return Number((await metrics()).match(new RegExp(`^caldrix_requests_${name} (\\d+)$`, "m"))?.[1]);
}

/** Asks until it is so; every question is a request to the server. */
async function eventually(isSo: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + EVENTUALLY_MS;
  while (!(await isSo())) expect(performance.now()).toBeLessThan(end);
}

/** How often the chat route and the completions route together have answered 429. */
async function refusals(): Promise<number> {
  const counts = (await metrics()).matchAll(/status="429"} (\d+)/g);
  return counts.reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Nothing runs within the promised time, and the last request ended because its client left. */
async function expectFreed(): Promise<void> {
  const left = performance.now();
  while ((await gauge("running")) > 0) expect(performance.now() - left).toBeLessThan(FREED_MS);
  const { requests } = await bodyOf<{ requests: { status: number }[] }>(
    await fetch(`${served.url}/debug/requests`),
  );
  expect(requests[0]?.status).toBe(499);
}
