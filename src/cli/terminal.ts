// The keyboard of the chat: line editing and history by node:readline, and what Ctrl-C means when.

import { createInterface } from "node:readline";
import type { Terminal } from "./chat.ts";
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
  const lines: (string | null)[] = [];
  let waiting: ((line: string | null) => void) | null = null;
  let working: AbortController | null = null;
  const give = (line: string | null) => {
    const take = waiting;
    waiting = null;
    if (take) take(line);
    else lines.push(line);
  };
  const interface_ = createInterface({
    input: process.stdin,
    output,
    terminal: true,
    historySize: HISTORY_LINES,
  });
  const onInterrupt = () => {
    if (working) working.abort();
    else if (interface_.line !== "") interface_.write(null, { ctrl: true, name: "u" });
    else give(null);
  };
  interface_.on("line", give);
  interface_.on("close", () => give(null));
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
      const typed = lines.shift();
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
