// The HTTP server: one explicit route table, the Host check, CORS, request ids, draining. What a
// route does is in its own file. Started by cli/serve.ts and by the tests.

import { ApiError } from "../errors.ts";
import { createAdmission } from "./admission.ts";
import { chat } from "./chat.ts";
import { completions } from "./completions.ts";
import type { Call, Handler, ServerContext, ServerOptions } from "./context.ts";
import { engineUnavailable, errorResponse, shuttingDown, toApiError } from "./errors.ts";
import { corsHeaders, isLoopback, preflight, requireHost } from "./origin.ts";
import { modelsBody } from "./respond.ts";
import { createBodyReaders, createStrictReaders } from "./schema.ts";
import { STREAM_HEADERS } from "./stream.ts";
import { createDecisionReader, systemOne } from "./systemone.ts";
import { createTelemetry } from "./telemetry.ts";
import { createSessions, type Session } from "./websocket.ts";

/** The contract's body limit for a text model. */
const BODY_LIMIT_BYTES = 4 * 2 ** 20;

/** The answer's limit when a strict request names none. */
const STRICT_MAX_TOKENS = 512;

/**
 * Seconds after which the runtime drops a connection on which nothing comes: half a header, or no
 * further request. It is switched off while a request is answered, since a long prefill is silent.
 */
const IDLE_SECONDS = 120;

/** The status of a request that became a WebSocket. */
const SWITCHED_STATUS = 101;

/** How often draining looks whether the last answer has been written. */
const DRAIN_POLL_MS = 10;

/** Time for the error events of cut streams to reach their clients. */
const DRAIN_GRACE_MS = 1_000;

export interface RunningServer {
  readonly port: number;
  readonly url: string;
  /** Refuses new work, lets running work finish for timeoutMs, cuts the rest, then stops. */
  drain(timeoutMs: number): Promise<void>;
  /** Closes everything at once. */
  stop(): void;
}

type Methods = Readonly<Partial<Record<"GET" | "POST", Handler>>>;

const ROUTES: ReadonlyMap<string, Methods> = new Map<string, Methods>([
  ["/healthz", { GET: () => text("ok") }],
  ["/health", { GET: () => text("ok") }],
  ["/readyz", { GET: ready }],
  ["/metrics", { GET: metrics }],
  ["/debug/requests", { GET: ({ telemetry }) => json(telemetry.recent()) }],
  ["/v1/models", { GET: ({ options }) => json(modelsBody(options.servedName)) }],
  ["/v1/chat/completions", { POST: chat }],
  ["/v1/completions", { POST: completions }],
  ["/v1/systemone", { POST: systemOne }],
  ["/v1/ws", { GET: (_context, call) => call.openSession() }],
]);

/** Routes that the second contract does not have. */
const DEFAULT_MODE_ONLY: ReadonlySet<string> = new Set(["/v1/systemone"]);

/**
 * Opens the port and serves until stopped.
 * @throws the runtime's error when the port cannot be opened (its `code` is EADDRINUSE or EACCES)
 */
