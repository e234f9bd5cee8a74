// What the routes of one server share, and what a route handler is. Made by server.ts.

import type { DecisionReader } from "../decide/reading.ts";
import type { EngineClient } from "../engine/types.ts";
import type { LoadedModel } from "../model/types.ts";
import type { Admission } from "./admission.ts";
import type { BodyReaders, SamplingDefaults } from "./schema.ts";
import type { Telemetry } from "./telemetry.ts";

/** Everything a server is started with. */
export interface ServerOptions {
  readonly model: LoadedModel;
  readonly engine: EngineClient;
  /** The one accepted value of `model` in requests. */
  readonly servedName: string;
  readonly host: string;
  /** 0 takes any free port. */
  readonly port: number;
  /** Requests that may wait while every row is busy. */
  readonly queueDepth: number;
  readonly defaults: SamplingDefaults;
  /** Longest time a request may take from its admission on; null for no limit. */
  readonly deadlineMs: number | null;
  /** Origins that may read answers; "*" for every one; empty turns CORS off. */
  readonly corsOrigins: readonly string[];
  /** Host names taken besides the loopback ones; only looked at when bound to loopback. */
  readonly allowedHosts: readonly string[];
  readonly metricsCompat: "none" | "vllm";
  /** The second contract: fewer fields, stable error codes, admission by bytes (docs/strict.md). */
  readonly strict: boolean;
  /** WebSocket sessions open at once. */
  readonly maxSessions: number;
  /** Seconds that a connection may stay open without a request; absent: the server's own bound. */
  readonly idleSeconds?: number;
  /** Milliseconds that a WebSocket client may read nothing; absent: the server's own bound. */
  readonly stallMs?: number;
  /** Takes one line; never holds text of a request or a reply. */
  readonly log: (line: string) => void;
}

/** One request on its way through the server. */
export interface Call {
  readonly request: Request;
  /** Value of x-request-id. */
  readonly id: string;
  /** The path as sent. */
  readonly route: string;
  /** Lets the runtime drop the connection again when it is idle; while answering it may not. */
  limitIdle(): void;
  /** Turns the request into a WebSocket: null then, else the answer that refuses it. */
  openSession(): Response | null;
}

/** The state that the handlers of one server share. */
export interface ServerContext {
  readonly options: ServerOptions;
  readonly bodyLimitBytes: number;
  /** Of the mode this server is in. */
  readonly bodies: BodyReaders;
  /** Of the second contract, which the WebSocket speaks in both modes. */
  readonly strictBodies: BodyReaders;
  /** Of /v1/systemone. */
  readonly decisions: DecisionReader;
  readonly admission: Admission;
  readonly telemetry: Telemetry;
  /** Number of the next reply id. */
  nextReply(): number;
  draining(): boolean;
  /** Aborts bodies that are still arriving, when draining begins. */
  readonly bodyStop: AbortController;
  /** Aborts running generations, when draining has taken too long. */
  readonly workStop: AbortController;
  /** Logs a note that matters once in a server's life. */
  noteOnce(line: string): void;
}

/** Answers a request; null when it became a WebSocket. */
export type Handler = (
  context: ServerContext,
  call: Call,
) => Response | null | Promise<Response | null>;
