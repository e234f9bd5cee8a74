import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import {
  COMMANDS,
  type CommandName,
  FLAGS,
  flagRows,
  helpText,
  parseCommandLine,
  variableOf,
} from "../../src/cli/flags.ts";
import { nearest } from "../../src/cli/nearest.ts";
import { UsageError } from "../../src/errors.ts";

function parse(line: string, env: Record<string, string> = {}) {
  const call = parseCommandLine(line === "" ? [] : line.split(" "), env);
  if (call.kind !== "command") throw new Error(`${line} is no command`);
  return call;
}

describe("command line", () => {
  test("takes a value after a space or after =", () => {
    expect(parse("serve --port 1 --host=::").flags).toMatchObject({ port: 1, host: "::" });
  });

  test("gives every flag its default", () => {
    expect(parse("serve").flags).toEqual({
      port: null,
      host: "localhost",
      "served-name": null,
      "queue-depth": 64,
      "max-batch": 1,
      context: null,
      threads: null,
      backend: "cpu",
      activations: "fast",
      temperature: 0,
      "top-k": 0,
      "top-p": 1,
      "min-p": 0,
      "repetition-penalty": 1,
      seed: null,
      deadline: null,
      "drain-timeout": 30,
      "cors-origin": [],
      "allowed-host": [],
      "metrics-compat": null,
      strict: false,
      "max-sessions": 64,
      "max-tokens": null,
      system: null,
    });
  });

  test("run penalises repetition lightly unless told otherwise", () => {
    expect(parse("run").flags["repetition-penalty"]).toBe(1.1);
    expect(parse("run --repetition-penalty 1").flags["repetition-penalty"]).toBe(1);
  });

  test("keeps a seed of 64 bits exact", () => {
    expect(parse("run --seed 18446744073709551615").flags.seed).toBe(18446744073709551615n);
  });

  test("collects a repeated list and keeps the last of another flag", () => {
    const { flags } = parse("serve --cors-origin a --port 1 --cors-origin b --port 2");
    expect(flags["cors-origin"]).toEqual(["a", "b"]);
    expect(flags.port).toBe(2);
  });

  test("lets a flag win over its variable, and the variable over the default", () => {
    const env = { CALDRIX_PORT: "7", CALDRIX_CORS_ORIGIN: "a, b" };
    expect(parse("serve", env).flags).toMatchObject({ port: 7, "cors-origin": ["a", "b"] });
    expect(parse("serve --port 9", env).flags.port).toBe(9);
  });

  test("reads variables of the command's own flags only", () => {
    expect(parse("run", { CALDRIX_PORT: "x" }).flags.port).toBeNull();
  });

  test("ends flags at --", () => {
    expect(parse("run -- --help").args).toEqual(["--help"]);
  });

  test.each([
    [["--port", "9001"], { port: 9001 }],
    [["--port=9001", "--host", "::"], { port: 9001, host: "::" }],
  ])("takes leading flags as those of serve: %p", (argv, flags) => {
    const call = parseCommandLine(argv, {});
    expect(call).toMatchObject({ kind: "command", command: "serve", args: [], flags });
  });

  test("takes a model after leading flags, and --help there for that of serve", () => {
    expect(parse("--port 1 gemma-3-270m").args).toEqual(["gemma-3-270m"]);
    expect(parseCommandLine(["--port", "1", "-h"], {})).toEqual({ kind: "help", command: "serve" });
  });

  test("an argument with white space is no flag, but its value may have some", () => {
    const call = parseCommandLine(["run", "- a list item", "--max-tokens", "5"], {});
    expect(call).toMatchObject({ args: ["- a list item"], flags: { "max-tokens": 5 } });
    expect(parseCommandLine(["run", "--\nnew"], {})).toMatchObject({ args: ["--\nnew"] });
    const system = parseCommandLine(["run", "--system=You are terse.", "a = b"], {});
    expect(system).toMatchObject({ args: ["a = b"], flags: { system: "You are terse." } });
  });

  test("takes a negative number as a value", () => {
    expect(parse("serve --top-k -1").flags["top-k"]).toBe(-1);
  });

  test.each([
    ["--help", null],
    ["-h", null],
    ["", null],
    ["serve --help", "serve"],
    ["run smollm2-135m -h", "run"],
    ["help pull", "pull"],
  ] as const)("asks for help: %p", (line, command) => {
    const argv = line === "" ? [] : line.split(" ");
    expect(parseCommandLine(argv, {})).toEqual({ kind: "help", command });
  });

  test.each([
    ["serve --prot 1", "unknown flag --prot of caldrix serve (did you mean --port"],
    ["pull --port 1", "unknown flag --port of caldrix pull"],
    ["--prot 1", "unknown flag --prot of caldrix serve (did you mean --port"],
    ["--port 1 a b", 'caldrix serve [MODEL]: one argument too many, "b"'],
    ["-- a", "unknown command --"],
    ["sevre", "unknown command sevre (did you mean serve?)"],
    ["serve --port", "--port needs a value: a whole number from 0 to 65535"],
    ["serve --port 65536", '--port: wanted a whole number from 0 to 65535, got "65536"'],
    ["serve --port 1.5", '--port: wanted a whole number from 0 to 65535, got "1.5"'],
    ["serve --backend hip", '--backend: wanted cpu, got "hip"'],
    ["serve --max-batch 65", '--max-batch: wanted a whole number from 1 to 64, got "65"'],
    ["serve --top-p 0", '--top-p: wanted a number above 0 and at most 1, got "0"'],
    ["serve --temperature -1", '--temperature: wanted a number of at least 0, got "-1"'],
    [
      "serve --temperature Infinity",
      '--temperature: wanted a number of at least 0, got "Infinity"',
    ],
    ["serve --temperature 0x1", '--temperature: wanted a number of at least 0, got "0x1"'],
    ["serve --repetition-penalty 0", "--repetition-penalty: wanted a number above 0"],
    ["run --seed 18446744073709551616", "--seed: wanted a whole number from 0 to 2^64-1"],
    ["run --seed -1", "--seed: wanted a whole number from 0 to 2^64-1"],
    ["run --activations f16", '--activations: wanted fast or f32, got "f16"'],
    ["run --context=", '--context: wanted a whole number from 16 to 1048576, got ""'],
    ["serve a b", 'caldrix serve [MODEL]: one argument too many, "b"'],
    ["list x", 'caldrix list: one argument too many, "x"'],
  ])("refuses %p", (line, message) => {
    const refusal = () => parse(line);
    expect(refusal).toThrow(UsageError);
    expect(refusal).toThrow(message);
  });

  test("names the variable that holds a wrong value", () => {
    expect(() => parse("serve", { CALDRIX_PORT: "x" })).toThrow("CALDRIX_PORT: wanted a whole");
  });
});

