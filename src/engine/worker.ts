// The engine's own thread: takes commands, runs the step loop, reports. It blocks in C during a step and
// lets commands in between two. Started once by client.ts; ends after "close". Also an entry point
// of the compiled binary (build.ts). Nothing here waits at top level: Bun gives no messages to a
// worker whose module is still loading.

import { setImmediate } from "node:timers/promises";
import { NativeError } from "../errors.ts";
import { NativeEngine, NativeModel } from "../native/engine.ts";
import { CODE, WANT } from "../native/layout.ts";
import { openLibrary } from "../native/library.ts";
import type { Command, Report, StepEvent } from "./protocol.ts";
import { packSampling } from "./sampling.ts";
import * as scheduler from "./scheduler.ts";
import { createSequence, generated } from "./sequence.ts";

declare const self: Worker;

interface Opened {
  readonly model: NativeModel;
  readonly engine: NativeEngine;
  readonly state: scheduler.SchedulerState;
  readonly context: number;
}

let opened: Opened | null = null;
let looping = false;
let stopped = false;

self.onmessage = ({ data }: MessageEvent<Command>) => {
  switch (data.kind) {
    case "open":
      open(data);
      return;
    case "submit":
      if (opened === null || stopped) return;
      scheduler.enqueue(
        opened.state,
        createSequence(data.id, data.prompt, data.purpose, opened.context),
      );
      loop().catch(stop);
      return;
    case "cancel": {
      const event = opened === null ? null : scheduler.cancel(opened.state, data.id);
      if (event !== null) report({ kind: "events", events: [event] });
      return;
    }
    case "dropPrefix":
      if (opened !== null) scheduler.dropPrefix(opened.state, data.id);
      return;
    case "close":
      closeAll();
      report({ kind: "closed" });
      return;
    default:
      data satisfies never;
  }
};

function report(message: Report): void {
  self.postMessage(message);
}

function open(command: Extract<Command, { kind: "open" }>): void {
  let model: NativeModel | null = null;
  try {
    model = NativeModel.open(openLibrary(command.library), command.plan, command.model);
    const { limits, maxRows } = command;
    const engine = new NativeEngine(model, limits);
    const prefixRow = limits.maxRows > maxRows ? maxRows : null;
    const state = scheduler.createScheduler(maxRows, limits.stepTokens, prefixRow);
    opened = { model, engine, state, context: limits.context };
    report({ kind: "opened", handle: engine.handle, counters: engine.counters() });
  } catch (error) {
    model?.close();
    const code = error instanceof NativeError ? error.code : CODE.state;
    report({ kind: "refused", code, message: words(error) });
  }
}

/** Steps while there is work; commands come in at each await. */
async function loop(): Promise<void> {
  if (looping || stopped) return;
  looping = true;
  try {
    while (opened !== null && scheduler.hasWork(opened.state)) {
      step(opened);
      await setImmediate();
    }
  } finally {
    looping = false;
  }
}

function step({ engine, state }: Opened): void {
  const plan = scheduler.plan(state);
  // Sent before the step, so that the main thread knows which request it may interrupt.
  if (plan.events.length > 0) report({ kind: "events", events: plan.events });
  let refusal = "";
  try {
    for (const { row, copyFrom, length } of plan.changes) {
      if (copyFrom >= 0) engine.rowCopy(copyFrom, row, length);
      else engine.rowTrim(row, length);
    }
    engine.step(fill(engine, plan));
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    switch (error.code) {
      case CODE.interrupted:
        // No row has changed: the next plan holds the same tokens, less a cancelled request's.
        return;
      case CODE.gpu:
      case CODE.noMemory:
        throw error;
      case CODE.numeric:
        // The rows went on; an output that is still below 0 is the refused one.
        refusal = error.message;
        break;
      default:
        report({ kind: "events", events: failAll(state, plan, error.message) });
        return;
    }
  }
  const logits = (output: number, ids: readonly number[]) => engine.logits(output, ids);
  const events = scheduler.apply(state, plan, engine.out, logits, refusal);
  if (events.length > 0) report({ kind: "events", events });
}

/** Writes a plan into the step block; returns its number of tokens. */
function fill(engine: NativeEngine, plan: scheduler.StepPlan): number {
  let n = 0;
  engine.out.fill(-1);
  for (const { sequence, from, count, want } of plan.parts) {
    for (let i = from; i < from + count; i++, n++) {
      engine.token[n] = sequence.tokens[i]!;
      engine.pos[n] = i;
      engine.row[n] = sequence.row;
      engine.want[n] = WANT.nothing;
    }
    engine.want[n - 1] = want;
    if (want === WANT.sample && sequence.purpose.kind === "generate") {
      const { sampling } = sequence.purpose;
      packSampling(engine.sampling, sequence.row, sampling, generated(sequence));
    }
  }
  return n;
}

function failAll(
  state: scheduler.SchedulerState,
  plan: scheduler.StepPlan,
  message: string,
): StepEvent[] {
  return plan.parts.map(({ sequence }) => scheduler.fail(state, sequence, message));
}

/**
 * Ends the work after a failure the engine cannot go on from. It is freed only by "close": until the
 * main thread has read this report it may still call interrupt().
 */
function stop(error: unknown): void {
  stopped = true;
  report({ kind: "stopped", message: words(error) });
}

function closeAll(): void {
  opened?.engine.close();
  opened?.model.close();
  opened = null;
}

function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
