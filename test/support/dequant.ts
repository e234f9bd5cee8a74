// Exact float32 values of weight blocks, one plain loop a type, rounding as ggml's C code does.
// The naive reference of csrc's kernels; layouts from ggml-quants.c.

import { GGML_TYPES } from "../../src/model/dtypes.ts";

const f = Math.fround;

/** Bytes of a row of `cols` elements. */
export function rowBytes(dtype: number, cols: number): number {
  const type = GGML_TYPES.get(dtype)!;
  return (cols / type.block) * type.bytes;
}

/** Values of `n` elements that start at byte `at` of v. */
export function dequantize(dtype: number, v: DataView, at: number, n: number): Float32Array {
  const type = GGML_TYPES.get(dtype)!;
  const out = new Float32Array(n);
  const float = FLOATS[type.name];
  if (float !== undefined) {
    for (let i = 0; i < n; i++) out[i] = float(v, at + i * type.bytes);
    return out;
  }
  const block = BLOCKS[type.name];
  if (block === undefined) throw new Error(`no dequantisation of ${type.name}`);
  for (let i = 0, p = at; i < n; i += type.block, p += type.bytes) {
    block(v, p, out.subarray(i, i + type.block));
  }
  return out;
}

type Block = (v: DataView, p: number, y: Float32Array) => void;

const half = (v: DataView, p: number): number => v.getFloat16(p, true);
/** Element j of a block of 32 nibbles: low halves first. */
const nibble = (v: DataView, p: number, j: number): number =>
  j < 16 ? v.getUint8(p + j) & 15 : v.getUint8(p + j - 16) >> 4;
const bit = (v: DataView, p: number, j: number): number =>
  (v.getUint8(p + (j >> 3)) >> (j & 7)) & 1;

const bits = new DataView(new ArrayBuffer(4));

const FLOATS: Readonly<Record<string, (v: DataView, p: number) => number>> = {
  F32: (v, p) => v.getFloat32(p, true),
  F16: half,
  BF16: (v, p) => {
    bits.setUint16(2, v.getUint16(p, true), true); // the upper half of a float32
    return bits.getFloat32(0, true);
  },
};

const BLOCKS: Readonly<Record<string, Block>> = {
  Q4_0: (v, p, y) => {
    for (let j = 0; j < 32; j++) y[j] = half(v, p) * (nibble(v, p + 2, j) - 8);
  },
  Q4_1: (v, p, y) => {
    for (let j = 0; j < 32; j++) y[j] = f(half(v, p) * nibble(v, p + 4, j)) + half(v, p + 2);
  },
  Q5_0: (v, p, y) => {
    for (let j = 0; j < 32; j++) {
      y[j] = half(v, p) * ((nibble(v, p + 6, j) | (bit(v, p + 2, j) << 4)) - 16);
    }
  },
  Q5_1: (v, p, y) => {
    for (let j = 0; j < 32; j++) {
      const q = nibble(v, p + 8, j) | (bit(v, p + 4, j) << 4);
      y[j] = f(half(v, p) * q) + half(v, p + 2);
    }
  },
  Q8_0: (v, p, y) => {
    for (let j = 0; j < 32; j++) y[j] = half(v, p) * v.getInt8(p + 2 + j);
  },
  Q4_K: (v, p, y) => {
    for (let j = 0; j < 256; j++) {
      const { d, m } = scaleMin(v, p, j >> 5);
      const byte = v.getUint8(p + 16 + (j >> 6) * 32 + (j & 31));
      y[j] = f(d * (j & 32 ? byte >> 4 : byte & 15)) - m;
    }
  },
  Q5_K: (v, p, y) => {
    for (let j = 0; j < 256; j++) {
      const { d, m } = scaleMin(v, p, j >> 5);
      const byte = v.getUint8(p + 48 + (j >> 6) * 32 + (j & 31));
      const high = (v.getUint8(p + 16 + (j & 31)) >> (j >> 5)) & 1;
      y[j] = f(d * ((j & 32 ? byte >> 4 : byte & 15) | (high << 4))) - m;
    }
  },
  Q6_K: (v, p, y) => {
    const d = half(v, p + 208);
    for (let j = 0; j < 256; j++) {
      const part = j >> 7; // two halves of 128, each four runs of 32
      const run = (j >> 5) & 3;
      const l = j & 31;
      const low = v.getUint8(p + part * 64 + (run & 1) * 32 + l);
      const high = (v.getUint8(p + 128 + part * 32 + l) >> (2 * run)) & 3;
      const q = ((run & 2 ? low >> 4 : low & 15) | (high << 4)) - 32;
      y[j] = f(d * v.getInt8(p + 192 + (j >> 4))) * q;
    }
  },
};

/** Scale and minimum of the k-th 32 of a Q4_K or Q5_K block: six bits each in 12 bytes. */
function scaleMin(v: DataView, p: number, k: number): { d: number; m: number } {
  const s = (i: number) => v.getUint8(p + 4 + i);
  const scale = k < 4 ? s(k) & 63 : (s(k + 4) & 15) | ((s(k - 4) >> 6) << 4);
  const min = k < 4 ? s(k + 4) & 63 : (s(k + 4) >> 4) | ((s(k) >> 6) << 4);
  return { d: f(half(v, p) * scale), m: f(half(v, p + 2) * min) };
}
