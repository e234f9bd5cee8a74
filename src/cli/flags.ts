// The one table of flags. Parsing, the CALDRIX_* variables, --help and the tables in docs/ are made
// from it (a test compares the docs). Precedence: flag, then variable, then default.

import { UsageError } from "../errors.ts";
import { nearest } from "./nearest.ts";

/** The commands, with what stands behind them and one line of help. */
export const COMMANDS = {
  serve: { args: "[MODEL]", most: 1, help: "serve a model over HTTP (the OpenAI API)" },
  run: { args: "[MODEL] [PROMPT]", most: 2, help: "answer one prompt, or chat in the terminal" },
  pull: { args: "[MODEL]", most: 1, help: "fetch a model into the cache" },
  list: { args: "", most: 0, help: "list the models known by name" },
  debug: { args: "plan MODEL", most: 2, help: "print the program a model is turned into" },
} as const;

export type CommandName = keyof typeof COMMANDS;

type Kind = "integer" | "number" | "seconds" | "seed" | "text" | "choice" | "list" | "switch";

interface Flag {
  readonly name: string;
  readonly kind: Kind;
  readonly commands: readonly CommandName[];
  /** As it would be typed; null: nothing, and `without` says what that means. */
  readonly fallback: string | null;
  readonly without?: string;
  /** The default of `caldrix run` where a chat in the terminal wants another. */
  readonly inRun?: string;
  readonly min?: number;
  readonly max?: number;
  /** The lower bound itself is not allowed. */
  readonly above?: true;
  readonly choices?: readonly string[];
  readonly help: string;
}

/** The values of a switch, for its variable and after "=". */
const SWITCH: readonly string[] = ["true", "false"];
/** Far above any request; keeps counts inside 32 bits. */
const MAX_INT = 2 ** 31 - 1;
/** A KV row of more positions than the C library allows (CX_MAX_CONTEXT). */
const MAX_CONTEXT = 1_048_576;
/** A timer of more than 24 days overflows in JavaScript. */
const MAX_SECONDS = 2_000_000;
const BOTH = ["serve", "run"] as const;

