// The keyboard of the chat: line editing and history by node:readline, and what Ctrl-C means when.

import { createInterface } from "node:readline";
import type { Asked, Terminal } from "./chat.ts";
import { watchSignals } from "./signals.ts";

/** Lines that arrow-up brings back. */
const HISTORY_LINES = 500;

/** A terminal over stdin; close() gives stdin and the signals back. */
export interface OwnedTerminal extends Terminal {
  close(): void;
}

/** Opens the terminal. While it is open Ctrl-C is a key: it ends nothing by itself. */
export function openTerminal(): OwnedTerminal {
  // With the answers going into a file, prompts would only spoil it.
  const output = process.stdout.isTTY ? process.stdout : process.stderr;
  const typedAhead: Asked[] = [];
  let waiting: ((asked: Asked) => void) | null = null;
  let working: AbortController | null = null;
  const give = (asked: Asked) => {
    const take = waiting;
    waiting = null;
    if (take) take(asked);
    // A Ctrl-C for which nobody waits came too late for the answer that it was to stop.
    else if (asked.kind !== "interrupt") typedAhead.push(asked);
  };
  const interface_ = createInterface({
    input: process.stdin,
    output,
    terminal: true,
    historySize: HISTORY_LINES,
  });
  const onInterrupt = () => {
    if (working) {
      working.abort();
      return;
    }
    const wasEmpty = interface_.line === "";
    // Ctrl-U takes what is before the cursor, so the cursor goes to the end.
    interface_.write(null, { ctrl: true, name: "e" });
    interface_.write(null, { ctrl: true, name: "u" });
    give({ kind: "interrupt", wasEmpty });
  };
  interface_.on("line", (text) => give({ kind: "line", text }));
  interface_.on("close", () => give({ kind: "end" }));
  interface_.on("SIGINT", onInterrupt);
  // Signals from elsewhere (kill, an npm in front of us).
  const unwatch = watchSignals((signal) => {
    if (signal === "SIGINT") onInterrupt();
    else {
      working?.abort();
      interface_.close();
    }
  });
  return {
    ask(prompt) {
      const typed = typedAhead.shift();
      if (typed !== undefined) return Promise.resolve(typed);
      return new Promise((resolve) => {
        waiting = resolve;
        interface_.setPrompt(prompt);
        // Keeps what was typed while the answer came, and the cursor behind it.
        interface_.prompt(true);
      });
    },
    write(text) {
      process.stdout.write(text);
    },
    async interruptible(work) {
      working = new AbortController();
      try {
        await work(working.signal);
      } finally {
        working = null;
      }
    },
    close() {
      unwatch();
      interface_.close();
    },
  };
}
