// GET /v1/ws: the second contract's WebSocket, in both modes of the server. A session takes typed JSON
// messages, runs at most one generation at a time and sends its text as it gets certain. What it owes
// a slow reader is bounded: it waits for the socket, then ends. Made by server.ts; see docs/websocket.md.

import type { Server, ServerWebSocket, WebSocketHandler } from "bun";
import {
  describeJson,
  isJsonObject,
  type JsonDocument,
  type JsonObject,
  type JsonValue,
  parseJson,
  pathText,
} from "../decide/json.ts";
import { ApiError } from "../errors.ts";
import { chatWork } from "./chat.ts";
import { completionWork } from "./completions.ts";
import type { Call, ServerContext } from "./context.ts";
import {
  CLIENT_GONE_STATUS,
  ClientGone,
  codeOf,
  errorResponse,
  overloaded,
  shuttingDown,
  strictMessage,
  toApiError,
} from "./errors.ts";
import { type Job, startJob, type Work } from "./job.ts";
import { requireSameOrigin } from "./origin.ts";
import { usageObject } from "./respond.ts";

/** The contract's bound on a message. */
const MESSAGE_LIMIT_BYTES = 2 ** 20;

/** Beyond this the runtime cuts the connection itself, before anything of the message is kept. */
const RUNTIME_LIMIT_BYTES = 8 * MESSAGE_LIMIT_BYTES;

/** The contract's bound on ids. */
const MAX_ID_BYTES = 128;

/** The contract's upper deadline. */
const DEADLINE_MS = 300_000;

/** How long a reader that takes nothing is waited for. */
const STALL_MS = 30_000;

/** Bytes of answers to pings and mistakes that may wait for a reader before the session ends. */
const OWED_BYTES = 2 ** 20;

/** Time for the last message and the close frame to reach a client before the socket is cut. */
const CLOSE_GRACE_MS = 1_000;

/** Seconds without a word or a pong, after which the client counts as gone. */
const IDLE_SECONDS = 60;

/** Close codes of RFC 6455 and its registry. */
const CLOSE_NORMAL = 1000;
const CLOSE_GOING_AWAY = 1001;
const CLOSE_TOO_BIG = 1009;
const CLOSE_TRY_LATER = 1013;

/** What the socket says when it cannot keep a message. */
const SEND_DROPPED = 0;
/** What it says when the message waits for the client. */
const SEND_WAITS = -1;

const TOO_SLOW = "the client does not read its messages";

/** The sessions of one server. */
export interface Sessions {
  readonly handler: WebSocketHandler<Session>;
  /** Turns a request into a session; an answer when it may not become one, else null. */
  upgrade(call: Call, server: Server<Session>): Response | null;
  /** Sessions that are open, a closing one until its socket is gone. */
  open(): number;
}

/** One connection's state; the runtime keeps it beside the socket. */
export interface Session {
  opened(socket: Socket): void;
  message(data: string | Uint8Array): void;
  /** The socket has room again. */
  drained(): void;
  closed(): void;
}

type Socket = ServerWebSocket<Session>;

/** Makes the sessions of a server; idle ones end when it begins to drain. */
export function createSessions(context: ServerContext): Sessions {
  const { maxSessions, corsOrigins, strict } = context.options;
  /** From the upgrade on, so that no race opens one too many. */
  let count = 0;

  return {
    open: () => count,
    handler: {
      maxPayloadLength: RUNTIME_LIMIT_BYTES,
      idleTimeout: IDLE_SECONDS,
      sendPings: true,
      open: (socket) => socket.data.opened(socket),
      message: (socket, data) => socket.data.message(data),
      drain: (socket) => socket.data.drained(),
      close: (socket) => socket.data.closed(),
    },
    upgrade(call, server) {
      const { request } = call;
      if (request.headers.get("upgrade")?.toLowerCase() !== "websocket") {
        const error = new ApiError(426, "this path speaks WebSocket only", null);
        return errorResponse(error, strict, { upgrade: "websocket" });
      }
      requireSameOrigin(request, corsOrigins);
      if (context.draining()) throw shuttingDown();
      if (count >= maxSessions) {
        throw overloaded(`all ${maxSessions} WebSocket sessions are taken`);
      }
      const data = createSession(context, call, () => count--);
      count++;
      // The runtime answers 101 itself, before open() is called.
      if (server.upgrade(request, { data, headers: { "x-request-id": call.id } })) return null;
      count--;
      throw new ApiError(400, "not a WebSocket handshake of version 13 with a key", null);
    },
  };
}

/** The generation a session runs. */
interface Active {
  readonly id: string;
  /** Aborts with the error to end with. */
  readonly stop: AbortController;
}

