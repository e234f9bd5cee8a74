// POST /v1/systemone: typed decisions about a state. Checks the whole request, then runs its prompts
// one at a time, each with a place of its own in the server's queue, so that other requests run between
// them. What the prompts are is in src/decide. Called by server.ts.

import { createDecider } from "../decide/decider.ts";
import type { DecisionReader, Prompt, ReadingPlan } from "../decide/reading.ts";
import { readRequest } from "../decide/request.ts";
import { runPlan } from "../decide/run.ts";
import { createZeroShot } from "../decide/zero-shot.ts";
import { GREEDY } from "../engine/sampling.ts";
import type { Reading, SharedPrefix } from "../engine/types.ts";
import { ApiError } from "../errors.ts";
import type { Call, ServerContext, ServerOptions } from "./context.ts";
import { ClientGone, engineUnavailable, shuttingDown, toApiError } from "./errors.ts";
import { readJson } from "./generate.ts";
import { deadlinePassed } from "./job.ts";
import type { Trace } from "./telemetry.ts";

/** The way in which a server reads decisions from its model. */
export function createDecisionReader({ model, engine }: ServerOptions): DecisionReader {
  return model.decider === null
    ? createZeroShot(model, engine.context)
    : createDecider(model, model.decider, engine.context);
}

/** Answers one request; see docs/systemone.md. */
export async function systemOne(context: ServerContext, call: Call): Promise<Response> {
  const { options, decisions } = context;
  const document = await readJson(context, call);
  if (options.engine.maxRows > 1) {
    throw new ApiError(400, "/v1/systemone needs --max-batch 1", null);
  }
  const request = readRequest(document, options.servedName, decisions.limits());
  const ending = watchEnd(context, call);
  try {
    const plan = await decisions.plan(request, ending.signal);
    const { answers, inputTokens } = await run(context, call, plan, ending.signal);
    const model = JSON.stringify(options.servedName);
    const usage = `{"input_tokens":${inputTokens},"output_tokens":0}`;
    return new Response(`{"model":${model},"answers":${answers},"usage":${usage}}`, {
      headers: { "content-type": "application/json" },
    });
  } finally {
    ending.unwatch();
  }
}

interface Ending {
  /** Aborts with the error to end with. */
  readonly signal: AbortSignal;
  unwatch(): void;
}

/** Everything that ends a request early: its client, its deadline, the server's end. */
function watchEnd({ options, workStop }: ServerContext, { request }: Call): Ending {
  const own = new AbortController();
  const leave = (): void => own.abort(new ClientGone());
  const drop = (): void => own.abort(shuttingDown());
  const { deadlineMs } = options;
  const deadline =
    deadlineMs === null
      ? undefined
      : setTimeout(() => own.abort(deadlinePassed(deadlineMs)), deadlineMs);
  request.signal.addEventListener("abort", leave);
  workStop.signal.addEventListener("abort", drop);
  if (request.signal.aborted) leave();
  if (workStop.signal.aborted) drop();
  return {
    signal: own.signal,
    unwatch() {
      clearTimeout(deadline);
      request.signal.removeEventListener("abort", leave);
      workStop.signal.removeEventListener("abort", drop);
    },
  };
}

/** The record of a request, whose prompts come one after the other. */
type ReadTrace = Trace & { promptTokens: number };

/** Runs a plan, with one record for /debug/requests. */
async function run(
  context: ServerContext,
  call: Call,
  plan: ReadingPlan,
  signal: AbortSignal,
): Promise<ReturnType<typeof runPlan>> {
  const { engine, log } = context.options;
  const trace = beginTrace(call);
  let prefix: SharedPrefix | null = null;
  let promptTokens = 0;
  let status = 200;
  try {
    context.telemetry.begin(trace);
    if (plan.prefixLength > 0) prefix = engine.sharePrefix(plan.prefixLength);
    return await runPlan(plan, async (prompt) => {
      // While it runs, what the engine holds; at the end, all that was read.
      trace.promptTokens = prompt.ids.length;
      const reading = await readQueued(context, prompt, prefix, trace, signal);
      promptTokens += prompt.ids.length;
      trace.cachedTokens += reading.cachedTokens;
      return reading;
    });
  } catch (error) {
    const known = toApiError(error, call.id, log);
    status = known.status;
    throw known;
  } finally {
    if (prefix !== null) engine.dropPrefix(prefix);
    trace.promptTokens = promptTokens;
    context.telemetry.end(trace, status, performance.now());
  }
}

/** Reads one prompt in its turn. @throws ApiError 429 when the queue is full, 503, EngineError */
async function readQueued(
  context: ServerContext,
  { ids, labels }: Prompt,
  prefix: SharedPrefix | null,
  trace: ReadTrace,
  signal: AbortSignal,
): Promise<Reading> {
  const { engine } = context.options;
  if (context.draining()) throw shuttingDown();
  if (engine.stats().stopped) throw engineUnavailable();
  const ticket = context.admission.enter();
  try {
    return await engine.read({ prompt: ids, ids: labels, prefix }, signal, () => {
      ticket.started();
      trace.startedMs ??= performance.now();
    });
  } finally {
    ticket.leave();
  }
}

/** A record like a generation's; nothing is drawn, and the id is the request's own. */
function beginTrace({ id, route }: Call): ReadTrace {
  return {
    id,
    route,
    created: Math.floor(Date.now() / 1000),
    stream: false,
    sampling: GREEDY,
    maxTokens: null,
    promptTokens: 0,
    admittedMs: performance.now(),
    startedMs: null,
    firstTokenMs: null,
    lastTokenMs: null,
    cachedTokens: 0,
    completionTokens: 0,
    finishReason: null,
  };
}
