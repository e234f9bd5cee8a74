// One generation from its admission to its end, whoever asked for it: takes a place in the queue,
// makes the prompt's ids, submits them and gives back text as it gets certain. Knows neither HTTP
// nor WebSocket frames. Called by generate.ts and websocket.ts.

import { freshSeed } from "../engine/sampling.ts";
import type { SamplingParams } from "../engine/types.ts";
import { ApiError } from "../errors.ts";
import { createDetokenizer } from "../text/detokenizer.ts";
import { createStopMatcher } from "../text/stop.ts";
import type { ServerContext } from "./context.ts";
import { CLIENT_GONE_STATUS, ClientGone, engineUnavailable, shuttingDown } from "./errors.ts";
import { requireRoom, startable } from "./prompt.ts";
import { type ReplyEnd, type ReplyPart, reply } from "./reply.ts";
import type { ReplyFormat, ReplyHead } from "./respond.ts";
import type { GenerationFields, RequestedSampling, SamplingDefaults } from "./schema.ts";
import type { Trace } from "./telemetry.ts";

/** What a route wants generated. */
export interface Work {
  readonly format: ReplyFormat;
  readonly fields: GenerationFields;
  /** The field to name when the prompt is refused. */
  readonly promptParam: string;
  /** The prompt's token ids; called once a place in the queue is taken. The signal may end it early. */
  makeIds(signal: AbortSignal): Int32Array | Promise<Int32Array>;
}

/** Who waits for the reply. */
export interface Caller {
  readonly route: string;
  /** Aborts when nobody waits any more; an ApiError as its reason is the error to end with. */
  readonly signal: AbortSignal;
  /** Longest time from the admission on; null for no limit. */
  readonly deadlineMs: number | null;
  /** Called once, when the place is free again. @param begun false when startJob throws */
  ended(status: number, begun: boolean): void;
}

/** A running generation and everything that must end with it. */
export interface Job {
  readonly head: ReplyHead;
  /** Counts as they stand; final once `parts` has ended. */
  readonly trace: Trace;
  /** Ends with null when the generation was cancelled: reason() says why. */
  readonly parts: AsyncGenerator<ReplyPart, ReplyEnd | null, undefined>;
  abort(reason: Error): void;
  /** The error that cancelled the generation. */
  reason(): unknown;
  /** Ends the job: frees its place and records it. Only the first call counts. */
  finish(status: number): void;
}

/**
 * Admits one generation and starts it.
 * @throws ApiError 400 for a prompt that is refused, 429, 503, or whatever ended it meanwhile
 */
export async function startJob(context: ServerContext, work: Work, caller: Caller): Promise<Job> {
  const { engine, model, servedName, defaults } = context.options;
  const { deadlineMs } = caller;
  if (context.draining()) throw shuttingDown();
  if (engine.stats().stopped) throw engineUnavailable();
  const ticket = context.admission.enter();
  const admittedMs = performance.now();
  const own = new AbortController();
  let trace: Trace | null = null;
  let finished = false;
  const finish = (status: number): void => {
    if (finished) return;
    finished = true;
    clearTimeout(deadline);
    caller.signal.removeEventListener("abort", leave);
    context.workStop.signal.removeEventListener("abort", drop);
    ticket.leave();
    if (trace !== null) context.telemetry.end(trace, status, performance.now());
    caller.ended(status, trace !== null);
  };
  // The place is free at once, even when a client that reads nothing leaves its frames unread.
  const abort = (reason: Error): void => {
    if (finished) return;
    own.abort(reason);
    finish(reason instanceof ApiError ? reason.status : CLIENT_GONE_STATUS);
  };
  const leave = (): void => {
    const { reason } = caller.signal;
    abort(reason instanceof ApiError ? reason : new ClientGone());
  };
  const drop = (): void => abort(shuttingDown());
  const deadline =
    deadlineMs === null
      ? undefined
      : setTimeout(() => abort(deadlinePassed(deadlineMs)), deadlineMs);
  caller.signal.addEventListener("abort", leave);
  context.workStop.signal.addEventListener("abort", drop);
  if (caller.signal.aborted) leave();
  if (context.workStop.signal.aborted) drop();

  const { fields, format, promptParam } = work;
  try {
    own.signal.throwIfAborted();
    const made = await work.makeIds(own.signal);
    own.signal.throwIfAborted();
    const ids = startable(made, model.tokenizer.bosId, promptParam);
    requireRoom(ids.length, engine.context, promptParam, "");
    const created = Math.floor(Date.now() / 1000);
    const head = { id: format.idPrefix + context.nextReply(), created, model: servedName };
    const sampling = resolveSampling(fields.sampling, defaults);
    const begun = beginTrace(caller.route, head, fields, sampling, ids.length, admittedMs);
    const room = engine.context - ids.length;
    const maxTokens = Math.min(fields.maxTokens ?? room, room);
    const events = engine.submit(
      {
        ids,
        maxTokens,
        stopIds: fields.ignoreEos ? [] : model.eosIds,
        sampling,
      },
      own.signal,
    );
    context.telemetry.begin(begun);
    trace = begun;
    const observer = {
      started(cachedTokens: number): void {
        ticket.started();
        begun.startedMs = performance.now();
        begun.cachedTokens = cachedTokens;
      },
      token(): void {
        begun.completionTokens++;
        begun.lastTokenMs = performance.now();
        begun.firstTokenMs ??= begun.lastTokenMs;
      },
    };
    const matcher = createStopMatcher(fields.stop);
    const detokenizer = createDetokenizer(model.tokenizer);
    const parts = reply(events, detokenizer, matcher, maxTokens, observer);
    return { head, trace: begun, parts, abort, reason: () => own.signal.reason, finish };
  } catch (error) {
    // finish() has counted an abort already; a refusal is counted here.
    finish(error instanceof ApiError ? error.status : 500);
    throw error;
  }
}

function beginTrace(
  route: string,
  head: ReplyHead,
  fields: GenerationFields,
  sampling: SamplingParams,
  promptTokens: number,
  admittedMs: number,
): Trace {
  return {
    id: head.id,
    route,
    created: head.created,
    stream: fields.stream,
    sampling,
    maxTokens: fields.maxTokens,
    promptTokens,
    admittedMs,
    startedMs: null,
    firstTokenMs: null,
    lastTokenMs: null,
    cachedTokens: 0,
    completionTokens: 0,
    finishReason: null,
  };
}

/** The error of a request that took too long. */
export function deadlinePassed(deadlineMs: number): ApiError {
  const message = `the request took longer than the deadline of ${deadlineMs / 1000} s`;
  return new ApiError(504, message, null, "deadline_exceeded");
}

function resolveSampling(asked: RequestedSampling, defaults: SamplingDefaults): SamplingParams {
  const seed = asked.seed ?? defaults.seed ?? "fresh";
  return {
    temperature: asked.temperature ?? defaults.temperature,
    topK: asked.topK ?? defaults.topK,
    topP: asked.topP ?? defaults.topP,
    minP: asked.minP ?? defaults.minP,
    repetitionPenalty: asked.repetitionPenalty ?? defaults.repetitionPenalty,
    seed: seed === "fresh" ? freshSeed() : seed,
  };
}
