import { afterEach, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import {
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
const slow = { reply: () => idsOf("x".repeat(2000)), delayMs: 5 };

test("a connection on which no further request comes is closed, after a stream too", async () => {
  start({ idleSeconds: 1 });
  const closed = [false, true].map((stream) => {
    const body = JSON.stringify(chatBody({ stream }));
    const socket = connect(server.port, "127.0.0.1");
    socket.write(
      `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    return new Promise<string>((resolve) => {
      let text = "";
      socket.on("data", (data) => {
        text += data;
      });
      socket.on("close", () => resolve(text));
    });
  });
  for (const text of await Promise.all(closed)) expect(text).toContain("200 OK");
}, 20_000);

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
    exchange(server.port, `GET /healthz HTTP/${version}\r\n${host}Connection: close\r\n\r\n`);

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
    expect(refused.headers.get("connection")).toBe("close");
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
      server.port,
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
