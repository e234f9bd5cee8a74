import { afterEach, describe, expect, test } from "bun:test";
import {
  BOS,
  bodyOf,
  bracketTemplate,
  byteTokenizer,
  chatBody,
  completionBody,
  EOS,
  idsOf,
  LONG,
  MODEL,
  SILENT,
  startTestServer,
  type TestServer,
  type TestServerOptions,
  type WholeReply,
  type WireError,
} from "../support/server.ts";

let server: TestServer;

afterEach(() => server.stop());

function start(options: TestServerOptions = {}): TestServer {
  server = startTestServer(options);
  return server;
}

/** The data lines of an event stream; comments dropped. */
function dataOf(body: string): string[] {
  return body
    .split("\n\n")
    .filter((event) => event.startsWith("data: "))
    .map((event) => event.slice(6));
}

async function whole(path: string, body: Record<string, unknown>): Promise<WholeReply> {
  return bodyOf(await server.post(path, body));
}

interface Chunk {
  readonly choices: readonly {
    readonly delta?: { readonly content?: string };
    readonly text?: string;
    readonly finish_reason: string | null;
    readonly token_ids?: readonly number[];
  }[];
  readonly usage?: Record<string, number>;
}

async function chunksOf(path: string, body: Record<string, unknown>): Promise<Chunk[]> {
  const response = await server.post(path, { ...body, stream: true });
  expect(response.status).toBe(200);
  const data = dataOf(await response.text());
  expect(data.pop()).toBe("[DONE]");
  return data.map((text): Chunk => JSON.parse(text));
}

function textOf(chunks: readonly Chunk[]): string {
  return chunks.map((c) => c.choices[0]?.delta?.content ?? c.choices[0]?.text ?? "").join("");
}

function streamedIds(chunks: readonly Chunk[]): number[] {
  return chunks.flatMap((chunk) => [...(chunk.choices[0]?.token_ids ?? [])]);
}

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";
const reply = (text: string) => ({ reply: () => idsOf(text) });

describe("whole replies", () => {
  test("answer a chat in the contract's bytes", async () => {
    start({ engine: reply("Hi\n") });
    const response = await server.post(CHAT, chatBody({ max_tokens: 3 }));
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toBe("application/json");
    const text = await response.text();
    const created = /"created":(\d+)/.exec(text)?.[1];
    expect(Math.abs(Number(created) - Date.now() / 1000)).toBeLessThan(60);
    expect(text).toBe(
      '{"choices":[{"finish_reason":"length","index":0,"message":{"content":"Hi\\n","role":"assistant"}}],' +
        `"created":${created},"id":"chatcmpl-1","model":"${MODEL}","object":"chat.completion",` +
        '"usage":{"completion_tokens":3,"prompt_tokens":20,"total_tokens":23}}',
    );
  });

  test("answer a completion in the contract's bytes", async () => {
    start({ engine: reply(" Paris") });
    await server.post(CHAT, chatBody());
    const text = await (await server.post(COMPLETIONS, completionBody())).text();
    const created = /"created":(\d+)/.exec(text)?.[1];
    expect(text).toBe(
      '{"choices":[{"finish_reason":"stop","index":0,"text":" Paris"}],' +
        `"created":${created},"id":"cmpl-2","model":"${MODEL}","object":"text_completion",` +
        '"usage":{"completion_tokens":6,"prompt_tokens":3,"total_tokens":9}}',
    );
  });

  test("put token_ids last on the choice when asked, on both routes", async () => {
    start({ engine: reply("ab") });
    const chat = await (await server.post(CHAT, chatBody({ return_token_ids: true }))).text();
    expect(chat).toContain('"role":"assistant"},"token_ids":[97,98]}]');
    const completion = await server.post(COMPLETIONS, completionBody({ return_token_ids: true }));
    expect(await completion.text()).toContain('"text":"ab","token_ids":[97,98]}]');
  });

  test("leave the end token out of text, ids and count", async () => {
    start({ engine: { reply: () => [...idsOf("ab"), EOS, ...idsOf("cd")] } });
    const body = await whole(CHAT, chatBody({ return_token_ids: true }));
    expect(body.choices[0]).toMatchObject({ finish_reason: "stop", token_ids: [97, 98] });
    expect(body.usage.completion_tokens).toBe(2);
  });

  for (const path of [CHAT, COMPLETIONS]) {
    test(`ignore_eos makes the end token an ordinary one on ${path}`, async () => {
      start({ engine: { reply: () => [...idsOf("ab"), EOS, ...idsOf("cd")] } });
      const over = { ignore_eos: true, return_token_ids: true, max_tokens: 4 };
      const body = path === CHAT ? chatBody(over) : completionBody(over);
      const answer = await whole(path, body);
      const [choice] = answer.choices;
      expect(choice).toMatchObject({ finish_reason: "length", token_ids: [97, 98, EOS, 99] });
      expect(choice.text ?? choice.message?.content).toBe("abc");
    });
  }

  test("cap max_tokens by the context instead of refusing it", async () => {
    start({ engine: { reply: () => idsOf("x".repeat(100)), context: 10 } });
    const body = completionBody({ max_tokens: 1000 });
    const answer = await whole(COMPLETIONS, body);
    expect(answer.choices[0].finish_reason).toBe("length");
    expect(answer.usage).toEqual({ completion_tokens: 7, prompt_tokens: 3, total_tokens: 10 });
  });
});

