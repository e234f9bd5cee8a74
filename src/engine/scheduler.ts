// Decides which tokens each step computes. Every sequence is so many tokens behind; a step takes the next
// ones of each within its budget. So prefill in chunks, decoding, batching and prefix reuse are one
// path. Pure: no I/O, clock or chance. plan() admits and lists, the worker runs the step, apply()
// takes its outputs. Called by worker.ts.

import { WANT } from "../native/layout.ts";
import type { StepEvent } from "./protocol.ts";
import { acquire, createRows, drop, occupy, type Rows, release } from "./rows.ts";
import { generated, type Sequence } from "./sequence.ts";
import type { SharedPrefix } from "./types.ts";

export interface SchedulerState {
  readonly waiting: Sequence[];
  readonly running: Sequence[];
  readonly rows: Rows;
  /** Most tokens of one step. */
  readonly stepTokens: number;
  /** The row beside those of `rows` that keeps a shared prefix; null: there is none. */
  readonly prefixRow: number | null;
  /** Whose prefix is in it; null: nobody's. The first to ask has it until it is dropped. */
  prefixOwner: number | null;
}

/** Tokens [from, from + count) of a sequence; want is what its last one asks for. */
export interface Part {
  readonly sequence: Sequence;
  readonly from: number;
  readonly count: number;
  readonly want: (typeof WANT)[keyof typeof WANT];
}

/** A change to a row before the step: cut to `length`, after copying that much when copyFrom >= 0. */
export interface RowChange {
  readonly row: number;
  readonly copyFrom: number;
  readonly length: number;
}

export interface StepPlan {
  readonly changes: readonly RowChange[];
  readonly parts: readonly Part[];
  /** "started" of every sequence admitted now. */
  readonly events: readonly StepEvent[];
}

/** An idle scheduler. */
export function createScheduler(
  maxRows: number,
  stepTokens: number,
  prefixRow: number | null = null,
): SchedulerState {
  const rows = createRows(maxRows);
  return { waiting: [], running: [], rows, stepTokens, prefixRow, prefixOwner: null };
}

export function hasWork(state: SchedulerState): boolean {
  return state.running.length > 0 || state.waiting.length > 0;
}

/** Puts a sequence at the end of the queue. */
export function enqueue(state: SchedulerState, sequence: Sequence): void {
  state.waiting.push(sequence);
}

/**
 * The next step: running sequences in order of admission, then waiting ones while a row is free, until
 * the budget is spent. Admission changes the state; computing does only in apply().
 */
export function plan(state: SchedulerState): StepPlan {
  const changes: RowChange[] = [];
  const parts: Part[] = [];
  const events: StepEvent[] = [];
  let budget = state.stepTokens;
  for (const sequence of state.running) {
    if (budget === 0) break;
    keepPrefix(state, sequence, changes);
    budget -= take(state, sequence, budget, parts);
  }
  while (budget > 0 && state.waiting.length > 0) {
    const sequence = state.waiting[0]!;
    const change = admit(state, sequence);
    if (change === null) break;
    state.waiting.shift();
    state.running.push(sequence);
    changes.push(change);
    events.push({ kind: "started", id: sequence.id, cachedTokens: change.length });
    keepPrefix(state, sequence, changes);
    budget -= take(state, sequence, budget, parts);
  }
  return { changes, parts, events };
}

/** Gives a sequence its row, with as much of its prompt as is there already; null: no row is free. */
function admit(state: SchedulerState, sequence: Sequence): RowChange | null {
  const prompt = sequence.tokens.subarray(0, sequence.promptLength);
  const found = acquire(state.rows, prompt);
  if (found === null) return null;
  const { row } = found;
  const prefix = prefixOf(sequence);
  const kept = prefix !== null && prefix.id === state.prefixOwner ? prefix.length : 0;
  sequence.row = row;
  if (state.prefixRow === null || kept <= found.reused) {
    sequence.computed = found.reused;
    return { row, copyFrom: found.copyFrom, length: found.reused };
  }
  sequence.computed = kept;
  occupy(state.rows.rows[row]!, prompt, kept);
  return { row, copyFrom: state.prefixRow, length: kept };
}

function prefixOf({ purpose }: Sequence): SharedPrefix | null {
  return purpose.kind === "read" ? purpose.prefix : null;
}

