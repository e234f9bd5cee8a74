// The scheduler without a model: plans are printed as text and compared, outputs come from a function.

import { describe, expect, test } from "bun:test";
import { GREEDY } from "../../src/engine/sampling.ts";
import {
  apply,
  cancel,
  createScheduler,
  dropPrefix,
  enqueue,
  fail,
  hasWork,
  plan,
  type SchedulerState,
  type StepPlan,
} from "../../src/engine/scheduler.ts";
import { createSequence } from "../../src/engine/sequence.ts";
import type { SharedPrefix } from "../../src/engine/types.ts";

const CONTEXT = 100;
const END = 999;

function submit(state: SchedulerState, id: number, prompt: readonly number[], maxTokens = 3): void {
  const purpose = { kind: "generate", maxTokens, stopIds: [END], sampling: GREEDY } as const;
  enqueue(state, createSequence(id, Int32Array.from(prompt), purpose, CONTEXT));
}

function read(
  state: SchedulerState,
  id: number,
  prompt: readonly number[],
  ids: number[],
  prefix: SharedPrefix | null = null,
): void {
  const purpose = { kind: "read", ids, prefix } as const;
  enqueue(state, createSequence(id, Int32Array.from(prompt), purpose, CONTEXT));
}

/** "a row0 [0..4) want 1": which tokens of which sequence, in which row, asking for what. */
function print(step: StepPlan): string {
  const changes = step.changes.map(({ row, copyFrom, length }) =>
    copyFrom < 0 ? `cut row${row} to ${length}` : `copy ${length} of row${copyFrom} to row${row}`,
  );
  const parts = step.parts.map(({ sequence, from, count, want }) => {
    return `#${sequence.id} row${sequence.row} [${from}..${from + count}) want ${want}`;
  });
  return [...changes, ...parts].join(" | ");
}

const noLogits = (): Float32Array => {
  throw new Error("no reading was expected");
};

/** One step whose outputs are `out`; returns the plan and the events, as text. */
function step(state: SchedulerState, ...out: number[]): [string, string] {
  const planned = plan(state);
  const text = print(planned);
  const wanted = planned.parts.filter((part) => part.want !== 0).length;
  expect(out.length).toBe(wanted);
  const events = apply(state, planned, out, noLogits, "NaN");
  const words = events.map((event) => {
    switch (event.kind) {
      case "tokens":
        return `#${event.id} ${event.ids.join(",")}`;
      case "done":
        return `#${event.id} ${event.reason}`;
      case "failed":
        return `#${event.id} failed: ${event.message}`;
      default:
        return `#${event.id} ${event.kind}`;
    }
  });
  return [text, words.join(" ")];
}

test("cuts a prompt into chunks, then decodes one token a step until maxTokens", () => {
  const state = createScheduler(1, 4);
  submit(state, 1, [10, 11, 12, 13, 14, 15, 16, 17, 18]);
  expect(step(state)).toEqual(["cut row0 to 0 | #1 row0 [0..4) want 0", ""]);
  expect(step(state)).toEqual(["#1 row0 [4..8) want 0", ""]);
  expect(step(state, 50)).toEqual(["#1 row0 [8..9) want 1", "#1 50"]);
  expect(step(state, 51)).toEqual(["#1 row0 [9..10) want 1", "#1 51"]);
  expect(step(state, 52)).toEqual(["#1 row0 [10..11) want 1", "#1 52 #1 length"]);
  expect(hasWork(state)).toBe(false);
});

test("ends at an end token, which is in no event", () => {
  const state = createScheduler(1, 8);
  submit(state, 1, [1, 2]);
  expect(step(state, 7)[1]).toBe("#1 7");
  expect(step(state, END)[1]).toBe("#1 stop");
  expect(hasWork(state)).toBe(false);
});

test("ends with length when prompt and reply fill the context", () => {
  const state = createScheduler(1, 200);
  submit(
    state,
    1,
    Array.from({ length: CONTEXT - 2 }, (_, i) => i),
    50,
  );
  expect(step(state, 7)[1]).toBe("#1 7");
  expect(step(state, 8)).toEqual(["#1 row0 [98..99) want 1", "#1 8 #1 length"]);
});

