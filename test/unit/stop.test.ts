import { expect, test } from "bun:test";
import { createStopMatcher } from "../../src/text/stop.ts";

// The definition: look after each character whether a stop string ends there; the longest counts.
function naive(text: string, stops: readonly string[]): { text: string; stopped: boolean } {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.filter((stop) => text.slice(0, end).endsWith(stop));
    if (ending.length > 0) {
      const longest = Math.max(...ending.map((stop) => stop.length));
      return { text: text.slice(0, end - longest), stopped: true };
    }
  }
  return { text, stopped: false };
}

function pushAll(parts: readonly string[], stops: readonly string[]) {
  const matcher = createStopMatcher(stops);
  const sent: string[] = [];
  let stopped = false;
  for (const part of parts) {
    const result = matcher.push(part);
    sent.push(result.text);
    stopped = result.stopped;
  }
  if (!stopped) sent.push(matcher.end());
  return { sent, text: sent.join(""), stopped };
}

test.each<[string[], string[], string[]]>([
  [["AB", "CD", "EF", "GH"], ["CDE"], ["AB", "", "", ""]],
  [["pl", "eas"], ["<|start|>as<|end|>"], ["pl", "eas", ""]],
  [["a<|st", "op"], ["<|start|>"], ["a", "<|stop", ""]],
  [["aaa", "ab"], ["aab"], ["a", "a"]],
  [["x\ud83d", "\ude00y"], ["z"], ["x", "😀y", ""]],
  [["abc"], [], ["abc", ""]],
  [["so long", "!"], ["longer"], ["so ", "long!", ""]],
])("%j with stops %j sends %j", (parts, stops, wanted) => {
  expect(pushAll(parts, stops).sent).toEqual(wanted);
});

test("nothing follows a match", () => {
  const matcher = createStopMatcher(["b"]);
  expect(matcher.push("abc")).toEqual({ text: "a", stopped: true });
  expect(matcher.push("d")).toEqual({ text: "", stopped: true });
  expect(matcher.end()).toBe("");
});

test("any splitting of a text gives what the definition gives, and holds no more than it must", () => {
  let seed = 17;
  const random = (n: number): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * n);
  };
  const letters = ["a", "b", "😀"];
  const word = (most: number): string =>
    Array.from({ length: 1 + random(most) }, () => letters[random(letters.length)]).join("");
  for (let round = 0; round < 5000; round++) {
    const stops = Array.from({ length: 1 + random(4) }, () => word(5));
    const text = word(14);
    const wanted = naive(text, stops);
    const parts: string[] = [];
    for (let at = 0; at < text.length; ) {
      const next = Math.min(text.length, at + 1 + random(4));
      parts.push(text.slice(at, next));
      at = next;
    }
    const { sent, ...got } = pushAll(parts, stops);
    expect(got).toEqual(wanted);
    for (const part of sent) expect(part.isWellFormed()).toBe(true);
  }
});
