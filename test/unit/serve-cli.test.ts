// serve's greeting and signals, and the chat of run, without a model.
import { describe, expect, test } from "bun:test";
import type { Session } from "../../src/cli/answer.ts";
import { type Asked, chat, type Terminal } from "../../src/cli/chat.ts";
import { type FlagValues, parseCommandLine } from "../../src/cli/flags.ts";
import { loadUnlessStopped } from "../../src/cli/load.ts";
import { facts, greeting } from "../../src/cli/serve.ts";
import { watchSignals } from "../../src/cli/signals.ts";
import type { OwnedEngine } from "../../src/engine/client.ts";
import type { LoadedModel } from "../../src/model/types.ts";
import type { ChatMessage, Tokenizer } from "../../src/text/types.ts";
import { fakeEngine } from "../support/fake-engine.ts";

/** One id a byte. */
const BYTES: Tokenizer = {
  vocabSize: 256,
  bosId: null,
  longestTokenBytes: 1,
  longestEntryBytes: 1,
  encode: (text) => Int32Array.from(new TextEncoder().encode(text)),
  pieceBytes: (id) => Uint8Array.of(id),
  idOf: () => null,
};

function flagsOf(...argv: string[]): FlagValues {
  const call = parseCommandLine(["run", ...argv], {});
  if (call.kind !== "command") throw new Error("no command");
  return call.flags;
}

function modelWith(template: boolean): LoadedModel {
  return {
    name: "org/tiny",
    arch: "llama",
    plan: new ArrayBuffer(0),
    vocabSize: 256,
    contextLength: 200,
    eosIds: [0],
    registers: [],
    tokenizer: BYTES,
    template: template
      ? {
          bytes: 10,
          render: (messages) => ({ prompt: show(messages), systemFolded: false }),
        }
      : null,
    decider: null,
  };
}

function show(messages: readonly ChatMessage[]): string {
  return `${messages.map((m) => `${m.role[0]}:${m.content}`).join("|")}|`;
}

/** Talks to an engine that answers "ok" (or as told); returns the prompts it saw and the screen. */
async function talk(
  lines: (string | Asked)[],
  options: { base?: boolean; flags?: string[]; reply?: string; interruptAt?: number } = {},
) {
  const engine = fakeEngine({
    context: 200,
    reply: () => [...new TextEncoder().encode(options.reply ?? "ok"), 0],
  });
  const session: Session = {
    model: modelWith(!options.base),
    engine,
    flags: flagsOf(...(options.flags ?? [])),
  };
  let screen = "";
  const asked: string[] = [];
  let working: AbortController | null = null;
  const terminal: Terminal = {
    ask(prompt) {
      asked.push(prompt);
      const next = lines.shift() ?? { kind: "end" };
      return Promise.resolve(typeof next === "string" ? { kind: "line", text: next } : next);
    },
    write(text) {
      screen += text;
      if (screen.length === options.interruptAt) working?.abort();
    },
    async interruptible(work) {
      working = new AbortController();
      await work(working.signal);
    },
  };
  await chat(session, terminal);
  const prompts = engine.requests.map((request) =>
    new TextDecoder().decode(Uint8Array.from(request.ids)),
  );
  return { prompts, screen, requests: engine.requests, asked, left: lines.length };
}

