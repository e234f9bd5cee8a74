// The clients written in Python: installs them below dist/ when they are not there, keeps one process of
// clients.py and talks to it in lines of JSON, one call at a time. Used by clients.test.ts alone.

import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { z } from "zod";
import { type Client, MODEL } from "./client.ts";

const REQUIREMENTS = join(import.meta.dir, "requirements.txt");
const PLACE = join(import.meta.dir, "../../dist/python-clients");
const PYTHON = join(PLACE, "bin", "python");
/** A copy of the requirements, made last: it names what is really installed. */
const INSTALLED = join(PLACE, "requirements.txt");

const ANSWER = z.object({
  text: z.string(),
  finish: z.string().nullable(),
  promptTokens: z.number(),
  completionTokens: z.number(),
});
const STREAMED_ANSWER = ANSWER.extend({ pieces: z.number() });
const THROWN = z.object({
  name: z.string(),
  status: z.number(),
  param: z.string().nullable(),
  message: z.string(),
});
const RESULT = z.union([z.object({ value: z.unknown() }), z.object({ raised: THROWN })]);
const TEXTS = z.array(z.string());

/** The families of a metrics page as the Prometheus client reads them. */
const FAMILIES = z.array(
  z.object({
    name: z.string(),
    type: z.string(),
    help: z.string(),
    samples: z.array(z.tuple([z.string(), z.record(z.string(), z.string()), z.number()])),
  }),
);
export type MetricFamily = z.output<typeof FAMILIES>[number];

export interface PythonClients {
  readonly openai: Client;
  readonly langchain: Client;
  /** A completion of OpenAI's client, whole and streamed. */
  complete(prompt: string, maxTokens: number): Promise<string[]>;
  /** The models that OpenAI's client lists. */
  models(): Promise<string[]>;
  parseMetrics(text: string): Promise<MetricFamily[]>;
  stop(): void;
}

/** Starts the clients of a server. @throws Error when they cannot be installed */
export async function startPython(url: string): Promise<PythonClients> {
  await install();
  const child = Bun.spawn([PYTHON, join(import.meta.dir, "clients.py"), url, MODEL], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  const lines = createInterface(Readable.fromWeb(child.stdout))[Symbol.asyncIterator]();

  async function call(...words: readonly unknown[]) {
    child.stdin.write(`${JSON.stringify(words)}\n`);
    child.stdin.flush();
    const { done, value } = await lines.next();
    if (done) throw new Error("clients.py ended; stderr above says why");
    return RESULT.parse(JSON.parse(value));
  }

  async function result<T>(shape: z.ZodType<T>, ...words: readonly unknown[]): Promise<T> {
    const got = await call(...words);
    if ("raised" in got) throw new Error(JSON.stringify(got.raised));
    return shape.parse(got.value);
  }

  async function raisedBy(...words: readonly unknown[]) {
    const got = await call(...words);
    if ("raised" in got) return got.raised;
    throw new Error("the server took what it must refuse");
  }

  const client = (party: string): Client => ({
    chat: (ask) => result(ANSWER, party, "chat", ask),
    stream: (ask) => result(STREAMED_ANSWER, party, "stream", ask),
    async abandon(ask, pieces) {
      await result(z.null(), party, "abandon", ask, pieces);
    },
    refusedChat: (ask) => raisedBy(party, "chat", ask),
    refusedFeature: (feature) => raisedBy(party, "feature", feature),
  });

  return {
    openai: client("openai"),
    langchain: client("langchain"),
    complete: (prompt, maxTokens) => result(TEXTS, "openai", "complete", prompt, maxTokens),
    models: () => result(TEXTS, "openai", "models"),
    parseMetrics: (text) => result(FAMILIES, "prometheus", "parse", text),
    stop: () => child.kill(),
  };
}

async function install(): Promise<void> {
  const wanted = readFileSync(REQUIREMENTS, "utf8");
  if (existsSync(PYTHON) && existsSync(INSTALLED)) {
    if (readFileSync(INSTALLED, "utf8") === wanted) return;
  }
  await run("python3", "-m", "venv", "--clear", PLACE);
  await run(PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--requirement", REQUIREMENTS);
  copyFileSync(REQUIREMENTS, INSTALLED);
}

async function run(...command: string[]): Promise<void> {
  const child = Bun.spawn(command, { stdout: "inherit", stderr: "inherit" });
  if ((await child.exited) !== 0) throw new Error(`failed: ${command.join(" ")}`);
}
