// Stop strings over text that arrives in parts. The reply ends before the match that completes
// first, as if the text came one character at a time; of those completing together the longest, so
// how the text was cut never shows. Called by the API after the detokenizer.
import type { StopMatcher } from "./types.ts";

/** A matcher for one reply. @param stops stop strings; none of them empty */
export function createStopMatcher(stops: readonly string[]): StopMatcher {
  let held = "";
  let stopped = false;
  return {
    push(text) {
      if (stopped) return { text: "", stopped };
      const from = held.length;
      const all = held + text;
      const match = firstMatch(all, from, stops);
      if (match >= 0) {
        stopped = true;
        held = "";
        return { text: all.slice(0, match), stopped };
      }
      const sure = all.length - heldLength(all, stops);
      held = all.slice(sure);
      return { text: all.slice(0, sure), stopped };
    },
    end() {
      const rest = held;
      held = "";
      return rest;
    },
  };
}

// Start of the match that completes first at or after `from`, or -1.
function firstMatch(text: string, from: number, stops: readonly string[]): number {
  let firstEnd = Number.POSITIVE_INFINITY;
  let start = -1;
  for (const stop of stops) {
    if (stop === "") continue;
    const at = text.indexOf(stop, Math.max(0, from - stop.length + 1));
    if (at < 0) continue;
    const end = at + stop.length;
    if (end < firstEnd || (end === firstEnd && at < start)) {
      firstEnd = end;
      start = at;
    }
  }
  return start;
}

// Length of the longest end of the text that could begin a stop string, or half a character.
function heldLength(text: string, stops: readonly string[]): number {
  let longest = 0;
  for (const stop of stops) {
    const most = Math.min(stop.length - 1, text.length);
    for (let n = most; n > longest; n--) {
      if (text.endsWith(stop.slice(0, n))) longest = n;
    }
  }
  const last = text.charCodeAt(text.length - 1);
  const halfCharacter = last >= 0xd800 && last <= 0xdbff;
  return longest === 0 && halfCharacter ? 1 : longest;
}
