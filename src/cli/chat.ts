// The chat of `caldrix run` without a prompt. It keeps the conversation; the engine keeps its row,
// so that only what is new is computed. terminal.ts does the keyboard, tests put another one in.

import type { ChatMessage } from "../text/types.ts";
import { answer, forTerminal, promptIds, type Session, TooLong } from "./answer.ts";

/** A line; or Ctrl-C, which has cleared what stood in the line; or the end of the input. */
export type Asked =
  | { readonly kind: "line"; readonly text: string }
  | { readonly kind: "interrupt"; readonly wasEmpty: boolean }
  | { readonly kind: "end" };

/** Where lines come from and text goes to. */
export interface Terminal {
  ask(prompt: string): Promise<Asked>;
  write(text: string): void;
  /** Runs work whose signal aborts on Ctrl-C. */
  interruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void>;
}

const PROMPT = ">>> ";
const MORE_PROMPT = "... ";
const FENCE = '"""';

const HELP = `/clear   forget the conversation
/bye     leave (or Ctrl-D)
/help    this list
${FENCE}      begin and end a text of several lines
Ctrl-C   stop the answer; clear the line or the text begun with ${FENCE}; at an empty prompt, leave
`;

/** Talks until the person leaves. */
export async function chat(session: Session, terminal: Terminal): Promise<void> {
  const { system } = session.flags;
  const opening: ChatMessage[] = system === null ? [] : [{ role: "system", content: system }];
  let messages = [...opening];
  for (;;) {
    const said = await listen(terminal);
    if (said === null) return;
    const word = said.trim();
    if (word === "") continue;
    switch (word) {
      case "/bye":
      case "/exit":
        return;
      case "/help":
      case "/?":
        terminal.write(HELP);
        continue;
      case "/clear":
        messages = [...opening];
        terminal.write("The conversation starts anew.\n");
        continue;
      default:
        if (/^\/\w+$/.test(word)) {
          terminal.write(`unknown command ${word}; /help lists them\n`);
          continue;
        }
    }
    messages = await turn(session, terminal, messages, said);
  }
}

/** One line, or the lines between two fences as one text; null when the person leaves. */
async function listen(terminal: Terminal): Promise<string | null> {
  const first = await terminal.ask(PROMPT);
  if (first.kind === "interrupt") return first.wasEmpty ? null : "";
  if (first.kind === "end") return null;
  if (!first.text.startsWith(FENCE)) return first.text;
  let text = first.text.slice(FENCE.length);
  while (!text.trimEnd().endsWith(FENCE)) {
    const more = await terminal.ask(MORE_PROMPT);
    // Only the text begun is given up: the conversation is worth more than a half-typed block.
    if (more.kind === "interrupt") return "";
    if (more.kind === "end") return null;
    text += `\n${more.text}`;
  }
  return text.trimEnd().slice(0, -FENCE.length).replace(/^\n/, "").replace(/\n$/, "");
}

/** Answers one message; returns the conversation after it. */
async function turn(
  session: Session,
  terminal: Terminal,
  before: readonly ChatMessage[],
  said: string,
): Promise<ChatMessage[]> {
  const asked = [...before, { role: "user", content: said }];
  let ids: Int32Array;
  try {
    ids = promptIds(session, asked);
  } catch (error) {
    if (!(error instanceof TooLong)) throw error;
    terminal.write(`${error.message}; /clear starts a new conversation\n`);
    return [...before];
  }
  let text = "";
  await terminal.interruptible(async (signal) => {
    for await (const piece of answer(session, ids, signal)) {
      text += piece;
      terminal.write(forTerminal(piece));
    }
  });
  terminal.write(text.endsWith("\n") ? "\n" : "\n\n");
  return [...asked, { role: "assistant", content: text }];
}
