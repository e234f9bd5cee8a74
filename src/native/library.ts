// Finds libcaldrix.so, loads it and checks its API. In the compiled binary the library is embedded and
// Bun writes it into TMPDIR; when that folder is missing, full or mounted noexec, it is written
// once into the cache folder instead. The main thread calls loadLibrary, then a worker opens the
// path it returned: two first loads at once have raced in Bun.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { cacheRoot } from "../cache.ts";
import { NativeError } from "../errors.ts";
import { CODE, checkAbi, STRUCT_SIZES } from "./layout.ts";
import { addressOf, openSymbols, type Symbols } from "./symbols.ts";

/** The library's functions and where it was loaded from. */
export interface Library {
  readonly path: string;
  readonly symbols: Symbols;
}

/**
 * Loads the library at a path and compares its API with ours.
 * @throws NativeError when the loader refuses it or the API differs
 */
export function openLibrary(path: string): Library {
  let symbols: Symbols;
  try {
    symbols = openSymbols(path);
  } catch (error) {
    throw new NativeError(CODE.unsupported, `cannot load ${path}: ${loaderWords(error)}`);
  }
  const sizes = new Uint32Array(new ArrayBuffer(STRUCT_SIZES.length * 4));
  checkAbi(symbols.cx_abi(addressOf(sizes), sizes.length), sizes);
  return { path, symbols };
}

/**
 * Loads the library of this program: the embedded one, or dist/libcaldrix.so when run from source.
 * @throws NativeError with one line that says what to do
 */
export async function loadLibrary(): Promise<Library> {
  const path = await ownLibrary();
  try {
    return openLibrary(path);
  } catch (error) {
    if (!isEmbedded(path)) throw error;
    return openCopy(readFileSync(path), cacheRoot(process.env), error);
  }
}

/** Path of the library: inside the compiled binary, or the build output. */
async function ownLibrary(): Promise<string> {
  try {
    // A literal path, so that `bun build --compile` embeds the file.
    const file = await import("../../dist/libcaldrix.so", { with: { type: "file" } });
    return file.default;
  } catch {
    throw new NativeError(
      CODE.file,
      "dist/libcaldrix.so is not built; run `npx bun build.ts lib` in the source folder",
    );
  }
}

function isEmbedded(path: string): boolean {
  return path.includes("$bunfs");
}

/**
 * Writes the library's bytes into the cache, named by their hash, and loads that copy.
 * @param cause why the first try failed; part of the message when this fails too
 * @throws NativeError naming both folders and the remedy
 */
export function openCopy(bytes: Uint8Array, cache: string, cause: unknown): Library {
  const hash = createHash("sha256").update(bytes).digest("hex");
  const folder = join(cache, "lib", hash);
  const path = join(folder, "libcaldrix.so");
  try {
    if (hashOf(path) !== hash) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
      // Written aside and renamed, so that another process never loads half a file.
      const aside = `${path}.${process.pid}`;
      try {
        writeFileSync(aside, bytes, { mode: 0o700 });
        renameSync(aside, path);
      } catch (error) {
        rmSync(aside, { force: true });
        throw error;
      }
    }
    return openLibrary(path);
  } catch (error) {
    throw new NativeError(
      CODE.unsupported,
      `cannot load the engine library: ${words(cause)}; ${words(error)}. ` +
        "Set TMPDIR or CALDRIX_CACHE to a folder that can be written to and is not mounted noexec",
    );
  }
}

/** SHA-256 of a file in hex, or null when it cannot be read. */
function hashOf(path: string): string | null {
  try {
    return createHash("sha256").update(readFileSync(path)).digest("hex");
  } catch {
    return null;
  }
}

function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** What the loader said, without the path that Bun and dlopen both put before it. */
function loaderWords(error: unknown): string {
  return words(error).replace(/^Failed to open library "(.*?)": \1: /, "");
}
