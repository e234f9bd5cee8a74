// The build: `bun build.ts` makes dist/caldrix, `bun build.ts lib` only dist/libcaldrix.so,
// `bun build.ts test-c [release|asan|tsan]` builds and runs the C tests. See docs/build.md.

import { chmodSync, existsSync, mkdirSync, renameSync } from "node:fs";
import { join } from "node:path";
import { BuildError, buildLibrary, runTests } from "./scripts/native.ts";

const DIST = join(import.meta.dir, "dist");

/**
 * Bundles src with the library inside the Bun runtime that runs this script. Bun's x64 runtime needs
 * SSE4.2 only (its "baseline" package is the same file), so nothing has to be downloaded.
 */
async function buildExecutable(): Promise<string> {
  const outfile = join(DIST, "caldrix");
  const fresh = `${outfile}.${process.pid}.tmp`;
  const result = await Bun.build({
    // Both land in the root of the executable's file system, so that `new URL("./worker.ts",
    // import.meta.url)` of engine/client.ts means the same in the sources and in the bundle.
    entrypoints: ["src/main.ts", "src/engine/worker.ts"].map((path) => join(import.meta.dir, path)),
    naming: { entry: "[name].[ext]" },
    minify: true,
    // Inline maps grow memory with every thrown error.
    sourcemap: "none",
    define: { CALDRIX_BUILD: JSON.stringify(buildId()) },
    compile: {
      outfile: fresh,
      executablePath: process.execPath,
      // A .env or bunfig.toml in the directory caldrix is started from is not caldrix's business.
      autoloadDotenv: false,
      autoloadBunfig: false,
    },
  });
  if (!result.success) throw new BuildError(result.logs.map(String).join("\n"));
  if (!existsSync(fresh)) throw new BuildError(`bun made no ${fresh}`);
  chmodSync(fresh, 0o755);
  renameSync(fresh, outfile);
  return outfile;
}

/** The commit, with -dirty when the tree differs from it; "unknown" outside a git checkout. */
function buildId(): string {
  const git = (...args: string[]) =>
    Bun.which("git") ? Bun.spawnSync(["git", ...args], { cwd: import.meta.dir }) : null;
  const head = git("rev-parse", "--short=12", "HEAD");
  if (!head?.success) return "unknown";
  const dirty = git("status", "--porcelain", "--untracked-files=no");
  return `${head.stdout.toString().trim()}${dirty?.stdout.length ? "-dirty" : ""}`;
}

async function main(command: string | undefined): Promise<void> {
  mkdirSync(DIST, { recursive: true });
  switch (command) {
    case "lib":
      console.log(await buildLibrary());
      return;
    case "test-c": {
      const { passed, failed } = await runTests(process.argv[3]);
      console.log(`C: ${passed} passed, ${failed} failed`);
      process.exitCode = failed === 0 ? 0 : 1;
      return;
    }
    case undefined:
      await buildLibrary();
      console.log(await buildExecutable());
      return;
    default:
      throw new BuildError(`build.ts: unknown command ${command}; wanted lib, test-c or nothing`);
  }
}

try {
  await main(process.argv[2]);
} catch (error) {
  // Bun.build throws an AggregateError whose parts say what is wrong.
  const parts = error instanceof AggregateError ? error.errors : [error];
  for (const part of parts) {
    console.error(part instanceof BuildError ? part.message : part);
  }
  process.exitCode = 1;
}