/** Every flag of every command. */
export const FLAGS = [
  {
    name: "port",
    kind: "integer",
    commands: ["serve"],
    fallback: null,
    without: "8425; with --strict 8080",
    min: 0,
    max: 65535,
    help: "port to listen on; 0 takes a free one",
  },
  {
    name: "host",
    kind: "text",
    commands: ["serve"],
    fallback: "localhost",
    help: "address to listen on; 0.0.0.0 for every interface",
  },
  {
    name: "served-name",
    kind: "text",
    commands: ["serve"],
    fallback: null,
    without: "the model's own",
    help: "model id that requests must name",
  },
  {
    name: "queue-depth",
    kind: "integer",
    commands: ["serve"],
    fallback: "64",
    min: 0,
    max: 65536,
    help: "requests that may wait; one more is answered 429",
  },
  {
    name: "max-batch",
    kind: "integer",
    commands: ["serve"],
    fallback: "1",
    min: 1,
    max: 64,
    help: "requests computed side by side",
  },
  {
    name: "context",
    kind: "integer",
    commands: BOTH,
    fallback: null,
    without: "the model's, at most 32768",
    min: 16,
    max: MAX_CONTEXT,
    help: "tokens that prompt and answer may have together",
  },
  {
    name: "threads",
    kind: "integer",
    commands: BOTH,
    fallback: null,
    without: "every core",
    min: 1,
    max: 1024,
    help: "threads that compute",
  },
  {
    name: "backend",
    kind: "choice",
    commands: BOTH,
    fallback: "cpu",
    choices: ["cpu"],
    help: "what computes",
  },
  {
    name: "activations",
    kind: "choice",
    commands: BOTH,
    fallback: "fast",
    choices: ["fast", "f32"],
    help: "fast: 8-bit inputs of quantised weights; f32: everything in float32, slower",
  },
  {
    name: "temperature",
    kind: "number",
    commands: BOTH,
    fallback: "0",
    min: 0,
    help: "how freely tokens are drawn; 0 always takes the likeliest",
  },
  {
    name: "top-k",
    kind: "integer",
    commands: BOTH,
    fallback: "0",
    min: -1,
    max: MAX_INT,
    help: "keep the K likeliest tokens; 0 or -1 keeps all",
  },
  {
    name: "top-p",
    kind: "number",
    commands: BOTH,
    fallback: "1",
    min: 0,
    max: 1,
    above: true,
    help: "keep the likeliest tokens that together reach this probability",
  },
  {
    name: "min-p",
    kind: "number",
    commands: BOTH,
    fallback: "0",
    min: 0,
    max: 1,
    help: "drop tokens less likely than this share of the likeliest",
  },
  {
    name: "repetition-penalty",
    kind: "number",
    commands: BOTH,
    fallback: "1",
    // Greedy answers of small models run in circles without it; over HTTP the contract says 1.
    inRun: "1.1",
    min: 0,
    above: true,
    help: "above 1: tokens already in prompt or answer become less likely",
  },
  {
    name: "seed",
    kind: "seed",
    commands: BOTH,
    fallback: null,
    without: "a fresh one each time",
    help: "seed of the draws: the same seed gives the same answer",
  },
  {
    name: "deadline",
    kind: "seconds",
    commands: ["serve"],
    fallback: null,
    without: "none; with --strict 300",
    min: 0,
    max: MAX_SECONDS,
    above: true,
    help: "longest a request may take, in seconds; with --strict at most 300",
  },
  {
    name: "drain-timeout",
    kind: "seconds",
    commands: ["serve"],
    fallback: "30",
    min: 0,
    max: MAX_SECONDS,
    help: "seconds that running requests get to finish after SIGTERM or Ctrl-C",
  },
  {
    name: "cors-origin",
    kind: "list",
    commands: ["serve"],
    fallback: null,
    without: "none",
    help: "origin whose web pages may call the server; repeatable, * for any",
  },
  {
    name: "allowed-host",
    kind: "list",
    commands: ["serve"],
    fallback: null,
    without: "none",
    help: "further Host name to answer to when bound to loopback; repeatable",
  },
  {
    name: "metrics-compat",
    kind: "choice",
    commands: ["serve"],
    fallback: null,
    without: "none",
    choices: ["vllm"],
    help: "adds the gauges under another server's names to /metrics",
  },
  {
    name: "strict",
    kind: "switch",
    commands: ["serve"],
    fallback: null,
    without: "off",
    help: "serves the second contract: few fields, stable error codes, 4096 tokens",
  },
  {
    name: "max-sessions",
    kind: "integer",
    commands: ["serve"],
    fallback: "64",
    min: 0,
    max: 65536,
    help: "WebSocket sessions open at once; one more is answered 429",
  },
  {
    name: "max-tokens",
    kind: "integer",
    commands: ["run"],
    fallback: null,
    without: "until the answer ends",
    min: 1,
    max: MAX_INT,
    help: "longest answer, in tokens",
  },
  {
    name: "system",
    kind: "text",
    commands: ["run"],
    fallback: null,
    without: "none",
    help: "system message that a chat begins with",
  },
] as const satisfies readonly Flag[];

type Entry = (typeof FLAGS)[number];
type ValueOfKind<F extends Entry> = F["kind"] extends "text"
  ? string
  : F["kind"] extends "switch"
    ? boolean
    : F["kind"] extends "seed"
      ? bigint
      : F["kind"] extends "list"
        ? readonly string[]
        : F extends { readonly choices: readonly (infer C)[] }
          ? C
          : number;
type ValueOf<F extends Entry> = F["kind"] extends "list" | "switch"
  ? ValueOfKind<F>
  : F["fallback"] extends null
    ? ValueOfKind<F> | null
    : ValueOfKind<F>;

/** Every flag's value by its name; seconds are seconds. */
export type FlagValues = { readonly [F in Entry as F["name"]]: ValueOf<F> };

export type Invocation =
  | { readonly kind: "help"; readonly command: CommandName | null }
  | { readonly kind: "version" }
  | {
      readonly kind: "command";
      readonly command: CommandName;
      readonly args: readonly string[];
      readonly flags: FlagValues;
    };

/**
 * Reads a command line.
 * @param argv without the program's name
 * @throws UsageError naming the flag, variable or argument, what was wanted and what came
 */
