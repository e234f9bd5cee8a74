// From token ids to text that may be shown: detokenizes, holds back what may become a stop string,
// and says which ids the shown text covers. One generator for streamed and whole replies. Called by
// generate.ts; knows nothing of HTTP.

import type { GenerationEvent } from "../engine/types.ts";
import type { Detokenizer, StopMatcher } from "../text/types.ts";
import type { FinishReason } from "./respond.ts";

/** Text that is certain, never empty, and the ids that end within what has been shown so far. */
export interface ReplyPart {
  readonly text: string;
  readonly ids: readonly number[];
}

export interface ReplyEnd {
  readonly reason: FinishReason;
  /** Ids that no part carried; together with those of the parts they are the whole reply. */
  readonly ids: readonly number[];
}

/** What reply() tells while it runs. */
export interface ReplyObserver {
  started(cachedTokens: number): void;
  token(): void;
}

/**
 * Runs one generation to its end. A stop string's tokens are counted, but text and ids end before
 * it. There are at most `maxTokens` parts: the last token's text waits for what was held back before
 * it. Returns null when the events ended without "done": the generation was cancelled.
 */
export async function* reply(
  events: AsyncIterable<GenerationEvent>,
  detokenizer: Detokenizer,
  matcher: StopMatcher,
  maxTokens: number,
  observer: ReplyObserver,
): AsyncGenerator<ReplyPart, ReplyEnd | null, undefined> {
  const covered = coverage();
  let count = 0;
  let held = "";
  for await (const event of events) {
    if (event.kind === "started") {
      observer.started(event.cachedTokens);
      continue;
    }
    if (event.kind === "done") {
      const tail = detokenizer.end();
      covered.made(tail.length);
      const last = matcher.push(tail);
      const text = held + (last.stopped ? last.text : last.text + matcher.end());
      const ids = covered.shown(text.length);
      const left = last.stopped ? [] : covered.rest();
      if (text === "")
        return { reason: last.stopped ? "stop" : event.reason, ids: [...ids, ...left] };
      yield { text, ids };
      return { reason: last.stopped ? "stop" : event.reason, ids: left };
    }
    for (const id of event.ids) {
      observer.token();
      count++;
      const made = detokenizer.push(id);
      covered.token(id, made.length);
      if (made === "") continue;
      const { text, stopped } = matcher.push(made);
      if (count === maxTokens && !stopped) held = text;
      else if (text !== "") yield { text, ids: covered.shown(text.length) };
      if (stopped) return { reason: "stop", ids: covered.shown(0) };
    }
  }
  return null;
}

/** Which ids lie within the text shown so far; places are counted in UTF-16 units. */
function coverage() {
  const ids: number[] = [];
  const ends: number[] = [];
  let madeLength = 0;
  let shownLength = 0;
  /** Ids at the end of the list that made no text yet: their bytes come out with a later one. */
  let silent = 0;

  function made(length: number): void {
    madeLength += length;
    if (length === 0) return;
    for (let i = ends.length - silent; i < ends.length; i++) ends[i] = madeLength;
    silent = 0;
  }

  return {
    made,
    token(id: number, length: number): void {
      ids.push(id);
      ends.push(madeLength);
      silent++;
      made(length);
    },
    /** Takes the ids that the next `length` shown units complete. */
    shown(length: number): number[] {
      shownLength += length;
      let count = 0;
      while (count < ids.length - silent && ends[count]! <= shownLength) count++;
      ends.splice(0, count);
      return ids.splice(0, count);
    },
    rest: (): number[] => ids.splice(0),
  };
}