describe("help and docs", () => {
  test("every flag of a command is in its help, with its default", () => {
    for (const flag of FLAGS) {
      for (const command of flag.commands) expect(helpText(command)).toContain(`--${flag.name} `);
    }
    expect(helpText("serve")).toContain("(8425; with --strict 8080)");
  });

  test("the example of a variable is one of the command's own", () => {
    for (const command of Object.keys(COMMANDS) as CommandName[]) {
      const [variable, flag] = helpText(command).match(/CALDRIX_\w+|(?<=for --)[\w-]+/g) ?? [];
      const own = FLAGS.filter((entry) => (entry.commands as readonly string[]).includes(command));
      expect(flag).toBe(own[0]?.name);
      expect(variable).toBe(own[0] && variableOf(own[0].name));
    }
  });

  test("help says what leading flags mean and what -- does", () => {
    expect(helpText(null)).toContain("Flags without a command are\nthose of serve");
    for (const command of [null, "serve", "run"] as const) {
      expect(helpText(command)).toContain("-- ends the flags");
    }
  });

  test("the general help names every command", () => {
    for (const command of Object.keys(COMMANDS)) expect(helpText(null)).toContain(command);
  });

  test.each(["serve", "run"] as const)("docs/%s.md has the table of flags", (command) => {
    const docs = readFileSync(join(import.meta.dir, `../../docs/${command}.md`), "utf8");
    const rows = docs.split("\n").filter((line) => line.startsWith("| `--"));
    expect(rows).toEqual(docsRows(command));
  });

  test("a flag's variable is spelt in capitals", () => {
    expect(variableOf("repetition-penalty")).toBe("CALDRIX_REPETITION_PENALTY");
  });
});

function docsRows(command: CommandName): string[] {
  return flagRows(command).map(({ flag, fallback, help }) => {
    return `| \`${flag.replaceAll("|", "\\|")}\` | ${fallback} | ${help} |`;
  });
}

describe("nearest", () => {
  test.each([
    ["qwen", ["smollm2-135m", "qwen3-0.6b"], ["qwen3-0.6b"]],
    ["smollm2-135", ["gemma-3-270m", "smollm2-135m"], ["smollm2-135m"]],
    ["zzz", ["serve", "run"], []],
  ])("of %p in %p is %p", (word, words, close) => {
    expect(nearest(word, words)).toEqual(close);
  });
});
