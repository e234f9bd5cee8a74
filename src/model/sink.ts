// A file being fetched: bytes go to disk and through a hash at once. And the words for a disk that
// refuses. Used by the two kinds of source, pypi.ts and hub.ts.

import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { ModelError } from "../errors.ts";

/** A source that cannot be used now; the next one is tried. Any other error ends the fetch. */
export class SourceError extends Error {}

/** Checksum of a file: sha256 of its bytes, or git's blob id (sha1) for small files of the hub. */
export interface Checksum {
  readonly kind: "sha256" | "git-sha1";
  readonly hex: string;
}

/** A fetched file in the folder of its model. */
export interface FetchedFile {
  readonly name: string;
  readonly bytes: number;
  readonly checksum: Checksum;
}

/** Shows how far a fetch has come; bytes of everything that one source brings. */
export interface Progress {
  begin(label: string, totalBytes: number): void;
  /** Bytes so far. Never shown running backwards. */
  at(bytes: number): void;
  end(): void;
}

/** What a fetch needs of the world around it. */
export interface FetchOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly progress: Progress;
  /** One line for the person watching. */
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}

/** Appends bytes to a file and hashes all of it, what was there before included. */
export class FileSink {
  readonly path: string;
  bytes: number;
  readonly #hash: Hash;
  readonly #file: FileHandle;

  private constructor(path: string, file: FileHandle, hash: Hash, bytes: number) {
    this.path = path;
    this.bytes = bytes;
    this.#file = file;
    this.#hash = hash;
  }

  /**
   * Opens a file for writing.
   * @param checksum whose hash is to be made
   * @param bytes the file's size in the end: git's blob id starts with it
   * @param keep go on after what the file already holds
   */
  static async open(
    path: string,
    checksum: Checksum["kind"],
    bytes: number,
    keep: boolean,
  ): Promise<FileSink> {
    return named(path, async () => {
      const hash = createHash(checksum === "sha256" ? "sha256" : "sha1");
      if (checksum === "git-sha1") hash.update(`blob ${bytes}\0`);
      const file = await open(path, keep ? "a" : "w");
      const there = (await file.stat()).size;
      if (there > 0) for await (const chunk of createReadStream(path)) hash.update(chunk);
      return new FileSink(path, file, hash, there);
    });
  }

  async write(chunk: Uint8Array): Promise<void> {
    await named(this.path, async () => {
      for (let at = 0; at < chunk.length; ) {
        at += (await this.#file.write(chunk, at)).bytesWritten;
      }
    });
    this.#hash.update(chunk);
    this.bytes += chunk.length;
  }

  /** Closes the file, on disk for good; returns its hash in hex. */
  async finish(): Promise<string> {
    await named(this.path, () => this.#file.sync());
    await this.close();
    return this.#hash.digest("hex");
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** Checksum of a file that is already there, or null when there is none of that size. */
export async function checksumOf(
  path: string,
  kind: Checksum["kind"],
  bytes: number,
): Promise<string | null> {
  try {
    if ((await stat(path)).size !== bytes) return null;
  } catch {
    return null;
  }
  const hash = createHash(kind === "sha256" ? "sha256" : "sha1");
  if (kind === "git-sha1") hash.update(`blob ${bytes}\0`);
  return named(path, async () => {
    for await (const chunk of createReadStream(path)) hash.update(chunk);
    return hash.digest("hex");
  });
}

/**
 * Says which file is wrong and how.
 * @throws ModelError when size or checksum differ
 */
export function verify(file: string, wanted: FetchedFile, bytes: number, hex: string): void {
  if (bytes !== wanted.bytes) {
    throw new ModelError(`${file}: wrong size: wanted ${wanted.bytes} bytes, found ${bytes}`);
  }
  if (hex === wanted.checksum.hex) return;
  const { kind } = wanted.checksum;
  throw new ModelError(
    `${file}: wrong checksum: wanted ${kind} ${wanted.checksum.hex}, found ${hex}`,
  );
}

/** Runs a file operation; what the system refuses becomes a ModelError naming path and reason. */
export async function named<T>(path: string, operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    throw diskError(path, error) ?? error;
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ENOSPC: "no space left on the disk",
  EDQUOT: "the disk quota is used up",
  EACCES: "permission denied",
  EPERM: "permission denied",
  EROFS: "the file system is read-only",
  ENOTDIR: "a part of the path is not a folder",
  EEXIST: "a file is in the way",
  ENOENT: "no such folder, and none can be made there",
  ENAMETOOLONG: "the path is too long",
};

function diskError(path: string, error: unknown): ModelError | null {
  if (!(error instanceof Error) || !("code" in error)) return null;
  const code = String(error.code);
  // Errors of the system have names like EIO; Node's own, like ERR_INVALID_ARG_TYPE, are bugs.
  if (!/^E[A-Z0-9]+$/.test(code)) return null;
  const reason = REASONS[code] ?? error.message;
  return new ModelError(`cannot write ${path}: ${reason} (CALDRIX_CACHE moves the model cache)`);
}
