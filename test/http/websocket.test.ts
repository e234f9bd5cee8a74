// The WebSocket route over the fake engine: messages in both directions, refusals, limits, ends.

import { afterEach, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import {
  byteTokenizer,
  exchange,
  idsOf,
  MODEL,
  startTestServer,
  type TestServer,
  type TestServerOptions,
  until,
} from "../support/server.ts";

const endless = { reply: () => idsOf("x".repeat(4000)), delayMs: 2 };

let server: TestServer;
let clients: Client[] = [];

afterEach(() => {
  for (const client of clients) client.socket.terminate();
  clients = [];
  server.stop();
});

function start(options: TestServerOptions = {}): TestServer {
  server = startTestServer(options);
  return server;
}

/** A session from the client's side. */
interface Client {
  readonly socket: WebSocket;
  /** The next message, in order; fails after two seconds. */
  next(): Promise<Record<string, unknown>>;
  send(message: unknown): void;
  /** The close code. */
  readonly closed: Promise<number>;
}

function open(headers: Record<string, string> = {}): Client {
  const socket = new WebSocket(`ws://127.0.0.1:${server.port}/v1/ws`, { headers });
  const got: string[] = [];
  const closed = Promise.withResolvers<number>();
  socket.onmessage = ({ data }) => {
    got.push(data);
  };
  socket.onclose = ({ code }) => closed.resolve(code);
  const client: Client = {
    socket,
    closed: closed.promise,
    async next() {
      await until(() => got.length > 0);
      return JSON.parse(got.shift()!);
    },
    send(message) {
      const raw = typeof message === "string" || message instanceof Uint8Array;
      socket.send(raw ? message : JSON.stringify(message));
    },
  };
  clients.push(client);
  return client;
}

async function ready(headers?: Record<string, string>): Promise<Client> {
  const client = open(headers);
  expect(await client.next()).toEqual({ type: "ready", version: 1, model: MODEL });
  return client;
}

/** A start of a completion. */
function startMessage(id = "r", request: Record<string, unknown> = {}) {
  return {
    type: "start",
    id,
    request: { mode: "completion", model: MODEL, prompt: "Say", ...request },
  };
}

/** The text of a generation and the message that ended it. */
async function finish(client: Client, id: string) {
  let text = "";
  for (;;) {
    const message = await client.next();
    expect(message.id).toBe(id);
    if (message.type !== "delta") return { text, message };
    expect(Object.keys(message)).toEqual(["type", "id", "text"]);
    text += message.text;
  }
}

async function expectWorks(client: Client): Promise<void> {
  client.send(startMessage("after", { max_tokens: 1 }));
  expect((await finish(client, "after")).message.type).toBe("final");
}

for (const strict of [false, true]) {
  describe(strict ? "strict server" : "default server", () => {
    test("runs a completion and then a chat", async () => {
      start({ strict });
      const client = await ready();
      client.send(startMessage("example-1", { max_tokens: 5 }));
      const completion = await finish(client, "example-1");
      expect(completion.text).toBe("Hello");
      expect(JSON.stringify(completion.message)).toBe(
        '{"type":"final","id":"example-1","finish_reason":"length","usage":{"completion_tokens":5,"prompt_tokens":3,"total_tokens":8}}',
      );
      client.send({
        type: "start",
        id: "é".repeat(64),
        request: { mode: "chat", model: MODEL, messages: [{ role: "user", content: "hi" }] },
      });
      const chat = await finish(client, "é".repeat(64));
      expect(chat.text).toBe("Hello, world.");
      expect(chat.message.finish_reason).toBe("stop");
    });
  });
}

describe("messages that are refused", () => {
  const plain = startMessage();
  test.each([
    ["{", null, /^the message is not valid JSON/],
    ["[1]", null, /^a message must be a JSON object, got an array$/],
    [{ id: "a" }, "a", /^type: must be one of start, cancel, ping, close$/],
    [{ type: "resume", id: "a" }, "a", /^type: must be one of/],
    ['{"type":"ping","type":"ping"}', null, /^type: duplicate key$/],
    [{ type: "ping", extra: 1 }, null, /^extra: unknown field$/],
    [{ ...plain, id: "i".repeat(129) }, null, /^id: must have 1 to 128 bytes in UTF-8, got 129$/],
    [{ ...plain, id: "é".repeat(65) }, null, /^id: must have 1 to 128 bytes in UTF-8, got 130$/],
    [{ ...plain, id: "" }, "", /^id: must have 1 to 128 bytes/],
    [{ ...plain, id: 5 }, null, /^id: must be a string, got 5$/],
    [{ ...plain, request: "x" }, "r", /^request: must be an object, got a string$/],
    [startMessage("r", { mode: "embed" }), "r", /^mode: must be "completion" or "chat"$/],
    [startMessage("r", { model: "other" }), "r", /^model: unknown model/],
    [startMessage("r", { foo: 1 }), "r", /^foo: unknown field$/],
    [startMessage("r", { top_k: 1 }), "r", /^top_k: unknown field$/],
    [startMessage("r", { messages: [] }), "r", /^messages: unknown field$/],
    [startMessage("r", { stream: false }), "r", /^stream: a WebSocket always streams/],
    [startMessage("r", { temperature: -1 }), "r", /^temperature: must be/],
    [startMessage("r", { prompt: "" }), "r", /^prompt: must not be empty/],
    ['{"type":"start","id":"r","request":{"mode":"chat","a":1,"a":2}}', "r", /duplicate key$/],
    [{ type: "cancel", id: "nobody" }, "nobody", /^id: no running request has this id$/],
    [{ type: "cancel" }, null, /^id: must be a string, got nothing$/],
    [Uint8Array.of(0, 1), null, /^binary messages are not supported/],
  ])("%j", async (message, id, words) => {
    start();
    const client = await ready();
    client.send(message);
    const error = await client.next();
    expect(Object.keys(error)).toEqual(
      id === null ? ["type", "code", "message"] : ["type", "id", "code", "message"],
    );
    expect(error).toMatchObject({ type: "error", code: "invalid_request" });
    if (id !== null) expect(error.id).toBe(id);
    expect(error.message).toMatch(words);
    await expectWorks(client);
  });

  test("a message over 1 MiB is a typed error and close code 1009; one of 1 MiB is read", async () => {
    start();
    const ping = (bytes: number) => `{"type":"ping"${" ".repeat(bytes - 15)}}`;
    const client = await ready();
    client.send(ping(2 ** 20));
    expect(await client.next()).toEqual({ type: "pong" });
    client.send(ping(2 ** 20 + 1));
    expect(await client.next()).toMatchObject({ type: "error", code: "invalid_request" });
    expect(await client.closed).toBe(1009);
  });

  test("strict admission counts bytes of the prompt and max_tokens", async () => {
    start({ strict: true, engine: { reply: () => idsOf("a"), context: 8192 } });
    const client = await ready();
    client.send(startMessage("big", { prompt: "x".repeat(4000), max_tokens: 97 }));
    const { message } = await finish(client, "big");
    expect(message).toMatchObject({ type: "error", code: "invalid_request" });
    expect(message.message).toContain("4097");
  });
});

describe("one request a session", () => {
  test("a second start is refused by its own id and the first goes on", async () => {
    start({ engine: { reply: () => idsOf("x".repeat(40)), delayMs: 2 } });
    const client = await ready();
    client.send(startMessage("first"));
    expect((await client.next()).type).toBe("delta");
    client.send(startMessage("second"));
    const types: unknown[] = [];
    for (;;) {
      const message = await client.next();
      if (message.type !== "delta") types.push([message.type, message.id, message.code]);
      if (message.type === "final") break;
    }
    expect(types).toEqual([
      ["error", "second", "invalid_request"],
      ["final", "first", undefined],
    ]);
  });

  test("cancel ends it with an error, waiting or running, and frees its place", async () => {
    start({ engine: endless });
    const [runs, waits] = [await ready(), await ready()];
    runs.send(startMessage("a"));
    expect((await runs.next()).type).toBe("delta");
    waits.send(startMessage("b"));
    await until(() => server.engine.stats().waiting === 1);
    for (const [client, id] of [
      [waits, "b"],
      [runs, "a"],
    ] as const) {
      client.send({ type: "cancel", id });
      expect((await finish(client, id)).message).toEqual({
        type: "error",
        id,
        code: "cancelled",
        message: "the request was cancelled",
      });
    }
    await until(() => server.engine.stats().running === 0);
    await expectWorks(runs);
  });

  test("the deadline ends it", async () => {
    start({ engine: endless, deadlineMs: 50 });
    const client = await ready();
    client.send(startMessage("slow"));
    const { message } = await finish(client, "slow");
    expect(message).toMatchObject({ type: "error", code: "deadline_exceeded" });
    expect(server.engine.stats().running).toBe(0);
  });

  test("a failing engine ends it with upstream_protocol, a stopped one with not_ready", async () => {
    const failure = { afterTokens: 2, message: "boom", stopped: false };
    start({ engine: { reply: () => idsOf("abc"), failure } });
    const client = await ready();
    client.send(startMessage("f"));
    expect(await finish(client, "f")).toMatchObject({
      text: "ab",
      message: { type: "error", code: "upstream_protocol" },
    });
    server.stop();
    start({ engine: { reply: () => idsOf("abc"), failure: { ...failure, stopped: true } } });
    const other = await ready();
    for (const id of ["f", "g"]) {
      other.send(startMessage(id));
      expect((await finish(other, id)).message).toMatchObject({ type: "error", code: "not_ready" });
    }
  });

  test("a full queue is overloaded, and the session goes on", async () => {
    start({ queueDepth: 0, engine: endless });
    const [first, second] = [await ready(), await ready()];
    first.send(startMessage("a"));
    await first.next();
    second.send(startMessage("b"));
    expect(await second.next()).toMatchObject({ type: "error", id: "b", code: "overloaded" });
    second.send({ type: "ping", id: "p" });
    expect(await second.next()).toEqual({ type: "pong", id: "p" });
  });

  test("deltas never number more than max_tokens, and stop strings hold", async () => {
    start({ engine: { reply: () => idsOf("one STO") } });
    const client = await ready();
    client.send(startMessage("s", { stop: "STOP", max_tokens: 7 }));
    let count = 0;
    let text = "";
    for (;;) {
      const message = await client.next();
      if (message.type === "final") break;
      count++;
      text += message.text;
    }
    expect(text).toBe("one STO");
    expect(count).toBeLessThanOrEqual(7);
  });
});

describe("the handshake", () => {
  test("is needed: a plain GET is a 426, a half one a 400, a POST a 405", async () => {
    start();
    const response = await server.get("/v1/ws");
    expect(response.status).toBe(426);
    expect(response.headers.get("upgrade")).toBe("websocket");
    expect((await server.post("/v1/ws", {})).status).toBe(405);
    const half = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n";
    expect(await exchange(server.port, `${half}Connection: Upgrade\r\n\r\n`)).toStartWith(
      "HTTP/1.1 400",
    );
  });

  test("answers with a request id", async () => {
    start();
    const answer = await exchange(server.port, handshake());
    expect(answer).toStartWith("HTTP/1.1 101");
    expect(answer.toLowerCase()).toContain("x-request-id: ");
  });

  test("takes pages of the same origin and of --cors-origin only", async () => {
    start({ corsOrigins: ["https://app.example"] });
    const status = async (origin: string) =>
      (await exchange(server.port, handshake(`Origin: ${origin}\r\n`))).slice(9, 12);
    expect(await status("https://evil.example")).toBe("403");
    expect(await status("null")).toBe("403");
    expect(await status("https://app.example")).toBe("101");
    expect(await status(`http://127.0.0.1:${server.port}`)).toBe("101");
  });

  test("checks the Host", async () => {
    start();
    const text = handshake().replace(/Host: .*\r\n/, "Host: evil.example\r\n");
    expect(await exchange(server.port, text)).toStartWith("HTTP/1.1 403");
  });

  test("is refused when every session is taken, until one ends", async () => {
    start({ maxSessions: 2 });
    const first = await ready();
    await ready();
    const answer = await exchange(server.port, handshake());
    expect(answer).toStartWith("HTTP/1.1 429");
    expect(answer).toContain("all 2 WebSocket sessions are taken");
    first.socket.close();
    await first.closed;
    await ready();
  });
});

describe("ends", () => {
  test("a close message ends the session, also while a request runs", async () => {
    start({ engine: endless });
    const client = await ready();
    client.send(startMessage("a"));
    await client.next();
    client.send({ type: "close" });
    expect(await client.closed).toBe(1000);
    await until(() => server.engine.stats().running === 0);
  });

  test("a client that is gone frees its place within 250 ms", async () => {
    start({ engine: endless });
    const client = await ready();
    client.send(startMessage("a"));
    await client.next();
    const began = performance.now();
    client.socket.terminate();
    await until(() => server.engine.stats().running === 0);
    expect(performance.now() - began).toBeLessThan(250);
    expect(await (await server.get("/metrics")).text()).toContain(
      'caldrix_http_requests_total{route="/v1/ws",status="499"} 1',
    );
  });

  test("a reader that stops gets every message when it goes on", async () => {
    startLong({});
    const { socket, pieces } = rawSession();
    socket.write(maskedFrame(JSON.stringify(startMessage("slow"))));
    socket.pause();
    await stalled();
    expect(server.engine.produced()).toBeLessThan(LONG_TOKENS);
    socket.resume();
    await until(() => pieces.at(-1)?.includes('"type":"final"') === true, 20_000);
    const texts = [...pieces.join("").matchAll(/"type":"delta","id":"slow","text":"(\d{4})(y+)"/g)];
    expect(texts.map((text) => Number(text[1]))).toEqual([...Array(LONG_TOKENS).keys()]);
    expect(texts.every((text) => text[2]!.length === LONG_BYTES)).toBe(true);
    socket.destroy();
  }, 40_000);

  test("a reader that takes nothing is told, cut off, and its place is free", async () => {
    startLong({ stallMs: 100 });
    const { socket, pieces } = rawSession();
    socket.write(maskedFrame(JSON.stringify(startMessage("slow"))));
    socket.pause();
    await stalled();
    await until(() => server.engine.stats().running === 0, 2_000);
    expect(server.engine.produced()).toBeLessThan(LONG_TOKENS);
    socket.resume();
    const closed = new Promise((resolve) => socket.on("close", resolve));
    await closed;
    const ids = [...pieces.join("").matchAll(/"text":"(\d{4})y/g)].map((text) => Number(text[1]));
    expect(ids).toEqual([...Array(ids.length).keys()]);
    expect(pieces.join("")).toContain('"type":"error","id":"slow","code":"overloaded"');
  }, 40_000);

  test("a flood of pings that nobody reads the answers of is cut off", async () => {
    start();
    const { socket } = rawSession();
    socket.pause();
    const closed = new Promise((resolve) => socket.on("close", resolve).on("error", resolve));
    const flood = Buffer.concat(
      new Array<Buffer>(2000).fill(maskedFrame(`{"type":"ping","id":"${"p".repeat(120)}"}`)),
    );
    let open = true;
    void closed.then(() => {
      open = false;
    });
    for (let i = 0; i < 400 && open; i++) {
      if (!socket.write(flood)) await Promise.race([closed, Bun.sleep(20)]);
    }
    socket.resume();
    await closed;
    expect((await server.get("/healthz")).status).toBe(200);
  }, 30_000);

  test("draining closes idle sessions, lets a running request finish, refuses new ones", async () => {
    start({ engine: { reply: () => idsOf("x".repeat(100)), delayMs: 2 } });
    const [idle, busy] = [await ready(), await ready()];
    busy.send(startMessage("a"));
    await busy.next();
    const drained = server.drain(5_000);
    expect(await idle.closed).toBe(1001);
    expect(await exchange(server.port, handshake())).toStartWith("HTTP/1.1 503");
    expect((await finish(busy, "a")).message.type).toBe("final");
    expect(await busy.closed).toBe(1001);
    await drained;
  });

  test("what does not finish in time ends with shutting_down", async () => {
    start({ engine: endless });
    const client = await ready();
    client.send(startMessage("a"));
    await client.next();
    const drained = server.drain(50);
    const { message } = await finish(client, "a");
    expect(message).toMatchObject({ type: "error", code: "shutting_down" });
    expect(await client.closed).toBe(1001);
    await drained;
  });
});

function handshake(extra = ""): string {
  return (
    `GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\nUpgrade: websocket\r\n` +
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
    `Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n${extra}\r\n`
  );
}

/** Tokens of a long reply: its number and this many letters each, far more than sockets hold. */
const LONG_TOKENS = 1200;
const LONG_BYTES = 16_000;

function startLong(options: TestServerOptions): void {
  const tokenizer = byteTokenizer();
  start({
    engine: { reply: () => [...Array(LONG_TOKENS).keys()] },
    model: {
      eosIds: [LONG_TOKENS],
      tokenizer: {
        ...tokenizer,
        pieceBytes: (id) => Buffer.from(String(id).padStart(4, "0") + "y".repeat(LONG_BYTES)),
      },
    },
    ...options,
  });
}

/** Waits until the engine has begun and then makes nothing for a while. */
async function stalled(): Promise<void> {
  let before = 0;
  for (;;) {
    await Bun.sleep(80);
    const now = server.engine.produced();
    if (now > 0 && now === before) return;
    before = now;
  }
}

/** A session whose client decides when to read. */
function rawSession() {
  const pieces: string[] = [];
  const socket = connect(server.port, "127.0.0.1");
  socket.on("data", (data) => pieces.push(data.toString("latin1")));
  socket.on("error", () => {});
  socket.write(handshake());
  return { socket, pieces };
}

/** A client's text frame of up to 64 KiB, masked with zeros. */
function maskedFrame(text: string): Buffer {
  const payload = Buffer.from(text);
  const length =
    payload.length < 126
      ? Buffer.from([0x80 | payload.length])
      : Buffer.from([0xfe, payload.length >> 8, payload.length & 255]);
  return Buffer.concat([Buffer.from([0x81]), length, Buffer.alloc(4), payload]);
}
