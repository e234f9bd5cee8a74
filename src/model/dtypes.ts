// The element types of weight files: GGUF numbers, block sizes, and which of them the engine computes
// with. Used by gguf.ts, safetensors.ts and plan.ts; the numbers are those of csrc/caldrix.h.

/** An element type: `block` elements take `bytes` bytes; `usable` = the engine has kernels for it. */
export interface DType {
  readonly id: number;
  readonly name: string;
  readonly block: number;
  readonly bytes: number;
  readonly usable: boolean;
}

function dtype(id: number, name: string, block: number, bytes: number, usable = false): DType {
  return { id, name, block, bytes, usable };
}

/** Every ggml type that GGUF files hold; sizes from ggml-common.h. */
export const GGML_TYPES: ReadonlyMap<number, DType> = new Map(
  [
    dtype(0, "F32", 1, 4, true),
    dtype(1, "F16", 1, 2, true),
    dtype(2, "Q4_0", 32, 18, true),
    dtype(3, "Q4_1", 32, 20, true),
    dtype(6, "Q5_0", 32, 22, true),
    dtype(7, "Q5_1", 32, 24, true),
    dtype(8, "Q8_0", 32, 34, true),
    dtype(9, "Q8_1", 32, 36),
    dtype(10, "Q2_K", 256, 84),
    dtype(11, "Q3_K", 256, 110),
    dtype(12, "Q4_K", 256, 144, true),
    dtype(13, "Q5_K", 256, 176, true),
    dtype(14, "Q6_K", 256, 210, true),
    dtype(15, "Q8_K", 256, 292),
    dtype(16, "IQ2_XXS", 256, 66),
    dtype(17, "IQ2_XS", 256, 74),
    dtype(18, "IQ3_XXS", 256, 98),
    dtype(19, "IQ1_S", 256, 50),
    dtype(20, "IQ4_NL", 32, 18),
    dtype(21, "IQ3_S", 256, 110),
    dtype(22, "IQ2_S", 256, 82),
    dtype(23, "IQ4_XS", 256, 136),
    dtype(24, "I8", 1, 1),
    dtype(25, "I16", 1, 2),
    dtype(26, "I32", 1, 4),
    dtype(27, "I64", 1, 8),
    dtype(28, "F64", 1, 8),
    dtype(29, "IQ1_M", 256, 56),
    dtype(30, "BF16", 1, 2, true),
    dtype(34, "TQ1_0", 256, 54),
    dtype(35, "TQ2_0", 256, 66),
    dtype(39, "MXFP4", 32, 17),
  ].map((t) => [t.id, t]),
);

/** Names of the types the engine computes with, for messages. */
export const USABLE_TYPES: string = [...GGML_TYPES.values()]
  .filter((t) => t.usable)
  .map((t) => t.name)
  .join(" ");

/** Number of float32 values. */
export const F32 = 0;

/** Bits of an element of each safetensors dtype, and the GGUF number of the ones we compute with. */
export const SAFETENSORS_TYPES: ReadonlyMap<string, { bits: number; id: number | null }> = new Map([
  ["F32", { bits: 32, id: 0 }],
  ["F16", { bits: 16, id: 1 }],
  ["BF16", { bits: 16, id: 30 }],
  ["F64", { bits: 64, id: null }],
  ["C64", { bits: 64, id: null }],
  ["I64", { bits: 64, id: null }],
  ["U64", { bits: 64, id: null }],
  ["I32", { bits: 32, id: null }],
  ["U32", { bits: 32, id: null }],
  ["I16", { bits: 16, id: null }],
  ["U16", { bits: 16, id: null }],
  ["I8", { bits: 8, id: null }],
  ["U8", { bits: 8, id: null }],
  ["BOOL", { bits: 8, id: null }],
  ["F8_E4M3", { bits: 8, id: null }],
  ["F8_E5M2", { bits: 8, id: null }],
  ["F8_E8M0", { bits: 8, id: null }],
  ["F6_E2M3", { bits: 6, id: null }],
  ["F6_E3M2", { bits: 6, id: null }],
  ["F4", { bits: 4, id: null }],
]);
