// `npm test` and `npm run check`: every step runs even when one before it failed, and the last line
// sums up what was counted: "N passed, N failed". The exit code is 0 only when nothing failed.

import { existsSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";

const ROOT = dirname(import.meta.dir);
const DIST = join(ROOT, "dist");
/** Models that the tests read from the cache; the catalogue's own fetch puts them there. */
const MODELS = ["smollm2-135m-instruct", "gemma-3-270m"];

interface Total {
  passed: number;
  failed: number;
}

/** Runs a command with its output shown; a failure counts as one. */
async function step(total: Total, name: string, command: string[]): Promise<boolean> {
  const started = performance.now();
  const code = await Bun.spawn(command, { cwd: ROOT, stdio: ["ignore", "inherit", "inherit"] })
    .exited;
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  console.log(`== ${name}: ${code === 0 ? "ok" : `failed, exit ${code}`} (${seconds} s)`);
  if (code !== 0) total.failed += 1;
  return code === 0;
}

/** Passes bytes on as they come; returns them all as text. */
export async function relay(
  stream: ReadableStream<Uint8Array>,
  write: (bytes: Uint8Array) => void,
): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of stream) {
    write(bytes);
    text += decoder.decode(bytes, { stream: true });
  }
  return text + decoder.decode();
}

/** Runs the C tests and adds what they counted; no count is one failure. */
async function cTests(total: Total): Promise<void> {
  const run = Bun.spawn([process.execPath, "build.ts", "test-c"], {
    cwd: ROOT,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const output = await relay(run.stdout, (bytes) => process.stdout.write(bytes));
  const code = await run.exited;
  const line = output.match(/C: (\d+) passed, (\d+) failed\s*$/);
  total.passed += Number(line?.[1] ?? 0);
  total.failed += line ? Number(line[2]) : 1;
  console.log(`== C tests: ${code === 0 ? "ok" : `failed, exit ${code}`}`);
}

/** Runs the Bun tests and adds what their junit report counted. */
async function bunTests(total: Total, files: string[]): Promise<void> {
  const report = join(DIST, "junit.xml");
  rmSync(report, { force: true });
  const run = Bun.spawn(
    [process.execPath, "test", "--reporter=junit", `--reporter-outfile=${report}`, ...files],
    { cwd: ROOT, stdio: ["ignore", "inherit", "inherit"] },
  );
  const code = await run.exited;
  const head = existsSync(report)
    ? (readFileSync(report, "utf8").match(/<testsuites [^>]*>/)?.[0] ?? "")
    : "";
  const count = (name: string) => Number(head.match(new RegExp(` ${name}="(\\d+)"`))?.[1] ?? 0);
  const failed = count("failures") + count("errors");
  total.passed += count("tests") - failed - count("skipped");
  // A file that does not load, or a run that dies, is in no count but in the exit code.
  total.failed += code !== 0 && failed === 0 ? 1 : failed;
  console.log(`== Bun tests: ${code === 0 ? "ok" : `failed, exit ${code}`}`);
}

async function main(command: string | undefined, args: string[]): Promise<number> {
  mkdirSync(DIST, { recursive: true });
  const bin = (name: string) => join(ROOT, "node_modules", ".bin", name);
  const total: Total = { passed: 0, failed: 0 };
  await step(total, "tsc", ["node", bin("tsc"), "-p", "."]);
  await step(total, "biome", ["node", bin("biome"), "check", "--error-on-warnings", "."]);
  if (command === "test") {
    await step(total, "build", [process.execPath, "build.ts"]);
    for (const model of MODELS) {
      await step(total, `pull ${model}`, [join(DIST, "caldrix"), "pull", model]);
    }
    await cTests(total);
    await bunTests(total, args);
    console.log(`${total.passed} passed, ${total.failed} failed`);
  }
  return total.failed === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = await main(process.argv[2], process.argv.slice(3));
