import { afterEach, describe, expect, test } from "bun:test";
import {
  chatBody,
  completionBody,
  idsOf,
  startTestServer,
  type TestServer,
  type TestServerOptions,
} from "../support/server.ts";

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";

let server: TestServer;

afterEach(() => server.stop());

function start(options: TestServerOptions = {}): TestServer {
  server = startTestServer({ strict: true, ...options });
  return server;
}

async function expectRefused(response: Response, status: number, code: string): Promise<string> {
  expect(response.status).toBe(status);
  const { error } = JSON.parse(await response.text());
  expect(Object.keys(error)).toEqual(["code", "message"]);
  expect(error.code).toBe(code);
  return error.message;
}

describe("strict bodies", () => {
  for (const [name, value] of [
    ["n", 1],
    ["user", "u"],
    ["top_k", 1],
    ["stream_options", {}],
    ["return_token_ids", false],
    ["tools", []],
  ] as const) {
    test(`refuse ${name} by name`, async () => {
      start();
      for (const [path, body] of [
        [CHAT, chatBody({ [name]: value })],
        [COMPLETIONS, completionBody({ [name]: value })],
      ] as const) {
        const message = await expectRefused(await server.post(path, body), 400, "invalid_request");
        expect(message).toBe(`${name}: unknown field`);
      }
    });
  }

  test.each([
    [{ role: "user", content: "hi", name: "x" }, "messages[0].name"],
    [{ role: "tool", content: "hi" }, "messages[0].role"],
    [{ role: "developer", content: "hi" }, "messages[0].role"],
    [{ role: "user", content: [{ type: "text", text: "hi" }] }, "messages[0].content"],
    [{ role: "assistant", content: null }, "messages[0].content"],
  ])("refuse the message %j at its place", async (message, place) => {
    start();
    const response = await server.post(CHAT, chatBody({ messages: [message] }));
    expect(await expectRefused(response, 400, "invalid_request")).toStartWith(`${place}: `);
  });

  test("take JSON under its own media type only", async () => {
    start();
    const send = (type: string) =>
      server.post(COMPLETIONS, completionBody(), { headers: { "content-type": type } });
    for (const type of ["text/plain", "application/jsonx", "application/x-www-form-urlencoded"]) {
      await expectRefused(await send(type), 415, "invalid_request");
    }
    for (const type of ["application/json", "application/json; charset=utf-8"]) {
      expect((await send(type)).status).toBe(200);
    }
  });
});

describe("strict admission", () => {
  test("counts bytes of the prompt and max_tokens, up to 4096", async () => {
    start({ engine: { reply: () => idsOf("a"), context: 8192 } });
    const ask = (bytes: number, max_tokens: number) =>
      server.post(COMPLETIONS, completionBody({ prompt: "x".repeat(bytes), max_tokens }));
    expect((await ask(4000, 96)).status).toBe(200);
    const message = await expectRefused(await ask(4000, 97), 400, "invalid_request");
    expect(message).toContain("4097");
    await expectRefused(
      await server.post(COMPLETIONS, completionBody({ prompt: "x".repeat(3585) })),
      400,
      "invalid_request",
    );
  });

  test("counts what the template adds", async () => {
    start({ engine: { reply: () => idsOf("a"), context: 8192 } });
    const messages = [{ role: "user", content: "x".repeat(3996) }];
    const response = await server.post(CHAT, chatBody({ messages, max_tokens: 100 }));
    await expectRefused(response, 400, "invalid_request");
  });
});

test("a strict stream tells the usage before the finish", async () => {
  start({ engine: { reply: () => idsOf("ab") } });
  const response = await server.post(COMPLETIONS, completionBody({ stream: true }));
  const events = (await response.text()).trim().split("\n\n");
  expect(events.at(-1)).toBe("data: [DONE]");
  expect(JSON.parse(events.at(-3)!.slice(6))).toMatchObject({
    choices: [],
    usage: { completion_tokens: 2, prompt_tokens: 3, total_tokens: 5 },
  });
  expect(JSON.parse(events.at(-2)!.slice(6)).choices[0].finish_reason).toBe("stop");
});

test("a full queue is overloaded, an unknown path keeps the error form", async () => {
  start({ queueDepth: 0, engine: { reply: () => idsOf("a".repeat(50)), delayMs: 5 } });
  const running = server.post(COMPLETIONS, completionBody());
  await expectRefused(await server.get("/v1/nope"), 404, "invalid_request");
  await expectRefused(await server.post(COMPLETIONS, completionBody()), 429, "overloaded");
  expect((await running).status).toBe(200);
});