describe("prompts", () => {
  test("a chat goes through the template, parts joined, developer as system, null as empty", async () => {
    start();
    const messages = [
      { role: "developer", content: "Be brief." },
      {
        role: "user",
        content: [
          { type: "text", text: "a" },
          { type: "text", text: "b" },
        ],
      },
      { role: "assistant", content: null },
      { role: "assistant" },
      { role: "user", content: "c" },
    ];
    await server.post(CHAT, chatBody({ messages }));
    const prompt = "[system:Be brief.][user:a\nb][assistant:][assistant:][user:c][assistant:";
    expect(server.engine.requests[0]?.ids).toEqual(Int32Array.from(idsOf(prompt)));
  });

  test("token ids are taken as they are, in any spelling of an integer", async () => {
    start();
    await server.post(COMPLETIONS, `{"model":"${MODEL}","prompt":[1,2.0,3e0,256]}`);
    expect(server.engine.requests[0]?.ids).toEqual(Int32Array.of(1, 2, 3, BOS));
  });

  for (const prompt of ["", []]) {
    test(`an empty prompt ${JSON.stringify(prompt)} starts from the BOS token`, async () => {
      start({ model: { tokenizer: byteTokenizer(BOS) } });
      const response = await server.post(COMPLETIONS, completionBody({ prompt }));
      expect(response.status).toBe(200);
      expect(server.engine.requests[0]?.ids).toEqual(Int32Array.of(BOS));
    });

    test(`an empty prompt ${JSON.stringify(prompt)} is refused without a BOS token`, async () => {
      start();
      const response = await server.post(COMPLETIONS, completionBody({ prompt }));
      expect(response.status).toBe(400);
      expect((await bodyOf<WireError>(response)).error.param).toBe("prompt");
    });
  }

  test("a chat that renders to nothing is refused, naming messages", async () => {
    start({
      model: { template: { bytes: 1, render: () => ({ prompt: "", systemFolded: false }) } },
    });
    const response = await server.post(CHAT, chatBody());
    expect(response.status).toBe(400);
    expect((await bodyOf<WireError>(response)).error.param).toBe("messages");
  });

  test("a role of over 64 characters is refused before the template sees it", async () => {
    start();
    const messages = [
      { role: "user", content: "a" },
      { role: "r".repeat(65), content: "b" },
    ];
    const response = await server.post(CHAT, chatBody({ messages }));
    expect(response.status).toBe(400);
    const { error } = await bodyOf<WireError>(response);
    expect(error.param).toBe("messages[1].role");
    expect(error.message).toContain("at most 64 characters");
  });

  test("a folded system message is noted once in the log", async () => {
    start({ model: { template: bracketTemplate(true) } });
    await server.post(CHAT, chatBody());
    await server.post(CHAT, chatBody());
    expect(server.lines).toHaveLength(1);
    expect(server.lines[0]).toContain("system message");
  });
});

