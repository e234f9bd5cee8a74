// The 14 functions of csrc/caldrix.h as bun:ffi sees them, and the pointer helpers the other
// files of native/ need. The only importer of bun:ffi; knows no struct layout and keeps no state.

import { dlopen, FFIType, type Pointer, ptr, toArrayBuffer } from "bun:ffi";

const { i32, u32, i64, u64, ptr: pointer } = FFIType;

const SYMBOLS = {
  cx_abi: { args: [pointer, u32], returns: u32 },
  cx_probe: { args: [pointer], returns: i32 },
  cx_model_open: { args: [pointer, u64, pointer, pointer], returns: pointer },
  cx_model_close: { args: [pointer], returns: FFIType.void },
  cx_engine_open: { args: [pointer, pointer, pointer], returns: pointer },
  cx_engine_close: { args: [pointer], returns: FFIType.void },
  cx_engine_io: { args: [pointer, pointer], returns: pointer },
  cx_step: { args: [pointer, pointer], returns: i32 },
  cx_row_copy: { args: [pointer, i32, i32, i32, pointer], returns: i32 },
  cx_row_trim: { args: [pointer, i32, i32, pointer], returns: i32 },
  cx_embed_image: { args: [pointer, pointer, i32, i32, pointer], returns: i32 },
  cx_read: { args: [pointer, i32, i64, pointer, i64, pointer], returns: i32 },
  cx_interrupt: { args: [pointer], returns: FFIType.void },
  cx_counters: { args: [pointer, pointer], returns: i32 },
} as const;

/** The functions of an opened library. */
export type Symbols = ReturnType<typeof dlopen<typeof SYMBOLS>>["symbols"];

/** Address of a model or engine; a plain number that may be sent to another thread. */
export type Handle = Pointer;

/**
 * Loads the shared library at `path`; it stays loaded until the process ends.
 * @throws Error of the dynamic loader, with its own words
 */
export function openSymbols(path: string): Symbols {
  return dlopen(path, SYMBOLS).symbols;
}

/**
 * Address of memory lent to C. The view must stand on an explicit ArrayBuffer: the address of a
 * small typed array moves when its `.buffer` is first read.
 */
export function addressOf(view: NodeJS.TypedArray | DataView): Handle {
  return ptr(view);
}

/** A pointer that C returned, or null; user addresses always fit a number. */
export function handleOf(returned: Pointer | bigint | null): Handle | null {
  // Bun's types allow a bigint for addresses above 2^53, which no Linux process has.
  return returned === null ? null : (Number(returned) as Handle);
}

/** A view of `bytes` bytes that C owns; valid until C frees them. */
export function viewOf(address: Handle, bytes: number): ArrayBuffer {
  return toArrayBuffer(address, 0, bytes);
}
