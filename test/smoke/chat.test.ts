// The chat of the compiled executable on a pseudo-terminal: what the keys do.
import { expect, test } from "bun:test";
import { BINARY, environment } from "../support/binary.ts";

/** Loading a model on a busy machine takes seconds, not more. */
const CHAT_MS = 60_000;
const CTRL_C = "\x03";

/** Starts the chat; `until` waits for a text to appear after what was waited for before. */
function openChat() {
  let screen = "";
  let seen = 0;
  let look = () => {};
  const child = Bun.spawn([BINARY, "run"], {
    env: environment({ TERM: "xterm" }),
    terminal: {
      cols: 80,
      rows: 24,
      data(_terminal, bytes) {
        screen += new TextDecoder().decode(bytes);
        look();
      },
    },
  });
  const until = (text: string) =>
    new Promise<void>((resolve) => {
      look = () => {
        const at = screen.indexOf(text, seen);
        if (at < 0) return;
        seen = at + text.length;
        look = () => {};
        resolve();
      };
      look();
    });
  return { child, until, type: (keys: string) => child.terminal?.write(keys) };
}

test(
  "Ctrl-C inside a block drops the block, in a line clears it, at an empty one leaves",
  async () => {
    const { child, until, type } = openChat();
    await until(">>> ");
    type('"""half a thought\r');
    await until("... ");
    type("more of it");
    await until("more of it");
    type(CTRL_C);
    await until(">>> ");
    type("/nothing");
    await until("/nothing");
    type(CTRL_C);
    await until(">>> ");
    // The cleared line is gone, and /help is read as a command, not as more of the block.
    type("/help\r");
    await until("/clear ");
    await until(">>> ");
    type(CTRL_C);
    expect(await child.exited).toBe(0);
  },
  CHAT_MS,
);