export function startServer(options: ServerOptions): RunningServer {
  const context = createContext(options);
  const loopback = isLoopback(options.host);
  const idleSeconds = options.idleSeconds ?? IDLE_SECONDS;
  let drainBegun = false;

  const sessions = createSessions(context);
  const server = Bun.serve<Session>({
    hostname: options.host,
    port: options.port,
    idleTimeout: idleSeconds,
    // The runtime's own 413 has no body, so counting is ours (body.ts).
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    development: false,
    // Without development Bun would share the port with another server in silence.
    reusePort: false,
    websocket: sessions.handler,
    async fetch(request, bun) {
      bun.timeout(request, 0);
      const call: Call = {
        request,
        id: crypto.randomUUID(),
        route: pathOf(request),
        // The runtime keeps the setting for the connection's later requests, too.
        limitIdle: () => bun.timeout(request, idleSeconds),
        openSession: () => sessions.upgrade(call, bun),
      };
      const response = await answer(call);
      if (response === null) {
        context.telemetry.answered(call.route, SWITCHED_STATUS);
        return;
      }
      // A stream goes on: generate.ts does it when the last frame is made.
      if (!isStream(response)) call.limitIdle();
      response.headers.set("x-request-id", call.id);
      for (const [name, value] of corsHeaders(request, options.corsOrigins)) {
        response.headers.set(name, value);
      }
      if (isStream(response)) return response;
      const route = ROUTES.has(call.route) ? call.route : "other";
      context.telemetry.answered(route, response.status);
      return response;
    },
  });

  async function answer(call: Call): Promise<Response | null> {
    try {
      if (loopback) requireHost(call.request, options.allowedHosts);
      return await route(call);
    } catch (error) {
      const known = toApiError(error, call.id, options.log);
      return errorResponse(known, options.strict);
    }
  }

  function route(call: Call): ReturnType<Handler> {
    const missing = options.strict && DEFAULT_MODE_ONLY.has(call.route);
    const methods = missing ? undefined : ROUTES.get(call.route);
    if (methods === undefined) throw new ApiError(404, "no such path", null);
    const { method } = call.request;
    if (method === "OPTIONS") {
      const answered = preflight(call.request, options.corsOrigins, allowed(methods));
      if (answered !== null) return answered;
    }
    const handler = method === "HEAD" ? methods.GET : methods[method as keyof Methods];
    if (handler !== undefined) return handler(context, call);
    const allow = allowed(methods).join(", ");
    const error = new ApiError(405, `${method} is not served here; use ${allow}`, null);
    return errorResponse(error, options.strict, { allow });
  }

  async function settled(timeoutMs: number): Promise<void> {
    const end = performance.now() + timeoutMs;
    const busy = (): boolean => server.pendingRequests + sessions.open() > 0;
    while (busy() && performance.now() < end) await Bun.sleep(DRAIN_POLL_MS);
  }

  return {
    port: server.port ?? options.port,
    url: `http://${options.host.includes(":") ? `[${options.host}]` : options.host}:${server.port}`,
    async drain(timeoutMs) {
      if (drainBegun) return;
      drainBegun = true;
      context.bodyStop.abort(shuttingDown());
      await settled(timeoutMs);
      context.workStop.abort(shuttingDown());
      await settled(DRAIN_GRACE_MS);
      await server.stop(true);
    },
    stop() {
      void server.stop(true);
    },
  };
}

function createContext(options: ServerOptions): ServerContext {
  const { engine, model, servedName } = options;
  const vocabSize = Math.min(model.vocabSize, model.tokenizer.vocabSize);
  const maxTokens = options.strict ? STRICT_MAX_TOKENS : null;
  const strictBodies = createStrictReaders({ servedName }, maxTokens);
  const notes = new Set<string>();
  const bodyStop = new AbortController();
  let replies = 0;
  return {
    options,
    bodyLimitBytes: BODY_LIMIT_BYTES,
    bodies: options.strict ? strictBodies : createBodyReaders({ servedName, vocabSize }),
    strictBodies,
    decisions: createDecisionReader(options),
    admission: createAdmission(engine.maxRows, options.queueDepth),
    telemetry: createTelemetry(engine.maxRows * engine.context, options.metricsCompat),
    nextReply: () => ++replies,
    draining: () => bodyStop.signal.aborted,
    bodyStop,
    workStop: new AbortController(),
    noteOnce(line) {
      if (notes.has(line)) return;
      notes.add(line);
      options.log(line);
    },
  };
}

function isStream(response: Response): boolean {
  return response.headers.get("content-type") === STREAM_HEADERS["content-type"];
}

/** The path as sent, without query: routes match exactly, so nothing is decoded or tidied up. */
function pathOf(request: Request): string {
  const match = /^(?:[a-z]+:\/\/[^/?#]*)?([^?#]*)/i.exec(request.url);
  return match?.[1] || "/";
}

function allowed(methods: Methods): readonly string[] {
  return methods.GET === undefined ? ["POST"] : ["GET", "HEAD"];
}

function ready(context: ServerContext): Response {
  if (context.draining()) throw shuttingDown();
  if (context.options.engine.stats().stopped) throw engineUnavailable();
  return text("ok");
}

function metrics({ telemetry, admission }: ServerContext): Response {
  return new Response(telemetry.metrics(admission.counts()), {
    headers: { "content-type": "text/plain; version=0.0.4; charset=utf-8" },
  });
}

function text(body: string): Response {
  return new Response(body, { headers: { "content-type": "text/plain; charset=utf-8" } });
}

function json(body: string): Response {
  return new Response(body, { headers: { "content-type": "application/json" } });
}
