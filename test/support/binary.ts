// Runs dist/caldrix for the smoke tests.

import { existsSync } from "node:fs";
import { join } from "node:path";

export const BINARY = join(import.meta.dir, "../../dist/caldrix");

/** Loading a model on a busy machine with two cores takes seconds, not more. */
const READY_MS = 60_000;

export interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Environment of a run: what the machine has, without settings of caldrix but the cache. */
export function environment(extra: Readonly<Record<string, string>> = {}): Record<string, string> {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(process.env)) {
    const isOurs = name.startsWith("CALDRIX_") && name !== "CALDRIX_CACHE";
    if (value !== undefined && !isOurs) env[name] = value;
  }
  return { ...env, ...extra };
}

/** Starts the executable. @throws Error when it has not been built */
export function start(
  args: readonly string[],
  env = environment(),
  stdin: "ignore" | Blob = "ignore",
) {
  if (!existsSync(BINARY)) throw new Error(`${BINARY} is missing: run npm run build`);
  return Bun.spawn([BINARY, ...args], { env, stdin, stdout: "pipe", stderr: "pipe" });
}

/** Runs it to its end. */
export async function finish(process: ReturnType<typeof start>): Promise<Ended> {
  const [stdout, stderr, code] = await Promise.all([
    process.stdout.text(),
    process.stderr.text(),
    process.exited,
  ]);
  return { code, stdout, stderr };
}

export interface Served {
  readonly process: ReturnType<typeof start>;
  readonly url: string;
  /** What it printed when it was ready. */
  readonly greeting: string;
}

/** Starts `serve` on a free port and waits until it says where it listens. */
export async function startServe(args: readonly string[], env = environment()): Promise<Served> {
  const child = start(["serve", ...args, "--port", "0"], env);
  const late = setTimeout(() => child.kill("SIGKILL"), READY_MS);
  const reader = child.stdout.getReader();
  const decoder = new TextDecoder();
  let greeting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error(`serve ended before it was ready: ${await child.stderr.text()}`);
    greeting += decoder.decode(value, { stream: true });
    const url = greeting.match(/ on (http:\S+)\n[\s\S]*-d '.*'\n\n$/)?.[1];
    if (url === undefined) continue;
    clearTimeout(late);
    reader.releaseLock();
    return { process: child, url, greeting };
  }
}
