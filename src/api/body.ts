// Reads a request's body within a limit: declared or discovered too large is a 413, gzip and zstd are
// unpacked (the limit counts what comes out), a stalled upload is a 408. Called by generate.ts.

import { promisify } from "node:util";
import { gunzip, type InputType, zstdDecompress } from "node:zlib";
import { ApiError } from "../errors.ts";

/** A client that sends nothing for this long has stalled; its place is worth more than its body. */
const STALL_MS = 30_000;

/**
 * Answering while the client still sends makes the kernel reset the connection, and many clients
 * then never see the 413. So this much of a refused body is read and dropped first.
 */
const DROP_BYTES = 64 * 2 ** 20;

type Unpack = (data: InputType, options: { maxOutputLength: number }) => Promise<Uint8Array>;

const UNPACK: ReadonlyMap<string, Unpack> = new Map([
  ["gzip", promisify(gunzip) as Unpack],
  ["x-gzip", promisify(gunzip) as Unpack],
  ["zstd", promisify(zstdDecompress) as Unpack],
]);

/**
 * The whole body, unpacked.
 * @param limitBytes most bytes, after unpacking
 * @param stop aborts a body that is still on its way, with the error to answer
 * @param stallMs longest wait for the next bytes
 * @throws ApiError 413 over the limit, 415 for another encoding, 400 for one that cannot be unpacked
 */
export async function readBody(
  request: Request,
  limitBytes: number,
  stop: AbortSignal,
  stallMs = STALL_MS,
): Promise<Uint8Array> {
  const encoding = (request.headers.get("content-encoding") ?? "identity").trim().toLowerCase();
  const unpack = UNPACK.get(encoding);
  if (unpack === undefined && encoding !== "identity" && encoding !== "") {
    throw new ApiError(415, "content-encoding must be identity, gzip or zstd", null);
  }
  const packed = await receive(request, limitBytes, stop, stallMs);
  if (unpack === undefined) return packed;
  try {
    return await unpack(packed, { maxOutputLength: limitBytes });
  } catch (error) {
    if (error instanceof RangeError || codeOf(error) === "ERR_BUFFER_TOO_LARGE") {
      throw tooLarge(limitBytes);
    }
    throw new ApiError(400, `the request body is not valid ${encoding}`, null);
  }
}

async function receive(
  request: Request,
  limitBytes: number,
  stop: AbortSignal,
  stallMs: number,
): Promise<Uint8Array> {
  if (Number(request.headers.get("content-length") ?? 0) > DROP_BYTES) throw tooLarge(limitBytes);
  if (request.body === null) return new Uint8Array(0);
  const reader = request.body.getReader();
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    for (;;) {
      const piece = await nextPiece(reader, stop, stallMs);
      if (piece.done) break;
      size += piece.value.byteLength;
      if (size <= limitBytes) pieces.push(piece.value);
      else if (size > DROP_BYTES) break;
      else pieces.length = 0;
    }
  } finally {
    reader.releaseLock();
  }
  if (size > limitBytes) throw tooLarge(limitBytes);
  return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
}

interface BodyReader {
  read(): Promise<{ done: true } | { done: false; value: Uint8Array }>;
}

/** The next piece of the body, or the first of: a stall, `stop`, the client leaving. */
async function nextPiece(
  reader: BodyReader,
  stop: AbortSignal,
  stallMs: number,
): ReturnType<BodyReader["read"]> {
  const { promise, reject } = Promise.withResolvers<never>();
  const leave = (): void => reject(stop.reason);
  const timer = setTimeout(() => {
    reject(new ApiError(408, `no byte of the request body came for ${stallMs / 1000} s`, null));
  }, stallMs);
  stop.addEventListener("abort", leave);
  try {
    if (stop.aborted) throw stop.reason;
    return await Promise.race([reader.read().catch(endedEarly), promise]);
  } finally {
    clearTimeout(timer);
    stop.removeEventListener("abort", leave);
  }
}

function endedEarly(): never {
  throw new ApiError(400, "the request body ended early", null);
}

function tooLarge(limitBytes: number): ApiError {
  const limit = `${limitBytes / 2 ** 20} MiB`;
  return new ApiError(413, `the request body is over ${limit}`, null, "invalid_request");
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && "code" in error ? error.code : undefined;
}