describe("the chat of run", () => {
  test("keeps the conversation, so that each prompt goes on from the one before", async () => {
    const { prompts, screen } = await talk(["a", "b"]);
    expect(prompts).toEqual(["u:a|", "u:a|a:ok|u:b|"]);
    expect(screen).toBe("ok\n\nok\n\n");
  });

  test("begins with the system message, also after /clear", async () => {
    const { prompts } = await talk(["a", "/clear", "b"], { flags: ["--system", "S"] });
    expect(prompts).toEqual(["s:S|u:a|", "s:S|u:b|"]);
  });

  test("asks again after an empty line and ends at /bye", async () => {
    const { prompts } = await talk(["", "  ", "a", "/bye", "b"]);
    expect(prompts).toEqual(["u:a|"]);
  });

  test("takes several lines between fences as one message", async () => {
    const { prompts } = await talk(['"""', "a", "", 'b"""', '"""c"""']);
    expect(prompts).toEqual(["u:a\n\nb|", "u:a\n\nb|a:ok|u:c|"]);
  });

  test("says what commands there are and which is unknown", async () => {
    const { prompts, screen } = await talk(["/help", "/foo"]);
    expect(prompts).toEqual([]);
    expect(screen).toContain("/clear");
    expect(screen).toContain("unknown command /foo; /help lists them");
  });

  test("Ctrl-C stops the answer and keeps what was said", async () => {
    const { prompts, screen } = await talk(["a", "b"], { reply: "0123456789", interruptAt: 4 });
    expect(screen.startsWith("0123\n\n")).toBe(true);
    expect(prompts[1]).toBe("u:a|a:0123|u:b|");
  });

  test("Ctrl-C clears a line, drops a text between fences and leaves at an empty line", async () => {
    const half: Asked = { kind: "interrupt", wasEmpty: false };
    const empty: Asked = { kind: "interrupt", wasEmpty: true };
    const lines = ["a", half, '"""x', "y", empty, '"""', half, "b", empty, "c"];
    const { prompts, asked, left } = await talk(lines);
    expect(prompts).toEqual(["u:a|", "u:a|a:ok|u:b|"]);
    const [line, more] = [">>> ", "... "];
    expect(asked).toEqual([line, line, line, more, more, line, more, line, line]);
    expect(left).toBe(1);
  });

  test("the end of the input leaves, also between fences", async () => {
    const { asked } = await talk(['"""', { kind: "end" }, "a"]);
    expect(asked).toEqual([">>> ", "... "]);
  });

  test("a message that does not fit is refused, and the conversation goes on", async () => {
    const { prompts, screen } = await talk(["a", "x".repeat(300), "b"]);
    expect(screen).toContain("wanted 1 to 199 in a context of 200; /clear starts");
    expect(prompts.at(-1)).toBe("u:a|a:ok|u:b|");
  });

  test("a base model goes on with the line as it is", async () => {
    const { prompts } = await talk(["a", "b"], { base: true });
    expect(prompts).toEqual(["a", "b"]);
  });

  test("takes the sampling of the flags, and a fresh seed each time without one", async () => {
    const { requests } = await talk(["a", "b"], {
      flags: ["--temperature", "0.5", "--top-k", "-1", "--max-tokens", "7"],
    });
    expect(requests[0]?.sampling).toMatchObject({ temperature: 0.5, topK: 0 });
    expect(requests[0]?.maxTokens).toBe(7);
    expect(requests[0]?.sampling.seed).not.toBe(requests[1]?.sampling.seed);
    const seeded = await talk(["a"], { flags: ["--seed", "5"] });
    expect(seeded.requests[0]?.sampling.seed).toBe(5n);
  });

  test("keeps a model's control characters off the terminal", async () => {
    const { screen } = await talk(["a"], { reply: "x\u001b[2Jy\tz" });
    expect(screen).toBe("x[2Jy\tz\n\n");
  });
});

describe("loading", () => {
  const choice = { kind: "path", path: "/no/such/model", name: "x" } as const;

  test("a signal ends it without an answer and without an error", async () => {
    const stop = new AbortController();
    const loading = loadUnlessStopped(choice, flagsOf(), 1, stop.signal);
    stop.abort();
    expect(await loading).toBeNull();
  });

  test("an error without a signal stays one", async () => {
    const loading = loadUnlessStopped(choice, flagsOf(), 1, new AbortController().signal);
    await expect(loading).rejects.toThrow("/no/such/model: no such file or folder");
  });
});

describe("serve", () => {
  test("says on what it runs", () => {
    const machine = { cores: 2, gpus: 0, isa: "avx2" };
    const opened = { weightBytes: 96_600_000 } as OwnedEngine["opened"]; // the one figure shown
    const engine = Object.assign(fakeEngine({ context: 200, reply: () => [] }), {
      machine,
      opened,
    });
    expect(facts({ model: modelWith(true), engine })).toBe(
      "llama, 96.6 MB of weights, context 200, 1 request at a time, avx2 kernels, 2 cores",
    );
  });

  test("greets with a chat for a chat model, a completion for a base model", () => {
    const chatty = greeting(modelWith(true), "org/tiny", "http://localhost:1");
    expect(chatty).toContain("caldrix serves org/tiny on http://localhost:1\n");
    expect(chatty).toContain("curl http://localhost:1/v1/chat/completions");
    expect(greeting(modelWith(false), "x", "http://localhost:1")).toContain("/v1/completions");
  });

  test("quotes a name for JSON and for the shell", () => {
    const text = greeting(modelWith(false), `it's "x"`, "http://[::]:1");
    const body = /-d ('.*')/.exec(text)?.[1] ?? "";
    const echoed = Bun.spawnSync(["sh", "-c", `printf %s ${body}`]).stdout.toString();
    expect(JSON.parse(echoed).model).toBe(`it's "x"`);
    expect(text).toContain("curl http://localhost:1/");
  });

  test("counts signals, and those of one key press as one", async () => {
    const seen: [string, number][] = [];
    const unwatch = watchSignals((signal, count) => seen.push([signal, count]));
    process.emit("SIGINT");
    process.emit("SIGINT");
    await Bun.sleep(300); // longer than one key press
    process.emit("SIGTERM");
    unwatch();
    expect(seen).toEqual([
      ["SIGINT", 1],
      ["SIGTERM", 2],
    ]);
  });
});
