import { afterEach, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { gzipSync, zstdCompressSync } from "node:zlib";
import {
  bodyOf,
  byteTokenizer,
  chatBody,
  completionBody,
  idsOf,
  MODEL,
  startTestServer,
  type TestServer,
  type TestServerOptions,
  type WireError,
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

async function expectError(
  response: Response,
  status: number,
  wanted: Partial<WireError["error"]> = {},
): Promise<WireError["error"]> {
  expect(response.status).toBe(status);
  expect(response.headers.get("content-type")).toBe("application/json");
  expect(response.headers.get("x-request-id")).not.toBeNull();
  const { error } = await bodyOf<WireError>(response);
  expect(Object.keys(error)).toEqual(["code", "message", "param", "type"]);
  expect(error).toMatchObject({ code: null, ...wanted });
  return error;
}

/** Sends bytes as they are and reads until the server closes or says nothing for quietMs. */
function exchange(data: string | Uint8Array, quietMs = 300): Promise<string> {
  return new Promise((resolve) => {
    let got = "";
    const socket = connect(server.port, "127.0.0.1", () => socket.write(data));
    const end = (): void => {
      socket.destroy();
      resolve(got);
    };
    socket.setTimeout(quietMs, end);
    socket.on("data", (piece) => {
      got += piece.toString();
    });
    socket.on("close", end).on("error", end);
  });
}

/** Waits until `done`, looking every few milliseconds; fails after a second. */
async function until(done: () => boolean): Promise<void> {
  const end = performance.now() + 1000;
  while (!done()) {
    if (performance.now() > end) throw new Error("it did not happen within a second");
    await Bun.sleep(2);
  }
}

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
    expect(await exchange("GET //v1//models HTTP/1.1\r\nHost: localhost\r\n\r\n")).toStartWith(
      "HTTP/1.1 404",
    );
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
    const answer = await exchange(head);
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

describe("clients that leave", () => {
  for (const stream of [false, true]) {
    test(`stop the work within 250 ms, ${stream ? "streamed" : "whole"}`, async () => {
      start({ engine: slow });
      const leave = new AbortController();
      const body = chatBody({ stream });
      const init = { signal: leave.signal };
      const request = server.post(CHAT, body, init).then(
        (response) => response.text().catch(() => ""),
        () => "",
      );
      await until(() => server.engine.produced() > 3);
      const began = performance.now();
      leave.abort();
      await until(() => server.engine.stats().running === 0);
      expect(performance.now() - began).toBeLessThan(250);
      await request;
      const produced = server.engine.produced();
      await Bun.sleep(30);
      expect(server.engine.produced()).toBe(produced);
    });

    test(`leave the queue, ${stream ? "streamed" : "whole"}`, async () => {
      start({ engine: slow });
      const stay = new AbortController();
      const leave = new AbortController();
      const first = server.post(CHAT, chatBody(), { signal: stay.signal }).catch(() => null);
      await until(() => server.engine.stats().running === 1);
      const second = server
        .post(CHAT, chatBody({ stream }), { signal: leave.signal })
        .then((r) => r.text())
        .catch(() => null);
      await until(() => server.engine.stats().waiting === 1);
      leave.abort();
      await until(() => server.engine.stats().waiting === 0);
      stay.abort();
      await Promise.all([first, second]);
    });
  }

  test("a reader that stops reading holds back the writing, not the server", async () => {
    start({ engine: { reply: () => idsOf("x".repeat(4000)) } });
    const socket = connect(server.port, "127.0.0.1");
    const body = JSON.stringify(chatBody({ stream: true }));
    socket.write(
      `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    socket.pause();
    await until(() => server.engine.produced() > 0);
    expect((await server.get("/healthz")).status).toBe(200);
    socket.destroy();
    await until(() => server.engine.stats().running === 0);
  });
});

describe("hosts and origins", () => {
  const send = (host: string, version = "1.1") =>
    exchange(`GET /healthz HTTP/${version}\r\n${host}Connection: close\r\n\r\n`);

  test("a loopback server takes only loopback hosts and the allowed ones", async () => {
    start({ allowedHosts: ["box.example"] });
    for (const host of [
      "localhost",
      "LOCALHOST:1",
      "127.0.0.1",
      "127.9.9.9:80",
      "[::1]:8425",
      "box.example:8425",
      "Box.Example",
    ]) {
      expect(await send(`Host: ${host}\r\n`)).toStartWith("HTTP/1.1 200");
    }
    for (const host of ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]) {
      const answer = await send(`Host: ${host}\r\n`);
      expect(answer).toStartWith("HTTP/1.1 403");
      expect(answer).toContain('{"error":{"code":null,');
    }
    expect(await send("", "1.0")).toStartWith("HTTP/1.1 200");
  });

  const origin = "https://app.example";
  const ask = {
    origin,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,x-stainless-lang",
  };

  test("CORS is off unless asked for", async () => {
    start();
    const response = await server.post(CHAT, chatBody(), { headers: { origin } });
    expect(response.headers.get("access-control-allow-origin")).toBeNull();
    const preflight = await server.get(CHAT, { method: "OPTIONS", headers: ask });
    expect(preflight.status).toBe(405);
  });

  for (const allowed of [origin, "*"]) {
    test(`with --cors-origin ${allowed} every answer carries the same headers`, async () => {
      start({ corsOrigins: [allowed] });
      const preflight = await server.get(CHAT, { method: "OPTIONS", headers: ask });
      expect(preflight.status).toBe(204);
      expect(preflight.headers.get("access-control-allow-headers")).toBe(
        "authorization,x-stainless-lang",
      );
      expect(preflight.headers.get("access-control-allow-methods")).toBe("POST");
      const answers = [
        preflight,
        await server.post(CHAT, chatBody(), { headers: { origin } }),
        await server.post(CHAT, chatBody({ stream: true }), { headers: { origin } }),
        await server.post(CHAT, chatBody({ top_p: 2 }), { headers: { origin } }),
        await server.get("/nope", { headers: { origin } }),
      ];
      for (const { headers } of answers) {
        expect(headers.get("access-control-allow-origin")).toBe(allowed);
        expect(headers.get("access-control-allow-credentials")).toBeNull();
        expect(headers.get("vary")).toBe(allowed === "*" ? null : "Origin");
      }
    });
  }

  test("another origin gets no CORS headers, and no preflight", async () => {
    start({ corsOrigins: [origin] });
    const headers = { ...ask, origin: "https://evil.example" };
    const preflight = await server.get(CHAT, { method: "OPTIONS", headers });
    expect(preflight.status).toBe(403);
    expect(preflight.headers.get("access-control-allow-origin")).toBeNull();
  });
});

describe("draining", () => {
  test("refuses new work, lets running work finish, then closes", async () => {
    start({ engine: { reply: () => idsOf("abcdefgh"), delayMs: 20 } });
    const running = server.post(CHAT, chatBody());
    await until(() => server.engine.produced() > 0);
    const drained = server.drain(5000);
    const refused = await server.post(CHAT, chatBody());
    expect(refused.headers.get("retry-after")).not.toBeNull();
    await expectError(refused, 503, { message: "the server is shutting down" });
    expect((await server.get("/readyz")).status).toBe(503);
    expect((await server.get("/healthz")).status).toBe(200);
    expect(await (await running).text()).toContain("abcdefgh");
    await drained;
    await expect(server.get("/healthz")).rejects.toThrow();
  });

  test("cuts what takes too long with an error event", async () => {
    start({ engine: slow });
    const stream = server.post(CHAT, chatBody({ stream: true })).then((r) => r.text());
    const waiting = server.post(CHAT, chatBody());
    await until(() => server.engine.stats().waiting === 1 && server.engine.produced() > 0);
    const began = performance.now();
    await server.drain(100);
    expect(performance.now() - began).toBeLessThan(1000);
    const events = (await stream).trimEnd().split("\n\n");
    expect(events.at(-1)).toContain('"message":"the server is shutting down"');
    await expectError(await waiting, 503);
  });

  test("does not wait for a body that is still on its way", async () => {
    start();
    const half = exchange(
      `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{`,
      5000,
    );
    await Bun.sleep(50);
    const began = performance.now();
    await server.drain(5000);
    expect(performance.now() - began).toBeLessThan(1000);
    expect(await half).toStartWith("HTTP/1.1 503");
  });
});

describe("telemetry", () => {
  test("/metrics counts answers, tokens and times", async () => {
    start({ engine: { reply: () => idsOf("abc"), cachedTokens: 2 }, metricsCompat: "vllm" });
    await server.post(CHAT, chatBody());
    await server.post(COMPLETIONS, completionBody({ stream: true })).then((r) => r.text());
    await server.post(CHAT, "{");
    await server.get("/somewhere/else");
    const response = await server.get("/metrics");
    expect(response.headers.get("content-type")).toStartWith("text/plain");
    const lines = (await response.text()).split("\n");
    for (const line of [
      `caldrix_http_requests_total{route="${CHAT}",status="200"} 1`,
      `caldrix_http_requests_total{route="${CHAT}",status="400"} 1`,
      `caldrix_http_requests_total{route="${COMPLETIONS}",status="200"} 1`,
      'caldrix_http_requests_total{route="other",status="404"} 1',
      "caldrix_prompt_tokens_total 23",
      "caldrix_generated_tokens_total 6",
      "caldrix_cached_prompt_tokens_total 4",
      "caldrix_requests_waiting 0",
      "caldrix_requests_running 0",
      "caldrix_kv_usage_ratio 0",
      "caldrix_queue_time_seconds_count 2",
      'caldrix_time_to_first_token_seconds_bucket{le="+Inf"} 2',
      "caldrix_time_per_output_token_seconds_count 2",
      "caldrix_end_to_end_seconds_count 2",
      "vllm:num_requests_waiting 0",
      "vllm:num_requests_running 0",
      "vllm:kv_cache_usage_perc 0",
    ]) {
      expect(lines).toContain(line);
    }
    const samples = lines.filter((line) => line !== "" && !line.startsWith("#"));
    for (const line of samples) expect(line).toMatch(/^[a-z_:]+(\{[^}]*\})? [0-9.e+-]+$/);
  });

  test("/metrics shows running and waiting requests and their share of the rows", async () => {
    start({ engine: { ...slow, context: 100 } });
    const leave = new AbortController();
    const init = { signal: leave.signal };
    const both = [1, 2].map(() => server.post(CHAT, chatBody(), init).catch(() => null));
    await until(() => server.engine.stats().waiting === 1 && server.engine.produced() > 0);
    const text = await (await server.get("/metrics")).text();
    expect(text).toContain("\ncaldrix_requests_running 1\n");
    expect(text).toContain("\ncaldrix_requests_waiting 1\n");
    const use = Number(/\ncaldrix_kv_usage_ratio (\S+)\n/.exec(text)?.[1]);
    expect(use).toBeGreaterThan(0.2);
    expect(use).toBeLessThanOrEqual(1);
    expect(text).not.toContain("vllm:");
    leave.abort();
    await Promise.all(both);
  });

  test("/debug/requests tells counts, settings and the seed used, newest first, never text", async () => {
    start({ engine: { reply: () => idsOf("pomegranate") } });
    const sampled = { temperature: 0.7, top_k: 5, seed: 2 ** 53 - 1 };
    await server.post(COMPLETIONS, completionBody({ prompt: "marmalade", ...sampled }));
    await server.post(CHAT, chatBody({ user: "marmalade", stop: "marmalade" }));
    await server.post(CHAT, chatBody({ model: "marmalade" }));
    const text = await (await server.get("/debug/requests")).text();
    expect(text).not.toContain("marmalade");
    expect(text).not.toContain("pomegranate");
    const { requests } = JSON.parse(text);
    expect(requests).toHaveLength(2);
    expect(requests[0]).not.toHaveProperty("seed");
    expect(requests[1]).toMatchObject({
      completion_tokens: 11,
      finish_reason: "stop",
      id: "cmpl-1",
      prompt_tokens: 9,
      route: COMPLETIONS,
      seed: 2 ** 53 - 1,
      settings: { temperature: 0.7, top_k: 5, top_p: 1, min_p: 0, repetition_penalty: 1 },
      status: 200,
    });
  });

  test("/debug/requests keeps the last 64 and exact seeds", async () => {
    start({ engine: { reply: () => [] } });
    for (let i = 0; i < 70; i++) {
      const body = `{"model":"${MODEL}","prompt":"a","temperature":1,"seed":18446744073709551615}`;
      await server.post(COMPLETIONS, body);
    }
    const text = await (await server.get("/debug/requests")).text();
    expect(JSON.parse(text).requests).toHaveLength(64);
    expect(text).toContain('"seed":18446744073709551615');
  });
});