test("serves one after the other with one row, going on from what the row holds", () => {
  const state = createScheduler(1, 8);
  submit(state, 1, [1, 2, 3], 2);
  submit(state, 2, [1, 2, 3, 50, 4], 1);
  expect(step(state, 50)[0]).toBe("cut row0 to 0 | #1 row0 [0..3) want 1");
  expect(step(state, 51)[1]).toBe("#1 51 #1 length");
  // The row holds 1 2 3 50: token 51 was drawn but never computed.
  expect(step(state, 60)).toEqual(["cut row0 to 4 | #2 row0 [4..5) want 1", "#2 60 #2 length"]);
});

test("tells how many tokens were reused when it admits", () => {
  const state = createScheduler(1, 8);
  submit(state, 1, [1, 2, 3], 1);
  step(state, 50);
  submit(state, 2, [1, 2, 4], 1);
  expect(plan(state).events).toEqual([{ kind: "started", id: 2, cachedTokens: 2 }]);
});

test("plans running sequences first and gives the rest of the budget to the head of the queue", () => {
  const state = createScheduler(2, 4);
  submit(state, 1, [1, 2, 3], 5);
  expect(step(state, 50)[0]).toBe("cut row0 to 0 | #1 row0 [0..3) want 1");
  submit(state, 2, [11, 12, 13, 14, 15], 5);
  submit(state, 3, [21], 5);
  expect(step(state, 51)).toEqual([
    "cut row1 to 0 | #1 row0 [3..4) want 1 | #2 row1 [0..3) want 0",
    "#1 51",
  ]);
  expect(step(state, 52, 60)).toEqual([
    "#1 row0 [4..5) want 1 | #2 row1 [3..5) want 1",
    "#1 52 #2 60",
  ]);
  expect(step(state, END, 61)[1]).toBe("#1 stop #2 61");
  expect(step(state, 62, 70)).toEqual([
    "cut row0 to 0 | #2 row1 [6..7) want 1 | #3 row0 [0..1) want 1",
    "#2 62 #3 70",
  ]);
});

test("admits nothing while the budget is spent", () => {
  const state = createScheduler(2, 2);
  submit(state, 1, [1, 2, 3, 4]);
  submit(state, 2, [5]);
  expect(step(state)[0]).toBe("cut row0 to 0 | #1 row0 [0..2) want 0");
  expect(step(state, 9)[0]).toBe("#1 row0 [2..4) want 1");
  expect(step(state, 9, 9)[0]).toBe(
    "cut row1 to 0 | #1 row0 [4..5) want 1 | #2 row1 [0..1) want 1",
  );
});

test("plans the same tokens again when a step was not applied", () => {
  const state = createScheduler(1, 4);
  submit(state, 1, [1, 2, 3, 4, 5]);
  expect(print(plan(state))).toBe("cut row0 to 0 | #1 row0 [0..4) want 0");
  expect(print(plan(state))).toBe("#1 row0 [0..4) want 0");
});

test("copies a shared prefix between rows before the step", () => {
  const state = createScheduler(2, 16);
  submit(state, 1, [1, 2, 3, 4, 5, 6], 5);
  step(state, 50);
  submit(state, 2, [1, 2, 9], 5);
  expect(step(state, 51, 60)[0]).toBe(
    "copy 2 of row0 to row1 | #1 row0 [6..7) want 1 | #2 row1 [2..3) want 1",
  );
});

test("reads logits at the output of the reading, then ends it", () => {
  const state = createScheduler(2, 16);
  submit(state, 1, [1, 2], 5);
  read(state, 2, [3, 4, 5], [70, 80]);
  const planned = plan(state);
  expect(print(planned)).toBe(
    "cut row0 to 0 | cut row1 to 0 | #1 row0 [0..2) want 1 | #2 row1 [0..3) want 2",
  );
  const logits = (output: number, ids: readonly number[]) =>
    Float32Array.from(ids, (id) => output * 1000 + id);
  expect(apply(state, planned, [50, -1], logits, "")).toEqual([
    { kind: "tokens", id: 1, ids: [50] },
    { kind: "read", id: 2, logits: Float32Array.of(1070, 1080) },
  ]);
  expect(state.running.map(({ id }) => id)).toEqual([1]);
});

