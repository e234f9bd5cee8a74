// Which KV row serves which sequence, and what the rows still hold of earlier ones, so that a prompt
// that begins like an earlier one is not computed again. Pure bookkeeping: acquire() says what is
// to be cut or copied, the worker does it. Called by scheduler.ts.

export interface Row {
  readonly index: number;
  /** held: no sequence uses it, but its first `length` positions are tokens[0 .. length). */
  use: "free" | "held" | "busy";
  tokens: Int32Array;
  length: number;
  /** Count of releases when it was last released: larger is more recent. */
  released: number;
}

export interface Rows {
  readonly rows: readonly Row[];
  releases: number;
}

/** What acquire() found, and what to do to the row before its first token. */
export interface Acquired {
  readonly row: number;
  /** Positions that need no computing: fewer than the prompt has. */
  readonly reused: number;
  /** Row whose first `reused` positions are to be copied into `row`; -1: cut `row` to `reused`. */
  readonly copyFrom: number;
}

const NOTHING = new Int32Array(0);

/** All rows free. */
export function createRows(count: number): Rows {
  const rows = Array.from({ length: count }, (_, index): Row => {
    return { index, use: "free", tokens: NOTHING, length: 0, released: 0 };
  });
  return { rows, releases: 0 };
}

/**
 * Gives a prompt a row, or null when all are busy. The row with the longest common prefix serves when
 * the prompt goes on from at least half of what it holds. Otherwise a conversation worth keeping
 * would be lost over a shared system prompt: then the prefix is copied into a free or else the least
 * recently used row. The last token is never reused, since its logits are needed.
 */
export function acquire(state: Rows, prompt: Int32Array): Acquired | null {
  const target = leastWorthKeeping(state.rows);
  if (target === null) return null;
  let best = target;
  let reused = commonPrefix(target, prompt);
  for (const row of state.rows) {
    const common = commonPrefix(row, prompt);
    if (common > reused) {
      best = row;
      reused = common;
    }
  }
  const goesOn = best.use === "held" && reused * 2 >= best.length;
  const row = goesOn ? best : target;
  const copyFrom = row === best || reused === 0 ? -1 : best.index;
  occupy(row, prompt, reused);
  return { row: row.index, reused, copyFrom };
}

/** Notes that a busy row now holds the first `length` of `tokens`. */
export function occupy(row: Row, tokens: Int32Array, length: number): void {
  row.use = "busy";
  row.tokens = tokens;
  row.length = length;
}

/** Ends a sequence's use of a row, whose positions stay for a later prompt. */
export function release(state: Rows, index: number): void {
  const row = state.rows[index]!;
  row.use = row.length > 0 ? "held" : "free";
  row.released = ++state.releases;
}

/** Ends the use of a row whose positions are not to be trusted. */
export function drop(state: Rows, index: number): void {
  const row = state.rows[index]!;
  row.use = "free";
  row.tokens = NOTHING;
  row.length = 0;
}

/** A free row, else the held one released longest ago, else null. */
function leastWorthKeeping(rows: readonly Row[]): Row | null {
  let oldest: Row | null = null;
  for (const row of rows) {
    if (row.use === "free") return row;
    if (row.use === "held" && (oldest === null || row.released < oldest.released)) oldest = row;
  }
  return oldest;
}

/** Tokens a row and a prompt share from the start, at most all but the prompt's last. */
function commonPrefix(row: Row, prompt: Int32Array): number {
  const most = Math.min(row.length, prompt.length - 1);
  let n = 0;
  while (n < most && row.tokens[n] === prompt[n]) n++;
  return n;
}
