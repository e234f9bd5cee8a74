import { afterEach, describe, expect, test } from "bun:test";
import { gzipSync, zstdCompressSync } from "node:zlib";
import {
  byteTokenizer,
  chatBody,
  completionBody,
  exchange,
  expectError,
  idsOf,
  MODEL,
  startTestServer,
  type TestServer,
  type TestServerOptions,
  until,
} from "../support/server.ts";

let server: TestServer;

afterEach(() => server.stop());

function start(options: TestServerOptions = {}): TestServer {
  server = startTestServer(options);
  return server;
}

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";
const MIB = 2 ** 20;
const slow = { reply: () => idsOf("x".repeat(2000)), delayMs: 5 };

describe("routes", () => {
  test("GET /healthz and /health answer ok, /readyz too", async () => {
    start();
    for (const path of ["/healthz", "/health", "/readyz", "/healthz?x=1"]) {
      const response = await server.get(path);
      expect(response.status).toBe(200);
      expect(await response.text()).toBe("ok");
    }
  });

  test("GET /v1/models answers the contract's bytes", async () => {
    start();
    expect(await (await server.get("/v1/models")).text()).toBe(
      `{"data":[{"id":"${MODEL}","object":"model","owned_by":"inferno"}],"object":"list"}`,
    );
  });

  test("HEAD works where GET does and has no body", async () => {
    start();
    for (const path of ["/healthz", "/v1/models", "/metrics", "/debug/requests"]) {
      const response = await server.get(path, { method: "HEAD" });
      expect(response.status).toBe(200);
      expect(await response.text()).toBe("");
    }
  });

  for (const path of ["/", "/v1", "/v1/", "/v1/models/", "/V1/models", "/v1/embeddings", "/nope"]) {
    test(`${path} is a 404`, async () => {
      start();
      await expectError(await server.get(path), 404, {
        type: "invalid_request_error",
        param: null,
      });
    });
  }

  test("paths are not tidied up", async () => {
    start();
    expect(
      await exchange(server.port, "GET //v1//models HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ).toStartWith("HTTP/1.1 404");
  });

  const wrong: [string, string, string][] = [
    ["GET", CHAT, "POST"],
    ["PUT", COMPLETIONS, "POST"],
    ["HEAD", COMPLETIONS, "POST"],
    ["DELETE", "/v1/models", "GET, HEAD"],
    ["POST", "/healthz", "GET, HEAD"],
    ["OPTIONS", CHAT, "POST"],
  ];
  for (const [method, path, allow] of wrong) {
    test(`${method} ${path} is a 405 that allows ${allow}`, async () => {
      start();
      const response = await server.get(path, { method });
      expect(response.status).toBe(405);
      expect(response.headers.get("allow")).toBe(allow);
      if (method !== "HEAD") await expectError(response, 405);
    });
  }

  test("every answer has its own x-request-id", async () => {
    start();
    const answers = [
      await server.get("/healthz"),
      await server.get("/nope"),
      await server.post(CHAT, chatBody()),
      await server.post(CHAT, chatBody({ stream: true })),
      await server.post(CHAT, "{"),
    ];
    const ids = new Set(answers.map((response) => response.headers.get("x-request-id")));
    expect(ids.size).toBe(answers.length);
    expect(ids.has(null)).toBe(false);
  });
});

describe("bodies", () => {
  test("a refusal has the contract's bytes, streamed or not", async () => {
    start();
    for (const stream of [false, true]) {
      const response = await server.post(CHAT, chatBody({ top_p: 2, stream }));
      expect(response.status).toBe(400);
      expect(await response.text()).toBe(
        '{"error":{"code":null,"message":"must be 0 < p <= 1, got 2","param":"top_p","type":"invalid_request_error"}}',
      );
    }
  });

  const broken: [string, string | Uint8Array][] = [
    ["empty", ""],
    ["truncated", '{"model": "x", '],
    ["trailing", `${JSON.stringify(chatBody())}{}`],
    ["not UTF-8", Uint8Array.of(0x7b, 0x22, 0xff, 0x22, 0x7d)],
    ["deep", "[".repeat(100_000)],
    ["a list", "[]"],
  ];
  for (const [name, body] of broken) {
    test(`a body that is ${name} is a 400 without a param`, async () => {
      start();
      await expectError(await server.post(CHAT, body), 400, { param: null });
    });
  }

  test("the content type does not matter", async () => {
    start();
    const init = { headers: { "content-type": "text/plain" } };
    expect((await server.post(CHAT, chatBody(), init)).status).toBe(200);
  });

  test("4 MiB are taken, one byte more is a 413, and the connection is closed", async () => {
    start();
    const body = JSON.stringify(chatBody());
    expect((await server.post(CHAT, body.padEnd(4 * MIB))).status).toBe(200);
    const response = await server.post(CHAT, body.padEnd(4 * MIB + 1));
    expect(response.headers.get("connection")).toBe("close");
    const error = await expectError(response, 413, { type: "invalid_request_error" });
    expect(error.message).toBe("the request body is over 4 MiB");
  });

  test("a chunked body over the limit is a JSON 413 too", async () => {
    start();
    const piece = new Uint8Array(256 * 1024).fill(32);
    let sent = 0;
    const body = new ReadableStream({
      pull(controller) {
        if (++sent > 20) controller.close();
        else controller.enqueue(piece);
      },
    });
    await expectError(await fetch(server.url + CHAT, { method: "POST", body }), 413);
  });

  test("a declared length beyond all reason is refused before it is sent", async () => {
    start();
    const head = `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n`;
    const answer = await exchange(server.port, head);
    expect(answer).toStartWith("HTTP/1.1 413");
    expect(answer).toContain('{"error":{');
  });

  test("gzip and zstd bodies are unpacked; the limit counts what comes out", async () => {
    start();
    const packers: [string, (text: string) => Uint8Array][] = [
      ["gzip", (text) => gzipSync(text)],
      ["zstd", (text) => zstdCompressSync(text)],
    ];
    const body = JSON.stringify(chatBody());
    for (const [encoding, pack] of packers) {
      const init = { headers: { "content-encoding": encoding } };
      expect((await server.post(CHAT, pack(body), init)).status).toBe(200);
      await expectError(await server.post(CHAT, pack(body.padEnd(4 * MIB + 1)), init), 413);
      await expectError(await server.post(CHAT, "nonsense", init), 400, { param: null });
    }
    const other = { headers: { "content-encoding": "br" } };
    await expectError(await server.post(CHAT, body, other), 415);
  });
});

describe("limits", () => {
  test("a prompt that fills the context is a 400 at its field, streamed or not", async () => {
    start({ engine: { reply: () => idsOf("ab"), context: 50 } });
    for (const stream of [false, true]) {
      const content = "x".repeat(33);
      const chat = chatBody({ messages: [{ role: "user", content }], stream });
      await expectError(await server.post(CHAT, chat), 400, { param: "messages" });
      const completion = completionBody({ prompt: Array(50).fill(5), stream });
      const error = await expectError(await server.post(COMPLETIONS, completion), 400, {
        param: "prompt",
      });
      expect(error.message).toContain("50 tokens");
    }
    const fits = completionBody({ prompt: Array(49).fill(5) });
    expect((await server.post(COMPLETIONS, fits)).status).toBe(200);
  });

  test("text that cannot fit is refused without being tokenised", async () => {
    start({
      engine: { reply: () => [], context: 50 },
      model: {
        tokenizer: {
          ...byteTokenizer(),
          encode: () => {
            throw new Error("tokenised");
          },
        },
      },
    });
    const response = await server.post(COMPLETIONS, completionBody({ prompt: "x".repeat(250) }));
    const error = await expectError(response, 400, { param: "prompt" });
    expect(error.message).toContain("at least 50 tokens");
  });

  test("a model without a chat template refuses messages", async () => {
    start({ model: { template: null } });
    const error = await expectError(await server.post(CHAT, chatBody()), 400, {
      param: "messages",
    });
    expect(error.message).toBe("the model has no chat template; use /v1/completions");
    expect((await server.post(COMPLETIONS, completionBody())).status).toBe(200);
  });

  test("a role the template does not take is a 400 at it", async () => {
    start();
    const messages = [{ role: "banana", content: "hi" }];
    await expectError(await server.post(CHAT, chatBody({ messages })), 400, {
      param: "messages[0].role",
    });
    expect((await server.post(CHAT, chatBody())).status).toBe(200);
  });

  test("one request more than run and wait is a 429, and a refusal costs no place", async () => {
    start({ engine: slow, queueDepth: 1 });
    const leave = new AbortController();
    const ignored = (): null => null;
    const first = server.post(CHAT, chatBody(), { signal: leave.signal }).catch(ignored);
    const second = server
      .post(COMPLETIONS, completionBody(), { signal: leave.signal })
      .catch(ignored);
    await until(() => server.engine.stats().waiting === 1);
    const response = await server.post(CHAT, chatBody());
    expect(response.headers.get("retry-after")).toBe("1");
    await expectError(response, 429, { message: "the request queue is full", param: null });
    await expectError(await server.post(CHAT, chatBody({ top_p: 2 })), 400);
    leave.abort();
    await Promise.all([first, second]);
    await until(() => server.engine.stats().running === 0);
    expect((await server.post(CHAT, chatBody({ max_tokens: 1 }))).status).toBe(200);
  });

  test("the deadline is a 504, and an error event on a stream", async () => {
    start({ engine: slow, deadlineMs: 50 });
    const error = await expectError(await server.post(CHAT, chatBody()), 504);
    expect(error.message).toContain("0.05 s");
    const text = await (await server.post(CHAT, chatBody({ stream: true }))).text();
    expect(text).toEndWith(`data: ${JSON.stringify({ error })}\n\n`);
    await until(() => server.engine.stats().running === 0);
  });
});

describe("failures", () => {
  const failure = { afterTokens: 2, message: "op 7: no memory for /secret", stopped: false };

  test("an engine failure is a 500 that clients do not repeat and that hides the cause", async () => {
    start({ engine: { reply: () => idsOf("abcd"), failure } });
    const response = await server.post(CHAT, chatBody());
    expect(response.headers.get("x-should-retry")).toBe("false");
    const error = await expectError(response, 500, { type: "server_error" });
    expect(error.message).toBe("the engine failed during the request");
    expect(server.lines.join()).toContain("op 7");
  });

  test("on a stream the same object is the last event", async () => {
    start({ engine: { reply: () => idsOf("abcd"), failure } });
    const response = await server.post(CHAT, chatBody({ stream: true }));
    expect(response.status).toBe(200);
    const events = (await response.text()).trimEnd().split("\n\n");
    expect(events).toHaveLength(3);
    expect(events[2]).toBe(
      'data: {"error":{"code":null,"message":"the engine failed during the request","param":null,"type":"server_error"}}',
    );
  });

  test("a stopped engine is a 503", async () => {
    start({ engine: { reply: () => idsOf("abcd"), failure: { ...failure, stopped: true } } });
    await server.post(CHAT, chatBody());
    const response = await server.post(COMPLETIONS, completionBody());
    expect(response.headers.get("retry-after")).not.toBeNull();
    expect(response.headers.get("x-should-retry")).toBe("false");
    await expectError(response, 503, { message: "the engine is unavailable" });
    // A router must not send it more; a supervisor may still find the process alive.
    expect((await server.get("/readyz")).status).toBe(503);
    expect((await server.get("/healthz")).status).toBe(200);
  });

  test("a bug is a 500 without its text, in the answer and in the log", async () => {
    const template = {
      bytes: 1,
      render: () => {
        throw new TypeError("marmalade");
      },
    };
    start({ model: { template } });
    const error = await expectError(await server.post(CHAT, chatBody()), 500);
    expect(error.message).toBe("internal error");
    expect(server.lines).toHaveLength(1);
    expect(server.lines[0]).not.toContain("marmalade");
    expect((await server.post(COMPLETIONS, completionBody())).status).toBe(200);
  });
});