test("fails a reading of logits that are not finite", () => {
  const state = createScheduler(1, 16);
  read(state, 1, [3, 4], [70]);
  const events = apply(state, plan(state), [-1], () => Float32Array.of(Number.NaN), "");
  expect(events).toEqual([{ kind: "failed", id: 1, message: "the model's logits are not finite" }]);
  expect(hasWork(state)).toBe(false);
});

test("fails only the sequence whose token could not be drawn, and forgets its row", () => {
  const state = createScheduler(2, 16);
  submit(state, 1, [1, 2]);
  submit(state, 2, [3, 4]);
  expect(step(state, -1, 60)[1]).toBe("#1 failed: NaN #2 60");
  submit(state, 3, [1, 2]);
  expect(step(state, 61, 70)[0]).toBe(
    "cut row0 to 0 | #2 row1 [2..3) want 1 | #3 row0 [0..2) want 1",
  );
});

test("forgets a cancelled sequence wherever it is, and holds what its row has", () => {
  const state = createScheduler(1, 2);
  submit(state, 1, [1, 2, 3, 4, 5]);
  submit(state, 2, [7, 8]);
  submit(state, 3, [1, 2, 3]);
  step(state);
  expect(cancel(state, 2)).toEqual({ kind: "ended", id: 2 });
  expect(cancel(state, 1)).toEqual({ kind: "ended", id: 1 });
  expect(cancel(state, 1)).toBeNull();
  expect(step(state, 9)[0]).toBe("cut row0 to 2 | #3 row0 [2..3) want 1");
});

test("frees the row of a failed sequence", () => {
  const state = createScheduler(1, 8);
  submit(state, 1, [1, 2, 3]);
  const planned = plan(state);
  expect(fail(state, planned.parts[0]!.sequence, "why")).toEqual({
    kind: "failed",
    id: 1,
    message: "why",
  });
  expect(hasWork(state)).toBe(false);
  submit(state, 2, [1, 2, 3]);
  expect(step(state, 5)[0]).toBe("cut row0 to 0 | #2 row0 [0..3) want 1");
});

test("keeps its promises over a long mixed load: no row twice, no budget exceeded, all served", () => {
  // A small generator of its own, so that the load is the same every run.
  let random = 12345;
  const next = (below: number): number => {
    random = (random * 1103515245 + 12345) % 2147483648;
    return Math.floor((random / 2147483648) * below);
  };
  const state = createScheduler(3, 5);
  const replies = new Map<number, number>();
  const limits = new Map<number, number>();
  let id = 0;
  for (let round = 0; round < 2000; round++) {
    if (id < 200 && next(4) === 0) {
      const limit = 1 + next(6);
      const prompt = Array.from({ length: 1 + next(12) }, () => next(3));
      submit(state, id, prompt, limit);
      limits.set(id, limit);
      replies.set(id++, 0);
    }
    const planned = plan(state);
    const tokens = planned.parts.reduce((sum, part) => sum + part.count, 0);
    expect(tokens).toBeLessThanOrEqual(5);
    expect(planned.parts.every((part) => part.count > 0)).toBe(true);
    const rows = state.running.map((sequence) => sequence.row);
    expect(new Set(rows).size).toBe(rows.length);
    const out = planned.parts.filter((part) => part.want !== 0).map(() => next(3));
    for (const event of apply(state, planned, out, noLogits, "")) {
      if (event.kind === "tokens") replies.set(event.id, replies.get(event.id)! + 1);
    }
  }
  expect(hasWork(state)).toBe(false);
  expect(id).toBe(200);
  expect(replies).toEqual(limits);
});