function createSession(context: ServerContext, call: Call, gone: () => void): Session {
  const { servedName, log } = context.options;
  const draining = context.bodyStop.signal;
  let socket: Socket | null = null;
  let active: Active | null = null;
  let closing = false;
  let roomAgain: (() => void) | null = null;

  /** Sends a message; false when the reader is behind. */
  function send(json: string): boolean {
    if (socket === null || closing) return true;
    const sent = socket.send(json);
    if (sent === SEND_DROPPED) fail();
    return sent !== SEND_WAITS;
  }

  /** Sends what no generation waits for; a reader that lets too much of it pile up is cut off. */
  function answer(json: string): void {
    send(json);
    if (socket !== null && socket.getBufferedAmount() > OWED_BYTES) fail();
  }

  function sendError(error: ApiError, id: string | null): void {
    answer(errorMessage(error, id));
  }

  /** Ends the session: nothing is sent after the close frame. */
  function close(code: number, reason: string): void {
    if (socket === null || closing) return;
    const ending = socket;
    closing = true;
    active?.stop.abort(new ClientGone());
    ending.close(code, reason);
    // A client that neither reads nor answers keeps no socket.
    setTimeout(() => ending.terminate(), CLOSE_GRACE_MS);
  }

  /** Ends the session of a reader that is too slow: an error and the end, never a gap. */
  function fail(): void {
    if (socket === null || closing) return;
    socket.send(errorMessage(overloaded(TOO_SLOW), active?.id ?? null));
    close(CLOSE_TRY_LATER, TOO_SLOW);
  }

  /** Waits until the reader has caught up; ends the session when it does not. */
  async function caughtUp(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    roomAgain = resolve;
    const timer = setTimeout(fail, context.options.stallMs ?? STALL_MS);
    await promise;
    clearTimeout(timer);
    roomAgain = null;
  }

  function endIdle(): void {
    if (active === null) close(CLOSE_GOING_AWAY, shuttingDown().message);
  }

  function receive(data: string | Uint8Array): void {
    if (typeof data !== "string") {
      const message = "binary messages are not supported; send JSON as text";
      sendError(new ApiError(400, message, null), null);
      return;
    }
    const bytes = Buffer.from(data);
    if (bytes.byteLength > MESSAGE_LIMIT_BYTES) {
      const message = `a message has at most ${MESSAGE_LIMIT_BYTES} bytes, got ${bytes.byteLength}`;
      sendError(new ApiError(413, message, null), null);
      close(CLOSE_TOO_BIG, message);
      return;
    }
    let id: string | null = null;
    try {
      const document = parseJson(bytes, "the message");
      const { value } = document;
      id = isJsonObject(value) ? echoedId(value.get("id")) : null;
      act(document);
    } catch (error) {
      sendError(toApiError(error, call.id, log), id);
    }
  }

  /** Does what a message says. @throws ApiError 400 */
  function act(document: JsonDocument): void {
    const message = readMessage(document);
    switch (message.type) {
      case "ping":
        answer(pongMessage(message.id));
        return;
      case "close":
        close(CLOSE_NORMAL, "closed by the client's message");
        return;
      case "cancel":
        if (active?.id !== message.id) {
          throw new ApiError(400, "no running request has this id", "id");
        }
        active.stop.abort(cancelled());
        return;
      case "start":
        start(message.id, message.request);
    }
  }

  function start(id: string, request: JsonDocument): void {
    try {
      if (active !== null) {
        throw new ApiError(400, "a session runs one request at a time", null);
      }
      const begun: Active = { id, stop: new AbortController() };
      const work = requestedWork(context, request);
      active = begun;
      void run(begun, work);
    } catch (error) {
      const known = toApiError(error, call.id, log);
      context.telemetry.answered(call.route, known.status);
      throw known;
    }
  }

  /** Runs a generation to its end, which is one message: final or error. */
  async function run({ id, stop }: Active, work: Work): Promise<void> {
    const last = await generation(id, work, stop.signal);
    active = null;
    answer(last);
    if (draining.aborted) endIdle();
  }

  /** Sends the deltas of a generation; returns the message that ends it. */
  async function generation(id: string, work: Work, signal: AbortSignal): Promise<string> {
    let job: Job | null = null;
    try {
      job = await startJob(context, work, {
        route: call.route,
        signal,
        deadlineMs: Math.min(context.options.deadlineMs ?? DEADLINE_MS, DEADLINE_MS),
        ended: (status, begun) => {
          if (begun) context.telemetry.answered(call.route, status);
        },
      });
      for (;;) {
        const { done, value } = await job.parts.next();
        if (!done) {
          if (!send(deltaMessage(id, value.text))) await caughtUp();
          continue;
        }
        if (value === null) throw job.reason() ?? new ClientGone();
        job.trace.finishReason = value.reason;
        job.finish(200);
        return finalMessage(id, value.reason, job);
      }
    } catch (error) {
      const known = toApiError(error, call.id, log);
      if (job === null) context.telemetry.answered(call.route, known.status);
      else job.finish(known.status);
      return errorMessage(known, id);
    } finally {
      job?.finish(CLIENT_GONE_STATUS);
      await job?.parts.return(null);
    }
  }

  return {
    opened(opening) {
      socket = opening;
      draining.addEventListener("abort", endIdle);
      const model = JSON.stringify(servedName);
      send(`{"type":"ready","version":1,"model":${model}}`);
      if (draining.aborted) endIdle();
    },
    message(data) {
      // What a client sent before it learnt of the close does not count.
      if (!closing) receive(data);
    },
    drained() {
      if (socket !== null && socket.getBufferedAmount() === 0) roomAgain?.();
    },
    closed() {
      socket = null;
      draining.removeEventListener("abort", endIdle);
      active?.stop.abort(new ClientGone());
      roomAgain?.();
      gone();
    },
  };
}