describe("streams", () => {
  test("write the contract's frames: no role chunk, a finish chunk, [DONE]", async () => {
    start({ engine: reply("Hi\n") });
    const response = await server.post(CHAT, chatBody({ stream: true, max_tokens: 2 }));
    expect(response.headers.get("content-type")).toBe("text/event-stream");
    expect(response.headers.get("cache-control")).toBe("no-cache");
    expect(response.headers.get("x-accel-buffering")).toBe("no");
    const text = await response.text();
    const created = /"created":(\d+)/.exec(text)?.[1];
    const tail = `"created":${created},"id":"chatcmpl-1","model":"${MODEL}","object":"chat.completion.chunk"}\n\n`;
    expect(text).toBe(
      `data: {"choices":[{"delta":{"content":"H"},"finish_reason":null,"index":0}],${tail}` +
        `data: {"choices":[{"delta":{"content":"i"},"finish_reason":null,"index":0}],${tail}` +
        `data: {"choices":[{"delta":{},"finish_reason":"length","index":0}],${tail}` +
        "data: [DONE]\n\n",
    );
  });

  test("write a completion's chunks with text", async () => {
    start({ engine: reply("A") });
    const text = await (await server.post(COMPLETIONS, completionBody({ stream: true }))).text();
    const created = /"created":(\d+)/.exec(text)?.[1];
    const tail = `"created":${created},"id":"cmpl-1","model":"${MODEL}","object":"text_completion"}\n\n`;
    expect(text).toBe(
      `data: {"choices":[{"finish_reason":null,"index":0,"text":"A"}],${tail}` +
        `data: {"choices":[{"finish_reason":"stop","index":0,"text":""}],${tail}` +
        "data: [DONE]\n\n",
    );
  });

  test("add one usage chunk without choices when it is asked for, and only then", async () => {
    start({ engine: reply("ab") });
    const asked = await chunksOf(CHAT, chatBody({ stream_options: { include_usage: true } }));
    const last = asked.at(-1);
    expect(last?.choices).toEqual([]);
    expect(last?.usage).toEqual({ completion_tokens: 2, prompt_tokens: 20, total_tokens: 22 });
    expect(asked.filter((chunk) => chunk.usage !== undefined)).toHaveLength(1);
    expect(asked.at(-2)?.choices[0]?.finish_reason).toBe("stop");
    for (const stream_options of [
      undefined,
      null,
      {},
      { include_usage: false },
      { include_usage: null },
    ]) {
      const chunks = await chunksOf(CHAT, chatBody({ stream_options }));
      expect(chunks.every((chunk) => chunk.choices.length === 1)).toBe(true);
    }
  });

  test("never split a character, and show every token id once, in order", async () => {
    const text = "Привет 🙂 日本";
    const ids = [...idsOf(text), SILENT, ...idsOf("!"), SILENT];
    start({ engine: { reply: () => ids } });
    const chunks = await chunksOf(COMPLETIONS, completionBody({ return_token_ids: true }));
    expect(textOf(chunks)).toBe(`${text}!`);
    expect(textOf(chunks)).not.toContain("\ufffd");
    expect(streamedIds(chunks)).toEqual(ids);
    expect(chunks.slice(0, -1).every((chunk) => chunk.choices[0]?.text !== "")).toBe(true);
    const answer = await whole(COMPLETIONS, completionBody({ return_token_ids: true }));
    expect(answer.choices[0]).toMatchObject({ text: `${text}!`, token_ids: ids });
  });

  test("show a character that never became whole as one replacement", async () => {
    start({ engine: { reply: () => [...idsOf("a"), 0xf0, 0x9f] } });
    expect(textOf(await chunksOf(COMPLETIONS, completionBody()))).toBe("a\ufffd");
  });
});

