// Generations over HTTP: reads the body, runs the job and answers as JSON or as a stream of events.
// Called by chat.ts and completions.ts.

import { type JsonDocument, parseJson } from "../decide/json.ts";
import { ApiError } from "../errors.ts";
import { readBody } from "./body.ts";
import type { Call, ServerContext } from "./context.ts";
import { CLIENT_GONE_STATUS, ClientGone, errorBody, toApiError } from "./errors.ts";
import { type Job, startJob, type Work } from "./job.ts";
import { dataFrame, endFrames, type ShownIds } from "./respond.ts";
import { frameStream, STREAM_HEADERS } from "./stream.ts";

/** The body of a generation request as JSON. @throws ApiError 400, 408, 413, 415 or 503 */
export async function readJson(context: ServerContext, call: Call): Promise<JsonDocument> {
  if (context.options.strict) requireJsonType(call.request);
  const stop = context.bodyStop.signal;
  const bytes = await readBody(call.request, context.bodyLimitBytes, stop);
  if (bytes.byteLength === 0) throw new ApiError(400, "the request body is empty", null);
  return parseJson(bytes);
}

/** Answers one generation request. */
export async function generate(context: ServerContext, call: Call, work: Work): Promise<Response> {
  const { stream } = work.fields;
  const job = await startJob(context, work, {
    route: call.route,
    signal: call.request.signal,
    deadlineMs: context.options.deadlineMs,
    ended(status, begun) {
      call.limitIdle();
      // Whole answers and refusals are counted as they are made; a stream's end is known only now.
      if (stream && begun) context.telemetry.answered(call.route, status);
    },
  });
  const exchange: Exchange = { context, call, work, job };
  if (!stream) return wholeAnswer(exchange);
  const frames = frameStream(streamFrames(exchange), () => job.abort(new ClientGone()));
  return new Response(frames, { headers: STREAM_HEADERS });
}

/** The strict mode takes one media type; its parameters do not matter. @throws ApiError 415 */
function requireJsonType(request: Request): void {
  const type = request.headers.get("content-type") ?? "";
  if (/^application\/json[\t ]*(;|$)/i.test(type.trim())) return;
  const got = type === "" ? "none" : JSON.stringify(type.slice(0, 80));
  throw new ApiError(415, `the content-type must be application/json, got ${got}`, null);
}

interface Exchange {
  readonly context: ServerContext;
  readonly call: Call;
  readonly work: Work;
  readonly job: Job;
}

async function wholeAnswer({ context, call, work, job }: Exchange): Promise<Response> {
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
      const body = work.format.whole(head, text, value.reason, shown(work, ids), trace);
      return new Response(body, { headers: { "content-type": "application/json" } });
    }
  } catch (error) {
    const known = toApiError(error, call.id, context.options.log);
    job.finish(known.status);
    throw known;
  }
}

/** Every frame of a stream; a failure is its last one, since the 200 has been sent. */
async function* streamFrames(exchange: Exchange): AsyncGenerator<string, void, undefined> {
  const { context, call, work, job } = exchange;
  const { strict, log } = context.options;
  const frames = work.format.frames(job.head);
  try {
    for (;;) {
      const { done, value } = await job.parts.next();
      if (!done) {
        yield frames.text(value.text, shown(work, value.ids));
        continue;
      }
      if (value === null) throw job.reason() ?? new ClientGone();
      job.trace.finishReason = value.reason;
      const usage = strict || work.fields.includeUsage ? job.trace : null;
      // Before the last frame: whoever has read it finds the place free and the record written.
      job.finish(200);
      yield endFrames(frames, value.reason, shown(work, value.ids), usage, strict);
      return;
    }
  } catch (error) {
    const known = toApiError(error, call.id, log);
    job.finish(known.status);
    if (!(error instanceof ClientGone)) yield dataFrame(errorBody(known, strict));
  } finally {
    // Returned early: the client has gone. The parts cancel the engine's work as they end.
    job.finish(CLIENT_GONE_STATUS);
    await job.parts.return(null);
  }
}

function shown(work: Work, ids: readonly number[]): ShownIds {
  return work.fields.returnTokenIds ? ids : null;
}
