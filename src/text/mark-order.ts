// Canonical order for long runs of combining marks. String.prototype.normalize sorts each run by
// insertion: 20 KB of two alternating marks take half a second, 1 MB hours. Sorting such runs
// first keeps normalizing linear and its result the same. Called by tokenizer.ts.

/** Runs up to this long are left to normalize(); real text stays far below (Stream-Safe: 30). */
const SHORT_RUN = 64;

const LONG_RUN = new RegExp(`\\p{M}{${SHORT_RUN + 1},}`, "gu");

/** The mark with the highest combining class, 240; no other mark has it. */
const HIGHEST = "\u0345";

/** The text, canonically equal, with the marks of every long run in canonical order. */
export function orderMarks(text: string): string {
  return text.replace(LONG_RUN, orderRun);
}

function orderRun(run: string): string {
  const decomposed = new Map<string, string[]>();
  const marks: string[] = [];
  for (const char of run) {
    let parts = decomposed.get(char);
    if (!parts) {
      parts = [...char.normalize("NFD")];
      decomposed.set(char, parts);
    }
    for (const part of parts) marks.push(part);
  }
  // JavaScript does not tell the class of a mark, but normalizing two of them shows which is lower.
  const distinct = [...new Set(marks)];
  const moving = distinct.filter((m) => m === HIGHEST || swaps(HIGHEST, m));
  moving.sort((a, b) => (swaps(a, b) ? 1 : swaps(b, a) ? -1 : 0));
  const rank = new Map<string, number>();
  let last = 0;
  for (let i = 0; i < moving.length; i++) {
    if (i > 0 && swaps(moving[i]!, moving[i - 1]!)) last++;
    rank.set(moving[i]!, last);
  }
  const out: string[] = [];
  let buckets: string[][] = [];
  const flush = (): void => {
    for (const bucket of buckets) if (bucket) for (const mark of bucket) out.push(mark);
    buckets = [];
  };
  for (const mark of marks) {
    const at = rank.get(mark);
    if (at === undefined) {
      flush(); // a mark of class 0 stays where it is and parts the others
      out.push(mark);
    } else {
      buckets[at] ??= [];
      buckets[at].push(mark);
    }
  }
  flush();
  return out.join("");
}

// Has `a` a higher class than `b`, so that normalizing turns "ab" into "ba"?
function swaps(a: string, b: string): boolean {
  return a !== b && (a + b).normalize("NFD") === b + a;
}
