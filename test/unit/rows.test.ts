// Which row a prompt gets and how much of it is reused.

import { expect, test } from "bun:test";
import { acquire, createRows, drop, occupy, type Rows, release } from "../../src/engine/rows.ts";

/** Serves a prompt as the scheduler would: all its tokens computed, then released. */
function serve(state: Rows, tokens: readonly number[]): string {
  const got = take(state, tokens);
  const row = state.rows[Number(got[3])]!;
  occupy(row, Int32Array.from(tokens), tokens.length);
  release(state, row.index);
  return got;
}

/** Acquires a row and says which, as text. */
function take(state: Rows, tokens: readonly number[]): string {
  const found = acquire(state, Int32Array.from(tokens));
  if (found === null) return "none";
  const { row, reused, copyFrom } = found;
  return `row${row} reuses ${reused}${copyFrom >= 0 ? ` copied from row${copyFrom}` : ""}`;
}

test("reuses what a prompt shares with the held row, never its last token", () => {
  const state = createRows(1);
  expect(serve(state, [1, 2, 3, 4])).toBe("row0 reuses 0");
  expect(serve(state, [1, 2, 3, 4, 5, 6])).toBe("row0 reuses 4");
  expect(serve(state, [1, 2, 3, 4, 5, 6])).toBe("row0 reuses 5");
  expect(serve(state, [1, 2, 3])).toBe("row0 reuses 2");
  expect(serve(state, [1, 9, 3, 4])).toBe("row0 reuses 1");
  expect(serve(state, [7])).toBe("row0 reuses 0");
  expect(serve(state, [7])).toBe("row0 reuses 0");
});

test("has no row while all are busy", () => {
  const state = createRows(2);
  expect(take(state, [1])).toBe("row0 reuses 0");
  expect(take(state, [2])).toBe("row1 reuses 0");
  expect(take(state, [3])).toBe("none");
  release(state, 1);
  expect(take(state, [3])).toBe("row1 reuses 0");
});

test("goes on in the row with the longest common prefix", () => {
  const state = createRows(3);
  serve(state, [1, 2, 3]);
  serve(state, [5, 6, 7, 8]);
  serve(state, [9, 9]);
  expect(take(state, [5, 6, 7, 8, 1])).toBe("row1 reuses 4");
  expect(take(state, [1, 2, 3, 4])).toBe("row0 reuses 3");
});

test("takes a free row, else the least recently used, when nothing is shared", () => {
  const state = createRows(2);
  expect(serve(state, [1, 1])).toBe("row0 reuses 0");
  expect(serve(state, [2, 2])).toBe("row1 reuses 0");
  expect(serve(state, [1, 1, 1])).toBe("row0 reuses 2");
  expect(serve(state, [3, 3])).toBe("row1 reuses 0");
  expect(serve(state, [4, 4])).toBe("row0 reuses 0");
});

test("copies a shared system prompt rather than losing the longer conversation", () => {
  const state = createRows(2);
  serve(state, [1, 2, 10, 11, 12, 13, 14]);
  expect(serve(state, [1, 2, 20, 21])).toBe("row1 reuses 2 copied from row0");
  expect(serve(state, [1, 2, 10, 11, 12, 13, 14, 15])).toBe("row0 reuses 7");
  expect(serve(state, [1, 2, 20, 21, 22])).toBe("row1 reuses 4");
});

test("copies from a busy row too, as far as it is computed", () => {
  const state = createRows(2);
  expect(take(state, [1, 2, 3, 4, 5])).toBe("row0 reuses 0");
  occupy(state.rows[0]!, Int32Array.of(1, 2, 3, 4, 5), 3);
  expect(take(state, [1, 2, 3, 4, 9])).toBe("row1 reuses 3 copied from row0");
});

test("reuses nothing of a dropped row", () => {
  const state = createRows(1);
  take(state, [1, 2, 3]);
  occupy(state.rows[0]!, Int32Array.of(1, 2, 3), 3);
  drop(state, 0);
  expect(take(state, [1, 2, 3])).toBe("row0 reuses 0");
});