describe("a shared prefix", () => {
  const PREFIX = { id: 7, length: 5 };
  /** One step of readings only: what is planned, and what the sequence was told at its start. */
  function readStep(state: SchedulerState): string {
    const planned = plan(state);
    apply(state, planned, [-1], () => Float32Array.of(1), "");
    const told = planned.events.map((e) =>
      e.kind === "started" ? ` cached ${e.cachedTokens}` : "",
    );
    return print(planned) + told.join("");
  }

  test("ends a step where it ends, and is copied there", () => {
    const state = createScheduler(1, 8, 1);
    read(state, 1, [1, 2, 3, 4, 5, 60, 61], [70], PREFIX);
    expect(readStep(state)).toBe("cut row0 to 0 | #1 row0 [0..5) want 0 cached 0");
    expect(readStep(state)).toBe("copy 5 of row0 to row1 | #1 row0 [5..7) want 2");
    expect(hasWork(state)).toBe(false);
  });

  test("serves a later prompt of its request whose row was taken meanwhile", () => {
    const state = createScheduler(1, 8, 1);
    read(state, 1, [1, 2, 3, 4, 5, 60], [70], PREFIX);
    submit(state, 2, [9, 9], 1);
    read(state, 3, [1, 2, 3, 4, 5, 62, 63], [70], PREFIX);
    readStep(state);
    readStep(state);
    expect(step(state, 50)[1]).toBe("#2 50 #2 length");
    expect(readStep(state)).toBe("copy 5 of row1 to row0 | #3 row0 [5..7) want 2 cached 5");
  });

  test("is not copied back while the row still has more of the prompt", () => {
    const state = createScheduler(1, 8, 1);
    read(state, 1, [1, 2, 3, 4, 5, 60, 61], [70], PREFIX);
    read(state, 2, [1, 2, 3, 4, 5, 60, 62], [70], PREFIX);
    readStep(state);
    readStep(state);
    expect(readStep(state)).toBe("cut row0 to 6 | #2 row0 [6..7) want 2 cached 6");
  });

  test("is kept at once when the row holds it already", () => {
    const state = createScheduler(1, 8, 1);
    submit(state, 1, [1, 2, 3, 4, 5, 60], 1);
    step(state, 50);
    read(state, 2, [1, 2, 3, 4, 5, 60, 61], [70], PREFIX);
    expect(readStep(state)).toBe(
      "cut row0 to 6 | copy 5 of row0 to row1 | #2 row0 [6..7) want 2 cached 6",
    );
  });

  test("belongs to the first request that asks, until it is dropped", () => {
    const state = createScheduler(1, 8, 1);
    const other = { id: 8, length: 2 };
    read(state, 1, [1, 2, 3, 4, 5, 60], [70], PREFIX);
    readStep(state);
    readStep(state);
    read(state, 2, [6, 7, 8], [70], other);
    expect(readStep(state)).toBe("cut row0 to 0 | #2 row0 [0..3) want 2 cached 0");
    dropPrefix(state, other.id);
    expect(state.prefixOwner).toBe(PREFIX.id);
    dropPrefix(state, PREFIX.id);
    read(state, 3, [9, 7, 8], [70], other);
    expect(readStep(state)).toBe("cut row0 to 0 | #3 row0 [0..2) want 0 cached 0");
    expect(readStep(state)).toBe("copy 2 of row0 to row1 | #3 row0 [2..3) want 2");
  });

  test("is dropped when a reading of it fails", () => {
    const state = createScheduler(1, 8, 1);
    read(state, 1, [1, 2, 3, 4, 5, 60], [70], PREFIX);
    readStep(state);
    const planned = plan(state);
    apply(state, planned, [-1], () => Float32Array.of(Number.NaN), "");
    expect(state.prefixOwner).toBeNull();
  });

  test("changes nothing without a row for it", () => {
    const state = createScheduler(1, 8);
    read(state, 1, [1, 2, 3, 4, 5, 60], [70], PREFIX);
    expect(readStep(state)).toBe("cut row0 to 0 | #1 row0 [0..6) want 2 cached 0");
  });
});
