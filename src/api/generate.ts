// What chat and completions share: read the body, take a place in the queue, count the prompt, run
// the generation and answer as JSON or as a stream. Called by chat.ts and completions.ts.

import { type JsonDocument, parseJson } from "../decide/json.ts";
import { freshSeed } from "../engine/sampling.ts";
import type { SamplingParams } from "../engine/types.ts";
import { ApiError } from "../errors.ts";
import { createDetokenizer } from "../text/detokenizer.ts";
import { createStopMatcher } from "../text/stop.ts";
import type { Ticket } from "./admission.ts";
import { readBody } from "./body.ts";
import type { Call, ServerContext } from "./context.ts";
import {
  CLIENT_GONE_STATUS,
  ClientGone,
  engineUnavailable,
  openAiErrorBody,
  shuttingDown,
  toApiError,
} from "./errors.ts";
import { type ReplyEnd, type ReplyPart, reply } from "./reply.ts";
import {
  dataFrame,
  endFrames,
  type ReplyFormat,
  type ReplyHead,
  type ShownIds,
} from "./respond.ts";
import type { GenerationFields, RequestedSampling, SamplingDefaults } from "./schema.ts";
import { frameStream, STREAM_HEADERS } from "./stream.ts";
import type { Trace } from "./telemetry.ts";

/** The body of a generation request as JSON. @throws ApiError 400, 408, 413, 415 or 503 */
export async function readJson(context: ServerContext, call: Call): Promise<JsonDocument> {
  const stop = context.bodyStop.signal;
  const bytes = await readBody(call.request, context.bodyLimitBytes, stop);
  if (bytes.byteLength === 0) throw new ApiError(400, "the request body is empty", null);
  return parseJson(bytes);
}

/**
 * Answers one generation request.
 * @param promptParam the field to name when the prompt is too long
 * @param makeIds the prompt's token ids; called once a place in the queue is taken
 */
export async function generate(
  context: ServerContext,
  call: Call,
  format: ReplyFormat,
  fields: GenerationFields,
  promptParam: string,
  makeIds: () => Int32Array,
): Promise<Response> {
  if (context.draining()) throw shuttingDown();
  if (context.options.engine.stats().stopped) throw engineUnavailable();
  const ticket = context.admission.enter();
  let job: Job;
  try {
    const ids = startable(makeIds(), context.options.model.tokenizer.bosId, promptParam);
    requireRoom(ids.length, context.options.engine.context, promptParam, "");
    job = startJob(context, call, format, fields, ids, ticket);
  } catch (error) {
    ticket.leave();
    throw error;
  }
  if (!fields.stream) return wholeAnswer(job);
  const stream = frameStream(streamFrames(job), () => job.abort(new ClientGone()));
  return new Response(stream, { headers: STREAM_HEADERS });
}

/**
 * Refuses text so long that it cannot fit even at the longest token a byte run can become, before
 * the tokenizer spends seconds on it.
 */
export function requireTextRoom(context: ServerContext, text: string, param: string): void {
  const { engine, model } = context.options;
  const least = Math.ceil(Buffer.byteLength(text) / model.tokenizer.longestTokenBytes);
  requireRoom(least, engine.context, param, "at least ");
}

/** An empty prompt starts from the model's BOS token; without one there is nothing to start from. */
function startable(ids: Int32Array, bosId: number | null, param: string): Int32Array {
  if (ids.length > 0) return ids;
  if (bosId !== null) return Int32Array.of(bosId);
  throw new ApiError(400, "must not be empty: the model has no token to start from", param);
}

function requireRoom(nTokens: number, context: number, param: string, bound: string): void {
  if (nTokens < context) return;
  const message =
    `the prompt has ${bound}${nTokens} tokens; ` +
    `the context holds ${context}, one of them for the answer`;
  throw new ApiError(400, message, param);
}

/** A running generation and everything that must end with it. */
interface Job {
  readonly context: ServerContext;
  readonly format: ReplyFormat;
  readonly fields: GenerationFields;
  readonly head: ReplyHead;
  readonly trace: Trace;
  readonly parts: AsyncGenerator<ReplyPart, ReplyEnd | null, undefined>;
  readonly requestId: string;
  abort(reason: Error): void;
  /** The error that cancelled the generation. */
  reason(): unknown;
  /** Ends the job: frees its place and records it. Only the first call counts. */
  finish(status: number): void;
}

