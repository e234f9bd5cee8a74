// Positioned reading of regular files, with every failure a ModelError that names the file.
// Called by the header parsers; weights themselves are mapped by C.

import { closeSync, openSync, readSync, type Stats, statSync } from "node:fs";
import { ModelError } from "../errors.ts";

/** Nothing can stand there: a name longer than names may be, or a file taken for a folder. */
const NOWHERE = new Set(["ENAMETOOLONG", "ENOTDIR"]);

/** What stands at a path, or undefined. @throws ModelError when it cannot be looked at. */
export function look(path: string): Stats | undefined {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch (e) {
    if (e instanceof Error && "code" in e && NOWHERE.has(String(e.code))) return undefined;
    throw new ModelError(`${path}: ${reason(e)}`);
  }
}

/**
 * Size of a regular file.
 * @throws ModelError when it is not there or something else (a pipe would block the reader).
 */
export function regularFileBytes(path: string): number {
  const stat = look(path);
  if (stat === undefined) throw new ModelError(`${path}: no such file`);
  if (!stat.isFile()) throw new ModelError(`${path}: not a regular file`);
  return stat.size;
}

/** An open file descriptor; the caller closes it. */
export function openFile(path: string): number {
  try {
    return openSync(path, "r");
  } catch (e) {
    throw new ModelError(`${path}: ${reason(e)}`);
  }
}

/** Fills `into` from byte `at` of an open file. @param what stands there, for the message. */
export function readFully(
  fd: number,
  path: string,
  into: Uint8Array,
  at: number,
  what: string,
): void {
  let have = 0;
  while (have < into.length) {
    const n = readSome(fd, path, into, have, at + have);
    if (n === 0) throw new ModelError(`${path}: truncated while reading ${what}`);
    have += n;
  }
}

/** Bytes [at, at + n) of a file. */
export function readBytes(path: string, at: number, n: number, what: string): Uint8Array {
  const fd = openFile(path);
  try {
    const bytes = new Uint8Array(n);
    readFully(fd, path, bytes, at, what);
    return bytes;
  } finally {
    closeSync(fd);
  }
}

function readSome(fd: number, path: string, into: Uint8Array, have: number, at: number): number {
  try {
    return readSync(fd, into, have, into.length - have, at);
  } catch (e) {
    throw new ModelError(`${path}: ${reason(e)}`);
  }
}

function reason(e: unknown): string {
  return e instanceof Error ? e.message : String(e);
}
