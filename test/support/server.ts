// A server in this process over the fake engine, with a tokenizer of one token a byte: every token,
// text and count of a reply is known beforehand. For test/http; opens port 0 on loopback.

import { expect } from "bun:test";
import { connect } from "node:net";
import type { ServerOptions } from "../../src/api/context.ts";
import { type RunningServer, startServer } from "../../src/api/server.ts";
import { ApiError } from "../../src/errors.ts";
import type { LoadedModel } from "../../src/model/types.ts";
import type { ChatTemplate, Tokenizer } from "../../src/text/types.ts";
import { type FakeEngine, type FakeEngineOptions, fakeEngine } from "./fake-engine.ts";

export const BOS = 256;
export const EOS = 257;
/** A special token that stands for no text. */
export const SILENT = 258;
/** A token of several bytes that starts inside one word and ends inside the next. */
export const LONG = 259;
export const LONG_TEXT = "lo wo";
export const VOCAB_SIZE = 260;
export const MODEL = "Test/Model";

const encoder = new TextEncoder();

/** Ids of a text: one for each byte. */
export function idsOf(text: string): number[] {
  return [...encoder.encode(text)];
}

/** One token a byte, and a few more. */
export function byteTokenizer(bosId: number | null = null): Tokenizer {
  return {
    vocabSize: VOCAB_SIZE,
    bosId,
    longestTokenBytes: LONG_TEXT.length,
    longestEntryBytes: LONG_TEXT.length,
    encode: (text) => Int32Array.from(encoder.encode(text)),
    pieceBytes(id) {
      if (id < 256) return Uint8Array.of(id);
      return id === LONG ? encoder.encode(LONG_TEXT) : new Uint8Array(0);
    },
    idOf: () => null,
  };
}

const ROLES = ["system", "user", "assistant"];

/** `[role:content]` for each message, then the opening of the answer. */
export function bracketTemplate(systemFolded = false): ChatTemplate {
  return {
    bytes: 20,
    render(messages) {
      messages.forEach(({ role }, i) => {
        if (!ROLES.includes(role)) throw new ApiError(400, "unknown role", `messages[${i}].role`);
      });
      const turns = messages.map(({ role, content }) => `[${role}:${content}]`).join("");
      return { prompt: `${turns}[assistant:`, systemFolded };
    },
  };
}

/** Fields of the model and of the server that a test changes. */
export interface TestServerOptions extends Partial<Omit<ServerOptions, "model" | "engine">> {
  readonly engine?: FakeEngineOptions;
  readonly model?: Partial<LoadedModel>;
}

export interface TestServer extends RunningServer {
  readonly engine: FakeEngine;
  /** Everything the server logged. */
  readonly lines: readonly string[];
  get(path: string, init?: RequestInit): Promise<Response>;
  /** Posts a value as JSON, or a string or bytes as they are. */
  post(path: string, body: unknown, init?: RequestInit): Promise<Response>;
}

/** Starts a server whose model answers "Hello, world." unless told otherwise. */
export function startTestServer(options: TestServerOptions = {}): TestServer {
  const { engine: engineOptions, model, ...rest } = options;
  const engine = fakeEngine(engineOptions ?? { reply: () => idsOf("Hello, world.") });
  const lines: string[] = [];
  const server = startServer({
    model: {
      name: MODEL,
      arch: "llama",
      plan: new ArrayBuffer(0),
      registers: [],
      vocabSize: VOCAB_SIZE + 4,
      contextLength: engine.context,
      eosIds: [EOS],
      tokenizer: byteTokenizer(),
      template: bracketTemplate(),
      decider: null,
      ...model,
    },
    engine,
    servedName: MODEL,
    host: "127.0.0.1",
    port: 0,
    queueDepth: 4,
    defaults: {
      temperature: 0,
      topK: 0,
      topP: 1,
      minP: 0,
      repetitionPenalty: 1,
      seed: null,
    },
    deadlineMs: null,
    corsOrigins: [],
    allowedHosts: [],
    metricsCompat: "none",
    strict: false,
    maxSessions: 4,
    log: (line) => lines.push(line),
    ...rest,
  });
  return {
    ...server,
    engine,
    lines,
    get: (path, init) => fetch(server.url + path, init),
    post(path, body, init) {
      const raw = typeof body === "string" || body instanceof Uint8Array;
      return fetch(server.url + path, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: raw ? body : JSON.stringify(body),
        ...init,
      });
    },
  };
}

/** A chat body with one user message. */
export function chatBody(over: Record<string, unknown> = {}): Record<string, unknown> {
  return { model: MODEL, messages: [{ role: "user", content: "hi" }], ...over };
}

/** A completion body. */
export function completionBody(over: Record<string, unknown> = {}): Record<string, unknown> {
  return { model: MODEL, prompt: "Say", ...over };
}

/** The parts of a whole reply that the tests look at. */
export interface WholeReply {
  readonly choices: readonly [
    {
      readonly finish_reason: string;
      readonly message?: { readonly content: string };
      readonly text?: string;
      readonly token_ids?: readonly number[];
    },
  ];
  readonly usage: Record<"completion_tokens" | "prompt_tokens" | "total_tokens", number>;
}

export interface WireError {
  readonly error: {
    readonly code: null;
    readonly message: string;
    readonly param: string | null;
    readonly type: string;
  };
}

/** The body as the type a test expects of it. */
export async function bodyOf<T>(response: Response): Promise<T> {
  return JSON.parse(await response.text());
}

/** Checks an answer's status and error body; returns the error object. */
export async function expectError(
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
export function exchange(port: number, data: string | Uint8Array, quietMs = 300): Promise<string> {
  return new Promise((resolve) => {
    let got = "";
    const socket = connect(port, "127.0.0.1", () => socket.write(data));
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

/** Waits until `done`, looking every few milliseconds; fails after a while, a second if not told. */
export async function until(done: () => boolean, mostMs = 1000): Promise<void> {
  const end = performance.now() + mostMs;
  while (!done()) {
    if (performance.now() > end) throw new Error(`it did not happen within ${mostMs} ms`);
    await Bun.sleep(2);
  }
}