type Message =
  | { readonly type: "start"; readonly id: string; readonly request: JsonDocument }
  | { readonly type: "cancel"; readonly id: string }
  | { readonly type: "ping" | "close"; readonly id: string | null };

/** Members of each type of message; all but those of ping and close must be there. */
const MEMBERS: Readonly<Record<Message["type"], readonly string[]>> = {
  start: ["type", "id", "request"],
  cancel: ["type", "id"],
  ping: ["type", "id"],
  close: ["type", "id"],
};

/** Reads a message of a client. @throws ApiError 400 naming the member */
function readMessage(document: JsonDocument): Message {
  const { value, duplicates } = document;
  if (!isJsonObject(value)) {
    throw new ApiError(400, `a message must be a JSON object, got ${describeJson(value)}`, null);
  }
  if (duplicates.length > 0) throw new ApiError(400, "duplicate key", pathText(duplicates[0]!));
  const type = readType(value.get("type"));
  const unknown = value.keys().find((name) => !MEMBERS[type].includes(name));
  if (unknown !== undefined) throw new ApiError(400, "unknown field", pathText([unknown]));
  if (type === "ping" || type === "close") {
    return { type, id: value.has("id") ? readId(value.get("id")) : null };
  }
  const id = readId(value.get("id"));
  if (type === "cancel") return { type, id };
  return { type, id, request: { value: value.get("request") ?? null, duplicates: [] } };
}

function readType(value: JsonValue | undefined): Message["type"] {
  if (typeof value === "string" && Object.hasOwn(MEMBERS, value)) return value as Message["type"];
  const wanted = Object.keys(MEMBERS).join(", ");
  throw new ApiError(400, `must be one of ${wanted}`, "type");
}

function readId(value: JsonValue | undefined): string {
  if (typeof value !== "string") {
    throw new ApiError(400, `must be a string, got ${describeJson(value)}`, "id");
  }
  const bytes = Buffer.byteLength(value);
  if (bytes >= 1 && bytes <= MAX_ID_BYTES) return value;
  throw new ApiError(400, `must have 1 to ${MAX_ID_BYTES} bytes in UTF-8, got ${bytes}`, "id");
}

/** The id to name in an error about a message: whatever could be one. */
function echoedId(value: JsonValue | undefined): string | null {
  return typeof value === "string" && Buffer.byteLength(value) <= MAX_ID_BYTES ? value : null;
}

/** What a start's request asks for. @throws ApiError 400 naming the field */
function requestedWork(context: ServerContext, { value }: JsonDocument): Work {
  if (!isJsonObject(value)) {
    throw new ApiError(400, `must be an object, got ${describeJson(value)}`, "request");
  }
  const mode = value.get("mode");
  const makeWork = mode === "chat" ? chatWork : mode === "completion" ? completionWork : null;
  if (makeWork === null) throw new ApiError(400, `must be "completion" or "chat"`, "mode");
  if (value.get("stream") === false) {
    throw new ApiError(400, "a WebSocket always streams; leave it out", "stream");
  }
  const body: JsonObject = new Map([...value].filter(([name]) => name !== "mode"));
  const work = makeWork(context, context.strictBodies, { value: body, duplicates: [] });
  return { ...work, fields: { ...work.fields, stream: true } };
}

/** A cancelled request's error; its status is only counted. */
function cancelled(): ApiError {
  return new ApiError(CLIENT_GONE_STATUS, "the request was cancelled", null, "cancelled");
}

function deltaMessage(id: string, text: string): string {
  return `{"type":"delta","id":${JSON.stringify(id)},"text":${JSON.stringify(text)}}`;
}

function finalMessage(id: string, reason: string, { trace }: Job): string {
  const usage = usageObject(trace);
  return `{"type":"final","id":${JSON.stringify(id)},"finish_reason":"${reason}","usage":${usage}}`;
}

function pongMessage(id: string | null): string {
  return `{"type":"pong"${idMember(id)}}`;
}

function errorMessage(error: ApiError, id: string | null): string {
  const code = codeOf(error);
  const message = JSON.stringify(strictMessage(error));
  return `{"type":"error"${idMember(id)},"code":"${code}","message":${message}}`;
}

function idMember(id: string | null): string {
  return id === null ? "" : `,"id":${JSON.stringify(id)}`;
}
