// Byte-pair merging over token ids: which pairs merge, in what order, and the merging itself. The
// library's own BPE keeps a JSON string per merge (seconds and hundreds of MB for 262,144 tokens);
// this one gives the same ids from typed arrays. Called by tokenizer.ts; knows nothing of text.

/** Which pairs of ids merge and in what order. */
export interface MergeTable {
  /** Id the pair becomes, or -1. Leaves the pair's rank in `rank`; a lower one merges first. */
  lookup(left: number, right: number): number;
  rank: number;
}

/** Up to this many symbols a plain scan is faster than a heap; beyond it the heap stays n log n. */
const SCAN_LIMIT = 32;

// Two odd constants that spread neighbouring ids over the table (golden ratio, xxHash).
const HASH_LEFT = 0x9e3779b1;
const HASH_RIGHT = 0x85ebca6b;

/** A table of listed merges: `pairs` holds left, right, result of each, best first. */
export function listedMerges(pairs: Int32Array): MergeTable {
  const count = pairs.length / 3;
  let bits = 4;
  while (1 << bits < count * 2) bits++;
  const mask = (1 << bits) - 1;
  // Slot: number of the merge + 1, or 0. The pair itself stays in `pairs`.
  const slots = new Int32Array(1 << bits);
  const find = (left: number, right: number): number => {
    let at = (Math.imul(left, HASH_LEFT) ^ Math.imul(right, HASH_RIGHT)) >>> 0;
    at = (at ^ (at >>> 15)) & mask;
    for (;;) {
      const merge = slots[at]! - 1;
      if (merge < 0 || (pairs[merge * 3] === left && pairs[merge * 3 + 1] === right)) return at;
      at = (at + 1) & mask;
    }
  };
  // A pair listed twice counts where it stands last, as in the reference's hash map.
  for (let i = 0; i < count; i++) slots[find(pairs[i * 3]!, pairs[i * 3 + 1]!)] = i + 1;
  const table: MergeTable = {
    rank: 0,
    lookup(left, right) {
      const merge = slots[find(left, right)]! - 1;
      if (merge < 0) return -1;
      table.rank = merge;
      return pairs[merge * 3 + 2]!;
    },
  };
  return table;
}

/** Pairs remembered by `scoredMerges`; 2^15 cover ordinary text, in 400 KB. */
const PAIR_CACHE = 1 << 15;

/**
 * The merges of a SentencePiece vocabulary, never written down: a pair merges when its joined text
 * is a token with a rank, the best rank first.
 * @param rankOf rank of each id, -1 for tokens that no merge makes
 */
export function scoredMerges(
  tokens: readonly (string | undefined)[],
  ids: ReadonlyMap<string, number>,
  rankOf: Int32Array,
): MergeTable {
  const lefts = new Int32Array(PAIR_CACHE).fill(-1);
  const rights = new Int32Array(PAIR_CACHE);
  const results = new Int32Array(PAIR_CACHE);
  const table: MergeTable = {
    rank: 0,
    lookup(left, right) {
      const hash = (Math.imul(left, HASH_LEFT) ^ Math.imul(right, HASH_RIGHT)) >>> 0;
      const at = (hash ^ (hash >>> 15)) & (PAIR_CACHE - 1);
      let id: number;
      if (lefts[at] === left && rights[at] === right) {
        id = results[at]!;
      } else {
        id = ids.get(tokens[left]! + tokens[right]!) ?? -1;
        if (id >= 0 && rankOf[id]! < 0) id = -1;
        lefts[at] = left;
        rights[at] = right;
        results[at] = id;
      }
      if (id >= 0) table.rank = rankOf[id]!;
      return id;
    },
  };
  return table;
}

/**
 * Merges the symbols in place and returns how many are left. Order: lowest rank first; of equal
 * ranks (two ways to split one token) the lower left id, then right id; then leftmost.
 */
export function mergeSymbols(symbols: Int32Array, n: number, table: MergeTable): number {
  return n <= SCAN_LIMIT ? mergeByScan(symbols, n, table) : mergeByHeap(symbols, n, table);
}

// Scratch of the scan: rank and result of the pair that starts at each symbol.
const scanRank = new Int32Array(SCAN_LIMIT);
const scanResult = new Int32Array(SCAN_LIMIT);

