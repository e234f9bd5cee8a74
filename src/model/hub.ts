// Fetches the files of a model from the Hugging Face hub, or a mirror of it, with resume. Honours
// the hub's variables. The token goes to the hub's own origin and never to where it redirects.

import { existsSync, readFileSync } from "node:fs";
import { readdir, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { VERSION } from "../version.ts";
import type { HubFile, HubSource } from "./catalog.ts";
import {
  type Checksum,
  checksumOf,
  type FetchedFile,
  type FetchOptions,
  FileSink,
  named,
  SourceError,
  verify,
} from "./sink.ts";

/** A host that says nothing for this long counts as unreachable (huggingface_hub waits as long). */
const ANSWER_TIMEOUT_MS = 10_000;
/** A download that stands still for this long is started again where it stopped. */
const STALL_MS = 30_000;
/** Tries in a row that bring no byte before the source is given up. */
const MAX_BARREN_TRIES = 3;
/** The hub needs two; more is a loop. */
const MAX_REDIRECTS = 8;
/** An index of shards is some 100 KB; this bounds what is read into memory. */
const MAX_INDEX_BYTES = 16 * 1024 * 1024;

type Env = FetchOptions["env"];

interface Hub {
  readonly origin: string;
  /** `${base}/resolve/...` */
  readonly base: string;
  readonly token: string | null;
  readonly options: FetchOptions;
}

interface RemoteFile extends FetchedFile {
  readonly url: string;
}

/**
 * Puts the source's files into `dir`.
 * @throws SourceError when the hub cannot bring them, ModelError for a wrong checksum or full disk
 */
export async function fetchHub(
  source: HubSource,
  dir: string,
  options: FetchOptions,
): Promise<FetchedFile[]> {
  const { env } = options;
  if (isOffline(env)) throw new SourceError("HF_HUB_OFFLINE is set");
  const endpoint = (env.HF_ENDPOINT || "https://huggingface.co").replace(/\/+$/, "");
  if (!URL.canParse(endpoint)) throw new SourceError(`HF_ENDPOINT is not a URL: ${endpoint}`);
  const hub: Hub = {
    origin: new URL(endpoint).origin,
    base: `${endpoint}/${source.repo}`,
    token: readToken(env),
    options,
  };
  const files: RemoteFile[] = [];
  for (const file of source.files) files.push(...(await look(hub, file)));
  options.progress.begin(
    source.repo,
    files.reduce((sum, file) => sum + file.bytes, 0),
  );
  try {
    let before = 0;
    for (const file of files) {
      await download(hub, file, dir, (bytes) => options.progress.at(before + bytes));
      before += file.bytes;
    }
  } finally {
    options.progress.end();
  }
  return files.map(({ name, bytes, checksum }) => ({ name, bytes, checksum }));
}

/** Folder of a repository's snapshot in the hub's own cache, when it is whole; else null. */
export function hubSnapshot(source: HubSource, env: Env): string | null {
  const hub = env.HF_HUB_CACHE || join(hubHome(env), "hub");
  const folder = join(hub, `models--${source.repo.replaceAll("/", "--")}`);
  try {
    const commit = readFileSync(join(folder, "refs", "main"), "utf8").trim();
    const snapshot = join(folder, "snapshots", commit);
    const whole = source.files.every((file) => {
      if (file.optional || existsSync(join(snapshot, file.name))) return true;
      if (!file.sharded) return false;
      const index = readFileSync(join(snapshot, `${file.name}.index.json`), "utf8");
      return shardNames(index).every((name) => existsSync(join(snapshot, name)));
    });
    return whole ? snapshot : null;
  } catch {
    return null;
  }
}

function hubHome(env: Env): string {
  if (env.HF_HOME) return env.HF_HOME;
  return join(env.XDG_CACHE_HOME || join(env.HOME || homedir(), ".cache"), "huggingface");
}

function isOffline(env: Env): boolean {
  return /^(1|on|yes|true)$/i.test(env.HF_HUB_OFFLINE ?? "");
}

function readToken(env: Env): string | null {
  if (env.HF_TOKEN?.trim()) return env.HF_TOKEN.trim();
  try {
    const path = env.HF_TOKEN_PATH || join(hubHome(env), "token");
    return readFileSync(path, "utf8").trim() || null;
  } catch {
    return null;
  }
}

/** Finds a file on the hub: where, how large, which checksum. None for an optional one not there. */
async function look(hub: Hub, file: HubFile): Promise<RemoteFile[]> {
  const url = fileUrl(hub, file.name);
  const answer = await ask(hub, url, "HEAD", {});
  const { response, headers } = answer;
  if (response.status === 404) {
    if (file.optional) return [];
    if (file.sharded) return lookShards(hub, file.name);
  }
  const isRedirect = response.status >= 300 && response.status < 400;
  if (!response.ok && !isRedirect) throw refusal(url, response.status);
  const bytes = Number(headers.get("x-linked-size") ?? headers.get("content-length") ?? Number.NaN);
  if (!Number.isSafeInteger(bytes) || bytes < 0) {
    throw new SourceError(`${url}: the hub does not say how large the file is`);
  }
  const checksum = checksumFrom(file, headers);
  if (!checksum) throw new SourceError(`${url}: the hub names no checksum (ETag)`);
  return [{ name: file.name, url, bytes, checksum }];
}

async function lookShards(hub: Hub, name: string): Promise<RemoteFile[]> {
  const [index] = await look(hub, { name: `${name}.index.json` });
  if (!index) return [];
  if (index.bytes > MAX_INDEX_BYTES) {
    throw new SourceError(`${index.url}: ${index.bytes} bytes, wanted at most ${MAX_INDEX_BYTES}`);
  }
  const { response } = await ask(hub, index.url, "GET", {});
  if (!response.ok) throw refusal(index.url, response.status);
  const files = [index];
  for (const shard of await readShardNames(hub, index.url, response)) {
    files.push(...(await look(hub, { name: shard })));
  }
  return files;
}

/** An index that breaks off or is no JSON is a fault of this source, not the end of the fetch. */
async function readShardNames(hub: Hub, url: string, response: Response): Promise<string[]> {
  try {
    return shardNames(await response.text());
  } catch (error) {
    hub.options.signal.throwIfAborted();
    if (error instanceof SourceError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new SourceError(`${url}: cannot be read: ${reason}`);
  }
}

/** File names in a safetensors index; a name with a path in it is refused. */
function shardNames(index: string): string[] {
  const map: unknown = JSON.parse(index)?.weight_map;
  const names = new Set(typeof map === "object" && map !== null ? Object.values(map) : []);
  if (names.size === 0) throw new SourceError("the safetensors index names no file");
  return [...names].map((name) => {
    if (typeof name === "string" && /^[\w-][\w.-]*$/.test(name)) return name;
    throw new SourceError(`the safetensors index names a file ${JSON.stringify(name)}`);
  });
}

function checksumFrom(file: HubFile, headers: Headers): Checksum | null {
  if (file.sha256 !== undefined) return { kind: "sha256", hex: file.sha256 };
  const tag = headers.get("x-linked-etag") ?? headers.get("etag") ?? "";
  const hex = tag.replace(/^W\//, "").replaceAll('"', "").toLowerCase();
  if (/^[0-9a-f]{64}$/.test(hex)) return { kind: "sha256", hex };
  if (/^[0-9a-f]{40}$/.test(hex)) return { kind: "git-sha1", hex };
  return null;
}

async function download(
  hub: Hub,
  file: RemoteFile,
  dir: string,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const target = join(dir, file.name);
  const { kind, hex } = file.checksum;
  if ((await checksumOf(target, kind, file.bytes)) === hex) {
    onBytes(file.bytes);
    return;
  }
  // The checksum is part of the name: what was left of another version is not gone on with.
  const mine = `.${file.name}.${hex.slice(0, 16)}.part`;
  for (const name of await named(dir, () => readdir(dir))) {
    if (name.startsWith(`.${file.name}.`) && name.endsWith(".part") && name !== mine) {
      await named(dir, () => rm(join(dir, name), { force: true }));
    }
  }
  const part = join(dir, mine);
  for (let barren = 0; ; ) {
    const sink = await FileSink.open(part, kind, file.bytes, true);
    const before = sink.bytes;
    try {
      if (sink.bytes < file.bytes) await stream(hub, file, sink, onBytes);
      const found = await sink.finish();
      try {
        verify(file.name, file, sink.bytes, found);
      } catch (error) {
        await named(part, () => rm(part, { force: true }));
        throw error;
      }
      await named(target, () => rename(part, target));
      return;
    } catch (error) {
      await sink.close().catch(() => {});
      hub.options.signal.throwIfAborted();
      if (!(error instanceof Interrupted)) throw error;
      if (error.startOver) await named(part, () => rm(part, { force: true }));
      barren = sink.bytes > before && !error.startOver ? 0 : barren + 1;
      if (barren >= MAX_BARREN_TRIES) throw new SourceError(`${file.url}: ${error.message}`);
    }
  }
}

/** A download that broke off and can be gone on with, or, startOver, begun again. */
class Interrupted extends Error {
  readonly startOver: boolean;
  constructor(message: string, startOver = false) {
    super(message);
    this.startOver = startOver;
  }
}

/** Brings the bytes from sink.bytes on. */
async function stream(
  hub: Hub,
  file: RemoteFile,
  sink: FileSink,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const from = sink.bytes;
  const stall = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stall.abort(), STALL_MS);
  };
  try {
    const range: Record<string, string> = from > 0 ? { range: `bytes=${from}-` } : {};
    const { response } = await ask(hub, file.url, "GET", range, stall.signal).catch((error) => {
      throw error instanceof SourceError ? new Interrupted(error.message) : error;
    });
    if (response.status === 416) throw new Interrupted("the hub refuses to go on", true);
    if (!response.ok) throw refusal(file.url, response.status);
    // A server that knows no ranges sends the whole file again.
    if (from > 0 && !response.headers.get("content-range")?.startsWith(`bytes ${from}-`)) {
      await response.body?.cancel();
      throw new Interrupted("the server cannot go on where the download stopped", true);
    }
    alive();
    for await (const chunk of response.body ?? []) {
      alive();
      if (sink.bytes + chunk.length > file.bytes) {
        throw new Interrupted(`more than ${file.bytes} bytes came`, true);
      }
      await sink.write(chunk);
      onBytes(sink.bytes);
    }
    if (sink.bytes < file.bytes) throw new Interrupted("the connection was closed early");
  } catch (error) {
    if (stall.signal.aborted) throw new Interrupted(`nothing came for ${STALL_MS / 1000} s`);
    // fetch's errors while a body arrives have no class of their own.
    if (error instanceof TypeError || (error instanceof Error && isNetworkError(error))) {
      throw new Interrupted(error.message);
    }
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

function isNetworkError(error: Error): boolean {
  const code = "code" in error ? String(error.code) : "";
  return /^(ECONN|Connection|Socket|ERR_SOCKET|FailedToOpenSocket|UnexpectedEOF|HTTP|Zlib)/.test(
    code,
  );
}

interface Answer {
  readonly response: Response;
  /** Headers of the last answer of the hub itself: they describe the file, wherever it lies. */
  readonly headers: Headers;
}

/**
 * Sends a request and follows its redirects; HEAD only as far as the hub's own origin.
 * @throws SourceError when a host cannot be reached
 */
async function ask(
  hub: Hub,
  start: string,
  method: "HEAD" | "GET",
  extra: Readonly<Record<string, string>>,
  stall?: AbortSignal,
): Promise<Answer> {
  let url = new URL(start);
  let headers = new Headers();
  for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
    const own = url.origin === hub.origin;
    const response = await send(hub, url, method, extra, own, stall);
    if (own) headers = response.headers;
    const location = response.headers.get("location");
    if (response.status < 300 || response.status >= 400 || location === null) {
      return { response, headers };
    }
    const next = URL.canParse(location, url.href) ? new URL(location, url.href) : null;
    if (next === null || (next.protocol !== "https:" && next.protocol !== url.protocol)) {
      throw new SourceError(`${url.origin} redirects to ${location}`);
    }
    if (method === "HEAD" && next.origin !== hub.origin) return { response, headers };
    await response.body?.cancel();
    url = next;
  }
  throw new SourceError(`${start}: more than ${MAX_REDIRECTS} redirects`);
}

async function send(
  hub: Hub,
  url: URL,
  method: string,
  extra: Readonly<Record<string, string>>,
  own: boolean,
  stall: AbortSignal | undefined,
): Promise<Response> {
  const headers = new Headers(extra);
  headers.set("user-agent", `caldrix/${VERSION}`);
  // Sizes, ranges and checksums are those of the file as it is.
  headers.set("accept-encoding", "identity");
  if (own && hub.token !== null) headers.set("authorization", `Bearer ${hub.token}`);
  // Only the wait for the answer is bounded here: a body may take hours.
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWER_TIMEOUT_MS);
  const signals = [hub.options.signal, late.signal, ...(stall ? [stall] : [])];
  try {
    return await fetch(url.href, {
      method,
      headers,
      redirect: "manual",
      signal: AbortSignal.any(signals),
      decompress: false,
    });
  } catch (error) {
    hub.options.signal.throwIfAborted();
    const reason = late.signal.aborted
      ? `no answer within ${ANSWER_TIMEOUT_MS / 1000} s`
      : error instanceof Error
        ? error.message
        : String(error);
    throw new SourceError(`${url.host} cannot be reached: ${reason}`);
  } finally {
    clearTimeout(timer);
  }
}

function refusal(url: string, status: number): SourceError {
  if (status === 401 || status === 403) {
    return new SourceError(
      `${url}: refused (${status}); a gated model needs its licence accepted on the hub and HF_TOKEN set`,
    );
  }
  return new SourceError(`${url}: HTTP status ${status}`);
}

function fileUrl(hub: Hub, name: string): string {
  return `${hub.base}/resolve/main/${name.split("/").map(encodeURIComponent).join("/")}`;
}