export function parseCommandLine(
  argv: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): Invocation {
  const [first, second] = argv;
  if (first === undefined || first === "--help" || first === "-h" || first === "help") {
    return { kind: "help", command: isCommand(second) ? second : null };
  }
  if (first === "--version" || first === "-V") return { kind: "version" };
  if (isFlag(first)) return readCommand("serve", argv, env);
  if (!isCommand(first)) {
    const close = nearest(first, Object.keys(COMMANDS));
    throw new UsageError(
      `unknown command ${first}${hint(close)}; wanted ${Object.keys(COMMANDS).join(", ")}`,
    );
  }
  return readCommand(first, argv.slice(1), env);
}

/** The arguments and flags that follow a command. */
function readCommand(
  command: CommandName,
  rest: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): Invocation {
  const args: string[] = [];
  const given = new Map<string, string[]>();
  for (let i = 0; i < rest.length; i++) {
    const word = rest[i]!;
    if (word === "--") {
      args.push(...rest.slice(i + 1));
      break;
    }
    if (word === "--help" || word === "-h") return { kind: "help", command };
    if (!isFlag(word)) {
      args.push(word);
      continue;
    }
    const [name, attached] = split(word);
    const flag = findFlag(name, command);
    const value = attached ?? (flag.kind === "switch" ? "true" : rest[++i]);
    if (value === undefined) throw new UsageError(`${name} needs a value: ${wanted(flag)}`);
    given.set(flag.name, [...(given.get(flag.name) ?? []), value]);
  }
  const { most, args: shape } = COMMANDS[command];
  if (args.length > most) {
    const shown = JSON.stringify(args[most]);
    throw new UsageError(
      `${`caldrix ${command} ${shape}`.trim()}: one argument too many, ${shown}`,
    );
  }
  return { kind: "command", command, args, flags: readValues(command, given, env) };
}

/** White space makes an argument of what looks like a flag ("- a list item"), but in a value. */
function isFlag(word: string): boolean {
  if (/\s/.test(word)) return /^--[\w-]+=/.test(word);
  return word.startsWith("-") && word !== "-" && word !== "--";
}

/** The variable that sets a flag. */
export function variableOf(name: string): string {
  return `CALDRIX_${name.toUpperCase().replaceAll("-", "_")}`;
}

/** Flags of a command as rows for --help and the docs: flag, default, what it does. */
export function flagRows(command: CommandName): { flag: string; fallback: string; help: string }[] {
  return flagsOf(command).map((flag) => {
    const value =
      flag.kind === "choice" ? flag.choices?.join("|") : flag.kind === "list" ? "text" : flag.kind;
    return {
      flag:
        flag.kind === "switch"
          ? `--${flag.name}`
          : `--${flag.name} ${flag.kind === "choice" ? value : `<${value}>`}`,
      fallback: defaultOf(flag, command) ?? flag.without ?? "none",
      help: flag.help,
    };
  });
}

/** The text of `caldrix --help` or `caldrix COMMAND --help`. */
export function helpText(command: CommandName | null): string {
  if (command === null) {
    const lines = Object.entries(COMMANDS).map(([name, { args, help }]) => {
      return `  caldrix ${`${name} ${args}`.trim().padEnd(24)} ${help}`;
    });
    return `caldrix serves one local language model.\n\n${lines.join("\n")}\n
MODEL is a name of \`caldrix list\`, a .gguf file or a model directory. Flags without a command are
those of serve. -- ends the flags: what follows is an argument, whatever it begins with.
\`caldrix COMMAND --help\` lists the flags; \`caldrix --version\` prints the version.\n`;
  }
  const { args, help } = COMMANDS[command];
  const rows = flagRows(command);
  const width = Math.max(0, ...rows.map((row) => row.flag.length));
  const lines = rows.map((row) => `  ${row.flag.padEnd(width)}  ${row.help} (${row.fallback})`);
  const usage = `caldrix ${command} ${args}`.trim().concat(`: ${help}\n`);
  const [example] = flagsOf(command);
  if (!example) return usage;
  return `${usage}\n${lines.join("\n")}\n
The default stands in brackets. Each flag can also be set by a variable: ${variableOf(example.name)}
for --${example.name}. -- ends the flags: what follows is an argument, whatever it begins with.\n`;
}