describe("stop strings", () => {
  const cases: { stop: string | string[]; text: string; ids: number; tokens: number }[] = [
    { stop: "world", text: "Hello, ", ids: 7, tokens: 12 },
    { stop: ["@@", "lo"], text: "Hel", ids: 3, tokens: 5 },
    { stop: "H", text: "", ids: 0, tokens: 1 },
    { stop: ".", text: "Hello, world", ids: 12, tokens: 13 },
    { stop: ["world", "o, w"], text: "Hell", ids: 4, tokens: 8 },
  ];
  for (const { stop, text, ids, tokens } of cases) {
    test(`${JSON.stringify(stop)} ends text and ids before it and counts its tokens`, async () => {
      start();
      const over = { stop, return_token_ids: true, stream_options: { include_usage: true } };
      const answer = await whole(COMPLETIONS, completionBody(over));
      expect(answer.choices[0]).toMatchObject({ finish_reason: "stop", text });
      expect(answer.choices[0].token_ids).toEqual(idsOf("Hello, world.").slice(0, ids));
      expect(answer.usage.completion_tokens).toBe(tokens);
      const chunks = await chunksOf(COMPLETIONS, completionBody(over));
      expect(textOf(chunks)).toBe(text);
      expect(streamedIds(chunks)).toEqual([...(answer.choices[0].token_ids ?? [])]);
      expect(chunks.at(-1)?.usage).toEqual(answer.usage);
    });
  }

  test("a beginning that comes to nothing is shown after all, with its ids", async () => {
    start();
    const over = { stop: ["worldly", "d.\n", "never"], return_token_ids: true };
    const chunks = await chunksOf(COMPLETIONS, completionBody(over));
    expect(textOf(chunks)).toBe("Hello, world.");
    expect(streamedIds(chunks)).toEqual(idsOf("Hello, world."));
  });

  test("a match inside a token leaves that token's id out", async () => {
    start({ engine: { reply: () => [...idsOf("hel"), LONG, ...idsOf("rld")] } });
    const over = { stop: " w", return_token_ids: true };
    const [choice] = (await whole(COMPLETIONS, completionBody(over))).choices;
    expect(choice).toMatchObject({ text: "hello", token_ids: idsOf("hel") });
  });

  test("stop the engine's work", async () => {
    start({ engine: { reply: () => idsOf("a b ".repeat(1000)), delayMs: 1 } });
    await server.post(COMPLETIONS, completionBody({ stop: "b" }));
    const produced = server.engine.produced();
    expect(produced).toBeLessThan(10);
    expect(server.engine.stats().running).toBe(0);
  });
});

describe("sampling", () => {
  const greedy = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1 };
  const defaults = { ...greedy, temperature: 0.5, repetitionPenalty: 1.2, seed: 7n };

  test("absent and null fields inherit the server's settings", async () => {
    start({ defaults });
    const nulls = { temperature: null, top_k: null, top_p: null, min_p: null, seed: null };
    await server.post(CHAT, chatBody());
    await server.post(CHAT, chatBody({ ...nulls, repetition_penalty: null }));
    for (const request of server.engine.requests) expect(request.sampling).toEqual(defaults);
  });

  test("each field overrides only its own", async () => {
    start({ defaults });
    const fields = { temperature: 0, top_k: 5, top_p: 0.5, min_p: 0.1, repetition_penalty: 2 };
    for (const [name, value] of Object.entries(fields)) {
      await server.post(COMPLETIONS, completionBody({ [name]: value }));
    }
    expect(server.engine.requests.map((request) => request.sampling)).toEqual([
      { ...defaults, temperature: 0 },
      { ...defaults, topK: 5 },
      { ...defaults, topP: 0.5 },
      { ...defaults, minP: 0.1 },
      { ...defaults, repetitionPenalty: 2 },
    ]);
  });

  test("seeds are exact to 2^64-1; -1 is fresh even when the server has one", async () => {
    start({ defaults });
    for (const seed of ["9007199254740993", "18446744073709551615", "1e0", "-1", "-1"]) {
      await server.post(COMPLETIONS, `{"model":"${MODEL}","prompt":"a","seed":${seed}}`);
    }
    const seeds = server.engine.requests.map((request) => request.sampling.seed);
    expect(seeds.slice(0, 3)).toEqual([2n ** 53n + 1n, 2n ** 64n - 1n, 1n]);
    expect(new Set([7n, ...seeds.slice(3)]).size).toBe(3);
  });

  test("top_k -1 keeps every token", async () => {
    start({ defaults: { ...defaults, topK: 3 } });
    await server.post(COMPLETIONS, completionBody({ top_k: -1 }));
    expect(server.engine.requests[0]?.sampling.topK).toBe(0);
  });
});
