// Errors on the wire: any thrown value becomes one ApiError, and that one JSON body and Response.
// Only here are error bodies written. Called by
// server.ts for answers and by stream.ts for the event that ends a broken stream.

import { EngineError } from "../engine/types.ts";
import { ApiError } from "../errors.ts";

/** The client closed its connection: nobody reads an answer, so none is written. */
export class ClientGone extends Error {
  constructor() {
    super("the client has gone");
    this.name = "ClientGone";
  }
}

/** nginx's status for a client that left; it reaches the counters, never a socket. */
export const CLIENT_GONE_STATUS = 499;

/** A queue moves within about a reply, so asking again soon is right. */
const RETRY_QUEUE_SECONDS = 1;

/** A server that drains or has lost its engine is replaced, if at all, by a restart. */
const RETRY_UNAVAILABLE_SECONDS = 5;

const SHUTTING_DOWN = "shutting_down";
/** A bug of this server: none of the contract's codes says that. */
const INTERNAL = "internal";
const ENGINE_FAILED = "the engine failed during the request";
const ENGINE_STOPPED = "the engine is unavailable";

/** The error a stopped engine answers with, on every route that needs it. */
export function engineUnavailable(): ApiError {
  return new ApiError(503, ENGINE_STOPPED, null, "not_ready");
}

/** The error of work there is no room for just now. */
export function overloaded(message: string): ApiError {
  return new ApiError(429, message, null, "overloaded");
}

/** The error of a server that finishes its work and takes no more. */
export function shuttingDown(): ApiError {
  return new ApiError(503, "the server is shutting down", null, SHUTTING_DOWN);
}

/**
 * Any thrown value as an ApiError. What is not one is logged with the request's id and told to the
 * client only in general words, so that no path or text of the machine leaves it.
 */
export function toApiError(
  error: unknown,
  requestId: string,
  log: (line: string) => void,
): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof ClientGone) return new ApiError(CLIENT_GONE_STATUS, error.message, null);
  if (error instanceof EngineError) {
    log(`request ${requestId}: engine: ${error.message}`);
    return error.stopped
      ? engineUnavailable()
      : new ApiError(500, ENGINE_FAILED, null, "upstream_protocol");
  }
  const what = error instanceof Error ? `${error.name} at ${firstFrame(error)}` : typeof error;
  log(`request ${requestId}: internal error: ${what}`);
  return new ApiError(500, "internal error", null);
}

/**
 * The error object of an answer or event. Default mode: OpenAI's, keys in alphabetical order, `code`
 * null. Strict mode: a stable code and a message, which then names the field.
 */
export function errorBody(error: ApiError, strict: boolean): string {
  const { message, param, status } = error;
  if (!strict)
    return JSON.stringify({ error: { code: null, message, param, type: typeOf(status) } });
  return JSON.stringify({ error: { code: codeOf(error), message: strictMessage(error) } });
}

/** The stable code of an error, for the strict mode and the WebSocket. */
export function codeOf({ code, status }: ApiError): string {
  if (code !== null) return code;
  return status >= 500 ? INTERNAL : "invalid_request";
}

/** An error's words where no `param` goes beside them. */
export function strictMessage({ message, param }: ApiError): string {
  return param === null ? message : `${param}: ${message}`;
}

/** The HTTP answer to an error. */
export function errorResponse(
  error: ApiError,
  strict: boolean,
  extra: Readonly<Record<string, string>> = {},
): Response {
  const headers = new Headers(extra);
  headers.set("content-type", "application/json");
  if (error.status === 429) headers.set("retry-after", String(RETRY_QUEUE_SECONDS));
  if (error.status === 503) headers.set("retry-after", String(RETRY_UNAVAILABLE_SECONDS));
  // OpenAI clients repeat a 5xx by themselves; these would only fail again.
  if (error.status === 500 || error.message === ENGINE_STOPPED) {
    headers.set("x-should-retry", "false");
  }
  // The rest of a refused upload may still be on its way, and a server that goes away should not
  // be asked again: such a connection is of no further use.
  if (error.status === 413 || error.status === 408 || error.code === SHUTTING_DOWN) {
    headers.set("connection", "close");
  }
  return new Response(errorBody(error, strict), { status: error.status, headers });
}

function typeOf(status: number): string {
  if (status === 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

/** Where an unexpected error was thrown; its message is left out, since it may quote a prompt. */
function firstFrame(error: Error): string {
  const frame = /at .*/.exec(error.stack ?? "");
  return frame === null ? "an unknown place" : frame[0].slice(3).replace(/\(?\/.*\//, "(");
}