function isCommand(word: string | undefined): word is CommandName {
  return word !== undefined && Object.hasOwn(COMMANDS, word);
}

function flagsOf(command: CommandName): Flag[] {
  const flags: readonly Flag[] = FLAGS;
  return flags.filter((flag) => flag.commands.includes(command));
}

function defaultOf(flag: Flag, command: CommandName): string | null {
  return command === "run" && flag.inRun !== undefined ? flag.inRun : flag.fallback;
}

function split(word: string): [name: string, value: string | null] {
  const at = word.indexOf("=");
  return at < 0 ? [word, null] : [word.slice(0, at), word.slice(at + 1)];
}

function findFlag(word: string, command: CommandName): Flag {
  const flags = flagsOf(command);
  const found = flags.find((flag) => `--${flag.name}` === word);
  if (found) return found;
  const close = nearest(
    word,
    flags.map((flag) => `--${flag.name}`),
  );
  throw new UsageError(`unknown flag ${word} of caldrix ${command}${hint(close)}`);
}

function hint(close: readonly string[]): string {
  return close.length > 0 ? ` (did you mean ${close.join(" or ")}?)` : "";
}

function readValues(
  command: CommandName,
  given: ReadonlyMap<string, readonly string[]>,
  env: Readonly<Record<string, string | undefined>>,
): FlagValues {
  const values: Record<string, unknown> = {};
  const flags: readonly Flag[] = FLAGS;
  for (const flag of flags) {
    const typed = given.get(flag.name);
    const variable = flag.commands.includes(command) ? env[variableOf(flag.name)] : undefined;
    const source = typed ? `--${flag.name}` : variableOf(flag.name);
    // In a variable, the entries of a list stand side by side with commas.
    const texts =
      typed ?? (variable ? (flag.kind === "list" ? variable.split(",") : [variable]) : null);
    if (flag.kind === "list") {
      values[flag.name] = (texts ?? []).map((text) => String(read(flag, text.trim(), source)));
    } else if (flag.kind === "switch") {
      values[flag.name] = read(flag, texts?.at(-1) ?? "false", source) === "true";
    } else {
      const text = texts?.at(-1) ?? defaultOf(flag, command);
      values[flag.name] = text === null ? null : read(flag, text, source);
    }
  }
  return values as FlagValues; // each value was read by its flag's kind just above
}

function read(flag: Flag, text: string, source: string): string | number | bigint {
  const refuse = () => new UsageError(`${source}: wanted ${wanted(flag)}, got "${text}"`);
  switch (flag.kind) {
    case "text":
    case "list":
      if (text === "") throw refuse();
      return text;
    case "choice":
      if (!flag.choices?.includes(text)) throw refuse();
      return text;
    case "switch":
      if (!SWITCH.includes(text)) throw refuse();
      return text;
    case "seed":
      if (!/^\d{1,20}$/.test(text) || BigInt(text) >= 2n ** 64n) throw refuse();
      return BigInt(text);
    case "integer":
    case "number":
    case "seconds": {
      const shape = flag.kind === "integer" ? /^-?\d+$/ : /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
      const value = shape.test(text) ? Number(text) : Number.NaN;
      const { min = Number.NEGATIVE_INFINITY, max = Number.MAX_VALUE } = flag;
      if (!(value >= min && value <= max) || (flag.above && value === min)) throw refuse();
      return value;
    }
    default:
      return flag.kind satisfies never;
  }
}

function wanted(flag: Flag): string {
  switch (flag.kind) {
    case "text":
    case "list":
      return "a text";
    case "choice":
      return flag.choices?.join(" or ") ?? "";
    case "switch":
      return SWITCH.join(" or ");
    case "seed":
      return "a whole number from 0 to 2^64-1";
    default: {
      const noun = flag.kind === "integer" ? "a whole number" : "a number";
      const low = flag.min === undefined ? "" : `${flag.above ? " above" : " from"} ${flag.min}`;
      const high =
        flag.max === undefined ? "" : ` ${flag.above ? "and at most" : "to"} ${flag.max}`;
      return noun + (low && !high && !flag.above ? ` of at least ${flag.min}` : low + high);
    }
  }
}