/** The prefix that a sequence still has to put into the prefix row, or null. */
function prefixToKeep(state: SchedulerState, sequence: Sequence): SharedPrefix | null {
  const free = state.prefixRow !== null && state.prefixOwner === null;
  return free ? prefixOf(sequence) : null;
}

/** Copies a shared prefix into the prefix row as soon as a sequence has computed it. */
function keepPrefix(state: SchedulerState, sequence: Sequence, changes: RowChange[]): void {
  const prefix = prefixToKeep(state, sequence);
  if (prefix === null || sequence.computed < prefix.length) return;
  changes.push({ row: state.prefixRow!, copyFrom: sequence.row, length: prefix.length });
  state.prefixOwner = prefix.id;
}

/**
 * Adds the next tokens of a sequence, at most `budget`; returns how many. A step ends where a prefix
 * that is to be kept does: a recurrent state can be copied only where it stands.
 */
function take(state: SchedulerState, sequence: Sequence, budget: number, parts: Part[]): number {
  const end = prefixToKeep(state, sequence)?.length ?? sequence.length;
  const count = Math.min(end - sequence.computed, budget);
  const last = sequence.computed + count === sequence.length;
  const asked = sequence.purpose.kind === "read" ? WANT.logits : WANT.sample;
  parts.push({ sequence, from: sequence.computed, count, want: last ? asked : WANT.nothing });
  return count;
}

/**
 * Takes the outputs of a step that was run.
 * @param out a token id for each part with a want, in order; below 0: no token could be drawn
 * @param logits reads logits of tokens at an output of the step
 * @param refusal why an output is below 0
 */
export function apply(
  state: SchedulerState,
  step: StepPlan,
  out: ArrayLike<number>,
  logits: (output: number, ids: readonly number[]) => Float32Array,
  refusal: string,
): StepEvent[] {
  const events: StepEvent[] = [];
  let output = 0;
  for (const { sequence, count, want } of step.parts) {
    sequence.computed += count;
    occupy(state.rows.rows[sequence.row]!, sequence.tokens, sequence.computed);
    if (want === WANT.nothing) continue;
    const at = output++;
    const { purpose } = sequence;
    if (purpose.kind === "read") {
      const values = logits(at, purpose.ids);
      if (values.every(Number.isFinite)) {
        finish(state, sequence);
        events.push({ kind: "read", id: sequence.id, logits: values });
      } else {
        events.push(fail(state, sequence, "the model's logits are not finite"));
      }
      continue;
    }
    const token = out[at]!;
    if (token < 0) {
      events.push(fail(state, sequence, refusal));
    } else if (purpose.stopIds.includes(token)) {
      finish(state, sequence);
      events.push({ kind: "done", id: sequence.id, reason: "stop" });
    } else {
      sequence.tokens[sequence.length++] = token;
      events.push({ kind: "tokens", id: sequence.id, ids: [token] });
      if (generated(sequence) === sequence.limit) {
        finish(state, sequence);
        events.push({ kind: "done", id: sequence.id, reason: "length" });
      }
    }
  }
  return events;
}

/** Forgets a sequence, waiting or running; its row stays held. Null when it has ended already. */
export function cancel(state: SchedulerState, id: number): StepEvent | null {
  const waiting = state.waiting.findIndex((sequence) => sequence.id === id);
  if (waiting >= 0) {
    state.waiting.splice(waiting, 1);
    return { kind: "ended", id };
  }
  const sequence = state.running.find((candidate) => candidate.id === id);
  if (sequence === undefined) return null;
  finish(state, sequence);
  return { kind: "ended", id };
}

/** Frees the prefix row if it holds this prefix. */
export function dropPrefix(state: SchedulerState, id: number): void {
  if (state.prefixOwner === id) state.prefixOwner = null;
}

/** Ends a running sequence with an error and drops its row, and its prefix, which it may have made. */
export function fail(state: SchedulerState, sequence: Sequence, message: string): StepEvent {
  const prefix = prefixOf(sequence);
  if (prefix !== null) dropPrefix(state, prefix.id);
  state.running.splice(state.running.indexOf(sequence), 1);
  drop(state.rows, sequence.row);
  return { kind: "failed", id: sequence.id, message };
}

function finish(state: SchedulerState, sequence: Sequence): void {
  state.running.splice(state.running.indexOf(sequence), 1);
  release(state.rows, sequence.row);
}
