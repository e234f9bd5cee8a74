// `caldrix run`: one prompt answered to stdout, or, on a terminal without a prompt, a chat.

import { ModelError, UsageError } from "../errors.ts";
import { DEFAULT_MODEL } from "../model/catalog.ts";
import type { ChatMessage } from "../text/types.ts";
import { answer, forTerminal, promptIds, type Session } from "./answer.ts";
import { chat } from "./chat.ts";
import type { FlagValues } from "./flags.ts";
import { loadUnlessStopped } from "./load.ts";
import { print } from "./output.ts";
import { chooseModel, type ModelChoice, unknownModel } from "./resolve.ts";
import { EXIT_INTERRUPTED, type Stoppable, stopOnSignal } from "./signals.ts";
import { openTerminal } from "./terminal.ts";

/** Runs a prompt or a chat; returns the exit code. */
export async function run(args: readonly string[], flags: FlagValues): Promise<number> {
  const { choice, prompt } = readArguments(args);
  if (prompt !== null) return once(choice, flags, prompt);
  if (!process.stdin.isTTY) return once(choice, flags, await readStdin());
  return talk(choice, flags);
}

/** MODEL and PROMPT; a single argument that names no model and has white space in it is a prompt. */
export function readArguments(args: readonly string[]): {
  readonly choice: ModelChoice;
  readonly prompt: string | null;
} {
  const [first, second] = args;
  if (args.at(-1)?.trim() === "") throw new UsageError("the prompt is empty");
  const choice = chooseModel(first);
  if (choice) return { choice, prompt: second ?? null };
  const byDefault = chooseModel(undefined);
  if (byDefault && second === undefined && first !== undefined && /\s/.test(first)) {
    return { choice: byDefault, prompt: first };
  }
  const unknown = unknownModel(first ?? "");
  // A path, or a name with others near it, was hardly meant as a question.
  const isWord = first !== undefined && second === undefined && !/[/\\]|\.gguf$/i.test(first);
  if (!isWord || unknown.message.endsWith("?")) throw unknown;
  const quoted = /^[\w.,-]+$/.test(first) ? first : `'${first.replaceAll("'", "'\\''")}'`;
  throw new ModelError(
    `${unknown.message}; to ask the default model a one-word question, name the model first: caldrix run ${DEFAULT_MODEL} ${quoted}`,
  );
}

async function readStdin(): Promise<string> {
  const text = (await Bun.stdin.text()).replace(/\r?\n$/, "");
  if (text.trim() === "") throw new UsageError("no prompt: neither an argument nor text on stdin");
  return text;
}

async function once(choice: ModelChoice, flags: FlagValues, prompt: string): Promise<number> {
  const stop = stopOnSignal();
  const write = async (text: string): Promise<void> => {
    // The reader of our output has left (`| head`): nobody wants the rest.
    if (!(await print(text))) stop.stop();
  };
  try {
    const loaded = await loadUnlessStopped(choice, flags, 1, stop.signal);
    if (loaded !== null) {
      await say({ ...loaded, flags }, prompt, stop.signal, write);
      await loaded.engine.close();
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  } finally {
    stop.unwatch();
  }
  return exitCode(stop);
}

/** SIGTERM is a clean end. */
function exitCode(stop: Stoppable): number {
  return stop.by() === "SIGINT" ? EXIT_INTERRUPTED : 0;
}

async function say(
  session: Session,
  prompt: string,
  signal: AbortSignal,
  write: (text: string) => Promise<void>,
): Promise<void> {
  const { system } = session.flags;
  const messages: ChatMessage[] = [{ role: "user", content: prompt }];
  if (system !== null) messages.unshift({ role: "system", content: system });
  const ids = promptIds(session, messages);
  const isTTY = process.stdout.isTTY === true;
  let last = "";
  for await (const piece of answer(session, ids, signal)) {
    last = piece;
    await write(isTTY ? forTerminal(piece) : piece);
  }
  if (!last.endsWith("\n")) await write("\n");
}

async function talk(choice: ModelChoice, flags: FlagValues): Promise<number> {
  const stop = stopOnSignal();
  const loaded = await loadUnlessStopped(choice, flags, 1, stop.signal).finally(stop.unwatch);
  if (loaded === null) return exitCode(stop);
  const { model, engine } = loaded;
  process.stdout.write(
    `${model.name}${model.template ? "" : " (a base model: it goes on with your text)"}; /help for help\n`,
  );
  const terminal = openTerminal();
  try {
    await chat({ model, engine, flags }, terminal);
  } finally {
    terminal.close();
    await engine.close();
  }
  return 0;
}
