// The word somebody most likely meant: for messages about unknown flags, commands and models.

/** Up to three of `words` close to `word`, the closest first. */
export function nearest(word: string, words: readonly string[]): string[] {
  const typed = word.toLowerCase();
  const scored = words.map((candidate) => {
    const other = candidate.toLowerCase();
    // A piece of a name ("qwen") counts as near, however much of the name is missing.
    const isPiece = typed.length >= 3 && other.includes(typed);
    return { candidate, distance: isPiece ? 1 : distance(typed, other) };
  });
  const limit = Math.max(2, Math.floor(word.length / 3));
  return scored
    .filter((entry) => entry.distance <= limit)
    .sort((a, b) => a.distance - b.distance)
    .slice(0, 3)
    .map((entry) => entry.candidate);
}

/** Levenshtein's edit distance. */
function distance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(change, previous[j]! + 1, row[j - 1]! + 1));
    }
    previous = row;
  }
  return previous[b.length]!;
}