/** The plain form: look at every pair before each merge. Exact for any n up to the scratch. */
export function mergeByScan(
  symbols: Int32Array,
  n: number,
  table: MergeTable,
  rank: Int32Array = scanRank,
  result: Int32Array = scanResult,
): number {
  const rate = (at: number): void => {
    result[at] = table.lookup(symbols[at]!, symbols[at + 1]!);
    rank[at] = table.rank;
  };
  for (let i = 0; i + 1 < n; i++) rate(i);
  for (;;) {
    let best = -1;
    for (let i = 0; i + 1 < n; i++) {
      if (result[i]! < 0) continue;
      if (best < 0 || rank[i]! < rank[best]!) best = i;
      else if (rank[i] === rank[best] && lowerPair(symbols, i, best)) best = i;
    }
    if (best < 0) return n;
    symbols[best] = result[best]!;
    symbols.copyWithin(best + 1, best + 2, n);
    rank.copyWithin(best + 1, best + 2, n - 1);
    result.copyWithin(best + 1, best + 2, n - 1);
    n--;
    if (best > 0) rate(best - 1);
    if (best + 1 < n) rate(best);
  }
}

function lowerPair(symbols: Int32Array, a: number, b: number): boolean {
  const byLeft = symbols[a]! - symbols[b]!;
  return byLeft < 0 || (byLeft === 0 && symbols[a + 1]! < symbols[b + 1]!);
}

/** The same with a heap of candidate pairs over a linked list: n log n for any input. */
export function mergeByHeap(symbols: Int32Array, n: number, table: MergeTable): number {
  const next = new Int32Array(n);
  const prev = new Int32Array(n);
  for (let i = 0; i < n; i++) {
    next[i] = i + 1 < n ? i + 1 : -1;
    prev[i] = i - 1;
  }
  // A merge takes one candidate out and puts at most two in, so 2n is never passed.
  const rank = new Int32Array(2 * n);
  const left = new Int32Array(2 * n);
  const right = new Int32Array(2 * n);
  const where = new Int32Array(2 * n);
  let size = 0;

  const place = (to: number, r: number, a: number, b: number, at: number): void => {
    rank[to] = r;
    left[to] = a;
    right[to] = b;
    where[to] = at;
  };
  // Is (r, a, b, at) before entry e?
  const before = (r: number, a: number, b: number, at: number, e: number): boolean =>
    r !== rank[e]
      ? r < rank[e]!
      : a !== left[e]
        ? a < left[e]!
        : b !== right[e]
          ? b < right[e]!
          : at < where[e]!;
  const offer = (at: number): void => {
    const after = next[at]!;
    if (after < 0) return;
    const a = symbols[at]!;
    const b = symbols[after]!;
    if (table.lookup(a, b) < 0) return;
    const r = table.rank;
    let hole = size++;
    while (hole > 0) {
      const parent = (hole - 1) >> 1;
      if (!before(r, a, b, at, parent)) break;
      place(hole, rank[parent]!, left[parent]!, right[parent]!, where[parent]!);
      hole = parent;
    }
    place(hole, r, a, b, at);
  };
  const removeTop = (): void => {
    size--;
    if (size === 0) return;
    const [r, a, b, at] = [rank[size]!, left[size]!, right[size]!, where[size]!];
    let hole = 0;
    for (;;) {
      let child = 2 * hole + 1;
      if (child >= size) break;
      const other = child + 1;
      if (other < size && before(rank[other]!, left[other]!, right[other]!, where[other]!, child)) {
        child = other;
      }
      if (before(r, a, b, at, child)) break;
      place(hole, rank[child]!, left[child]!, right[child]!, where[child]!);
      hole = child;
    }
    place(hole, r, a, b, at);
  };

  for (let i = 0; i + 1 < n; i++) offer(i);
  while (size > 0) {
    const at = where[0]!;
    const a = left[0]!;
    const b = right[0]!;
    removeTop();
    // Stale candidates are left in the heap; they show by a pair that is no longer there.
    const after = next[at]!;
    if (after < 0 || symbols[at] !== a || symbols[after] !== b) continue;
    symbols[at] = table.lookup(a, b);
    symbols[after] = -1;
    next[at] = next[after]!;
    if (next[at]! >= 0) prev[next[at]!] = at;
    next[after] = -1;
    if (prev[at]! >= 0) offer(prev[at]!);
    offer(at);
  }
  let kept = 0;
  for (let i = 0; i >= 0; i = next[i]!) symbols[kept++] = symbols[i]!;
  return kept;
}