function startJob(
  context: ServerContext,
  call: Call,
  format: ReplyFormat,
  fields: GenerationFields,
  ids: Int32Array,
  ticket: Ticket,
): Job {
  const { engine, model, servedName, defaults, deadlineMs } = context.options;
  const sampling = resolveSampling(fields.sampling, defaults);
  const room = engine.context - ids.length;
  const created = Math.floor(Date.now() / 1000);
  const head = { id: format.idPrefix + context.nextReply(), created, model: servedName };
  const trace: Trace = {
    id: head.id,
    route: call.route,
    created,
    stream: fields.stream,
    sampling,
    maxTokens: fields.maxTokens,
    promptTokens: ids.length,
    admittedMs: performance.now(),
    startedMs: null,
    firstTokenMs: null,
    lastTokenMs: null,
    cachedTokens: 0,
    completionTokens: 0,
    finishReason: null,
  };
  const own = new AbortController();
  const events = engine.submit(
    {
      ids,
      maxTokens: Math.min(fields.maxTokens ?? room, room),
      stopIds: fields.ignoreEos ? [] : model.eosIds,
      sampling,
    },
    own.signal,
  );
  context.telemetry.begin(trace);
  const observer = {
    started(cachedTokens: number): void {
      ticket.started();
      trace.startedMs = performance.now();
      trace.cachedTokens = cachedTokens;
    },
    token(): void {
      trace.completionTokens++;
      trace.lastTokenMs = performance.now();
      trace.firstTokenMs ??= trace.lastTokenMs;
    },
  };
  let finished = false;
  const finish = (status: number): void => {
    if (finished) return;
    finished = true;
    clearTimeout(deadline);
    call.limitIdle();
    call.request.signal.removeEventListener("abort", leave);
    context.workStop.signal.removeEventListener("abort", drop);
    ticket.leave();
    context.telemetry.end(trace, status, performance.now());
  };
  // The place is free at once, even when a client that reads nothing leaves its frames unread.
  const abort = (reason: Error): void => {
    if (finished) return;
    own.abort(reason);
    finish(reason instanceof ApiError ? reason.status : CLIENT_GONE_STATUS);
  };
  const leave = (): void => abort(new ClientGone());
  const drop = (): void => abort(shuttingDown());
  const deadline =
    deadlineMs === null
      ? undefined
      : setTimeout(() => abort(deadlinePassed(deadlineMs)), deadlineMs);
  call.request.signal.addEventListener("abort", leave);
  context.workStop.signal.addEventListener("abort", drop);
  if (call.request.signal.aborted) leave();
  if (context.workStop.signal.aborted) drop();

  return {
    context,
    format,
    fields,
    head,
    trace,
    parts: reply(
      events,
      createDetokenizer(model.tokenizer),
      createStopMatcher(fields.stop),
      observer,
    ),
    requestId: call.id,
    abort,
    reason: () => own.signal.reason,
    finish,
  };
}

async function wholeAnswer(job: Job): Promise<Response> {
  const ids: number[] = [];
  let text = "";
  try {
    for (;;) {
      const { done, value } = await job.parts.next();
      if (!done) {
        text += value.text;
        ids.push(...value.ids);
        continue;
      }
      if (value === null) throw job.reason() ?? new ClientGone();
      job.trace.finishReason = value.reason;
      ids.push(...value.ids);
      job.finish(200);
      const { head, trace } = job;
      const body = job.format.whole(head, text, value.reason, shown(job, ids), trace);
      return new Response(body, { headers: { "content-type": "application/json" } });
    }
  } catch (error) {
    const known = toApiError(error, job.requestId, job.context.options.log);
    job.finish(known.status);
    throw known;
  }
}

/** Every frame of a stream; a failure is its last one, since the 200 has been sent. */
async function* streamFrames(job: Job): AsyncGenerator<string, void, undefined> {
  const frames = job.format.frames(job.head);
  try {
    for (;;) {
      const { done, value } = await job.parts.next();
      if (!done) {
        yield frames.text(value.text, shown(job, value.ids));
        continue;
      }
      if (value === null) throw job.reason() ?? new ClientGone();
      job.trace.finishReason = value.reason;
      const usage = job.fields.includeUsage ? job.trace : null;
      // Before the last frame: whoever has read it finds the place free and the record written.
      job.finish(200);
      yield endFrames(frames, value.reason, shown(job, value.ids), usage);
      return;
    }
  } catch (error) {
    const known = toApiError(error, job.requestId, job.context.options.log);
    job.finish(known.status);
    if (!(error instanceof ClientGone)) yield dataFrame(openAiErrorBody(known));
  } finally {
    // Returned early: the client has gone. The parts cancel the engine's work as they end.
    job.finish(CLIENT_GONE_STATUS);
    await job.parts.return(null);
  }
}

function shown(job: Job, ids: readonly number[]): ShownIds {
  return job.fields.returnTokenIds ? ids : null;
}

function deadlinePassed(deadlineMs: number): ApiError {
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
