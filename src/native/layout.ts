// Byte offsets and sizes of the structs shared with csrc/caldrix.h, written out by hand. The sizes
// are compared with what cx_abi says of the loaded library before anything else is called.
// Little-endian throughout. Used by native/engine.ts and engine/sampling.ts.

import { NativeError } from "../errors.ts";

/** Version of the C API this side speaks (CX_ABI_VERSION). */
export const ABI_VERSION = 1;

/** Codes a call returns (CX_OK ...). */
export const CODE = {
  ok: 0,
  arg: 1,
  plan: 2,
  file: 3,
  noMemory: 4,
  state: 5,
  interrupted: 6,
  gpu: 7,
  unsupported: 8,
  numeric: 9,
} as const;

/** Lanes of cx_open. */
export const BACKEND = { cpu: 0, hip: 1, host: 2 } as const;

/** Arithmetic of cx_open. */
export const ACTIVATIONS = { fast: 0, f32: 1 } as const;

/** What a token of the step block asks for (CX_WANT_*). */
export const WANT = { nothing: 0, sample: 1, logits: 2 } as const;

export const ERR = { bytes: 512, code: 0, message: 4 } as const;

/** Only what the engine itself reads of a plan; model/plan.ts writes the blob. */
export const PLAN_HEAD = { bytes: 72, vocab: 48, context: 52, logits: 56 } as const;

export const OPEN = { bytes: 32, backend: 0, activations: 4, threads: 8, progress: 24 } as const;

export const LIMITS = {
  bytes: 32,
  maxRows: 0,
  context: 4,
  stepTokens: 8,
  maxOut: 12,
  threads: 16,
} as const;

export const IO = {
  bytes: 64,
  maxTokens: 0,
  maxRows: 4,
  maxOut: 8,
  vocab: 12,
  tokenAt: 16,
  posAt: 20,
  rowAt: 24,
  wantAt: 28,
  samplingAt: 32,
  outAt: 36,
  nTokens: 40,
  nOut: 44,
} as const;

export const SAMPLING = {
  bytes: 40,
  temperature: 0,
  topP: 4,
  minP: 8,
  repetitionPenalty: 12,
  topK: 16,
  seed: 24,
  draw: 32,
} as const;

export const PROBE = { bytes: 64, cores: 0, gpus: 4, isa: 8, isaBytes: 24 } as const;

export const COUNTERS = {
  bytes: 96,
  steps: 0,
  tokens: 8,
  outputs: 16,
  stepNs: 24,
  matmulNs: 32,
  attendNs: 40,
  sampleNs: 48,
  otherNs: 56,
  weightBytes: 64,
  kvRowBytes: 72,
} as const;

/** Name and size of each shared struct, in the order in which cx_abi reports them. */
export const STRUCT_SIZES: readonly (readonly [name: string, bytes: number])[] = [
  ["cx_err", ERR.bytes],
  ["cx_plan_head", PLAN_HEAD.bytes],
  ["cx_plan_file", 16],
  ["cx_plan_part", 56],
  ["cx_plan_weight", 24],
  ["cx_plan_register", 16],
  ["cx_plan_layer", 16],
  ["cx_plan_op", 64],
  ["cx_open", OPEN.bytes],
  ["cx_limits", LIMITS.bytes],
  ["cx_io", IO.bytes],
  ["cx_sampling", SAMPLING.bytes],
  ["cx_probe_out", PROBE.bytes],
  ["cx_counters_out", COUNTERS.bytes],
];

/**
 * Refuses a library whose API version or struct sizes are not the ones written here.
 * @throws NativeError naming the first difference
 */
export function checkAbi(version: number, sizes: ArrayLike<number>): void {
  if (version !== ABI_VERSION) {
    throw new NativeError(
      CODE.unsupported,
      `the library speaks API version ${version}, this program ${ABI_VERSION}; build both together`,
    );
  }
  STRUCT_SIZES.forEach(([name, bytes], i) => {
    if (sizes[i] !== bytes) {
      throw new NativeError(
        CODE.unsupported,
        `${name} has ${sizes[i]} bytes in the library and ${bytes} here; build both together`,
      );
    }
  });
}
