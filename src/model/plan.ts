// Builds a plan: registers, weights, operations -> the one blob that csrc/caldrix.h describes.
// It knows no model; the arch files call it. Faults here are bugs of ours, so they are plain Errors:
// tensors are checked before (weights.ts) and the blob is verified by csrc/plan.c.

import {
  ACT,
  type Activation,
  align8,
  FILE_CONSTS,
  FLAG_ADD,
  OP,
  PLAN_MAGIC,
  PLAN_SIZES,
  PLAN_VERSION,
  type PlanLayer,
  type PlanPart,
  type PlanWeight,
  ROWS_OUT,
  ROWS_STEP,
  TRANSFORM_NONE,
  TRANSFORM_UNPERMUTE_ROPE,
  USE_MATRIX,
  USE_VECTOR,
} from "./plan-format.ts";
import type { PlanRegister, TensorInfo, WeightFile } from "./types.ts";

/** Index of a register or weight of the plan being built. */
export type Reg = number;
export type Weight = number;

/** A tensor of a matrix; ropeHeads: its rows are in llama.cpp's interleaved order of that many heads. */
export interface MatrixPart {
  readonly tensor: TensorInfo;
  readonly ropeHeads?: number;
}

/** An operation before its absent fields are filled in. */
export interface OpFields {
  readonly kind: number;
  readonly dst: Reg;
  readonly a?: Reg;
  readonly b?: Reg;
  readonly weight?: Weight;
  readonly weight2?: Weight | null;
  readonly add?: boolean;
  readonly i?: readonly number[];
  readonly f?: readonly number[];
}

/** What one norm, matmul ... may be told beside its operands. */
export interface NormOptions {
  readonly eps: number;
  /** Added to the weight: 1 for the 1+w norms of Hugging Face Gemma. */
  readonly offset?: number;
  readonly add?: boolean;
  /** Columns of a group, first column and number of groups; absent: the whole width once. */
  readonly groups?: { readonly width: number; readonly at: number; readonly count: number };
}

/** A finished plan. */
export interface BuiltPlan {
  readonly blob: ArrayBuffer;
  readonly registers: readonly PlanRegister[];
}

export type PlanBuilder = ReturnType<typeof createPlan>;

/**
 * Starts an empty plan over weight files.
 * Calls append in execution order; finish() makes the blob.
 */
export function createPlan(files: readonly WeightFile[]) {
  const registers: PlanRegister[] = [];
  const parts: PlanPart[] = [];
  const weights: PlanWeight[] = [];
  const layers: PlanLayer[] = [];
  const ops: OpFields[] = [];
  const consts: number[] = [];

  const addWeight = (use: number, added: readonly PlanPart[]): Weight => {
    const sum = (f: (p: PlanPart) => number) => added.reduce((n, p) => n + f(p), 0);
    const isVector = use === USE_VECTOR;
    weights.push({
      use,
      firstPart: parts.length,
      nParts: added.length,
      rows: isVector ? 1 : sum((p) => p.rows),
      cols: isVector ? sum((p) => p.cols) : added[0]!.cols,
    });
    parts.push(...added);
    return weights.length - 1;
  };
  const op = (fields: OpFields): void => {
    ops.push(fields);
  };
  const width = (r: Reg): number => {
    const register = registers[r];
    if (register === undefined) throw new Error(`no register ${r}`);
    return register.width;
  };

  return {
    /** A float32 register [step tokens or outputs, width]. */
    register(name: string, columns: number, rows: "step" | "out" = "step"): Reg {
      registers.push({ name, width: columns, rows });
      return registers.length - 1;
    },
    /** A key/value cache. */
    layer(layer: PlanLayer): number {
      layers.push(layer);
      return layers.length - 1;
    },
    /** Tensors end to end as one float32 vector. */
    vector(...tensors: TensorInfo[]): Weight {
      return addWeight(
        USE_VECTOR,
        tensors.map((t) => part(t, 1, t.shape[0]!)),
      );
    },
    /** Numbers computed here, as a vector. */
    constants(name: string, values: Float32Array): Weight {
      const at = consts.length;
      for (const x of values) consts.push(x);
      const n = values.length;
      return addWeight(USE_VECTOR, [
        {
          name,
          file: FILE_CONSTS,
          dtype: 0,
          offset: at,
          bytes: n * 4,
          rows: 1,
          cols: n,
          transform: TRANSFORM_NONE,
          transformArg: 0,
        },
      ]);
    },
    /** Tensors stacked by rows as one matrix. */
    matrix(...stacked: MatrixPart[]): Weight {
      return addWeight(
        USE_MATRIX,
        stacked.map(({ tensor, ropeHeads }) => ({
          ...part(tensor, tensor.shape[0]!, tensor.shape[1]!),
          ...(ropeHeads === undefined
            ? {}
            : { transform: TRANSFORM_UNPERMUTE_ROPE, transformArg: ropeHeads }),
        })),
      );
    },

    /** Any operation; the methods below are the spelled-out ones. */
    op,
    embed(dst: Reg, weight: Weight, scale = 1): void {
      op({ kind: OP.embed, dst, weight, f: [scale] });
    },
    rmsNorm(dst: Reg, a: Reg, weight: Weight, options: NormOptions): void {
      const { eps, offset = 0, add = false } = options;
      const g = options.groups ?? { width: width(a), at: 0, count: 1 };
      op({ kind: OP.rmsNorm, dst, a, weight, add, i: [g.width, g.at, g.count], f: [eps, offset] });
    },
    /** dst (=|+=) a . weight^T (+ bias). */
    matmul(
      dst: Reg,
      a: Reg,
      weight: Weight,
      options: { bias?: Weight | null; add?: boolean } = {},
    ) {
      const { bias = null, add = false } = options;
      op({ kind: OP.matmul, dst, a, weight, weight2: bias, add });
    },
    /** cos and sin of this step's positions times the inverse frequencies. */
    ropeTable(dst: Reg, inverseFrequencies: Weight): void {
      op({ kind: OP.ropeTable, dst, weight: inverseFrequencies, i: [width(dst) / 2], f: [1] });
    },
    /** Turns `heads` whole heads of dst from column 0. */
    rope(dst: Reg, table: Reg, heads: number, headDim: number): void {
      op({ kind: OP.rope, dst, b: table, i: [headDim, 0, heads, width(table) / 2] });
    },
    /** window 0: all earlier positions; softcap 0: none. */
    attend(dst: Reg, qkv: Reg, layer: number, scale: number, window = 0, softcap = 0): void {
      op({ kind: OP.attend, dst, a: qkv, i: [layer, window], f: [scale, softcap] });
    },
    gate(dst: Reg, gateUp: Reg, activation: Activation): void {
      op({ kind: OP.gate, dst, a: gateUp, i: [ACT[activation]] });
    },
    select(dst: Reg, a: Reg): void {
      op({ kind: OP.select, dst, a });
    },
    softcap(register: Reg, cap: number): void {
      op({ kind: OP.softcap, dst: register, a: register, f: [cap] });
    },

    finish(model: { vocab: number; context: number; logits: Reg }): BuiltPlan {
      const blob = encode({ ...model, files, registers, parts, weights, layers, ops, consts });
      return { blob, registers };
    },
  };
}

function part(t: TensorInfo, rows: number, cols: number): PlanPart {
  if (t.dtype === null) throw new Error(`tensor ${t.name} has no usable type`);
  return {
    name: t.name,
    file: t.file,
    dtype: t.dtype,
    offset: t.offset,
    bytes: t.bytes,
    rows,
    cols,
    transform: TRANSFORM_NONE,
    transformArg: 0,
  };
}

interface PlanContent {
  readonly vocab: number;
  readonly context: number;
  readonly logits: Reg;
  readonly files: readonly WeightFile[];
  readonly registers: readonly PlanRegister[];
  readonly parts: readonly PlanPart[];
  readonly weights: readonly PlanWeight[];
  readonly layers: readonly PlanLayer[];
  readonly ops: readonly OpFields[];
  readonly consts: number[];
}

function encode(p: PlanContent): ArrayBuffer {
  const strings = createStrings();
  const names = {
    files: p.files.map((f) => strings.add(f.path)),
    parts: p.parts.map((x) => strings.add(x.name)),
    registers: p.registers.map((r) => strings.add(r.name)),
  };
  // An even count and padded strings: then every section is a multiple of 8 bytes long.
  const nConsts = align8(p.consts.length * 4) / 4;
  const text = strings.bytes();
  const bytes =
    PLAN_SIZES.head +
    p.files.length * PLAN_SIZES.file +
    p.parts.length * PLAN_SIZES.part +
    p.weights.length * PLAN_SIZES.weight +
    p.registers.length * PLAN_SIZES.register +
    p.layers.length * PLAN_SIZES.layer +
    p.ops.length * PLAN_SIZES.op +
    nConsts * 4 +
    text.length;
  const blob = new ArrayBuffer(bytes);
  const v = new DataView(blob);
  let at = 0;
  const u32 = (...values: number[]) => {
    for (const x of values) {
      v.setUint32(at, x, true);
      at += 4;
    }
  };
  const i32 = (...values: number[]) => {
    for (const x of values) {
      v.setInt32(at, x, true);
      at += 4;
    }
  };
  const u64 = (value: number) => {
    v.setBigUint64(at, BigInt(value), true);
    at += 8;
  };
  const f32 = (value: number) => {
    v.setFloat32(at, value, true);
    at += 4;
  };

  u32(PLAN_MAGIC, PLAN_VERSION);
  u64(bytes);
  u32(p.files.length, p.parts.length, p.weights.length, p.registers.length);
  u32(p.layers.length, p.ops.length, nConsts, text.length);
  i32(p.vocab, p.context, p.logits, 0, 0, 0);
  p.files.forEach((f, k) => {
    u32(...names.files[k]!);
    u64(f.bytes);
  });
  p.parts.forEach((x, k) => {
    u32(x.file, x.dtype);
    u64(x.offset);
    u64(x.bytes);
    i32(x.rows, x.cols);
    u32(x.transform);
    i32(x.transformArg);
    u32(...names.parts[k]!, 0, 0);
  });
  for (const w of p.weights) {
    u32(w.use, w.firstPart, w.nParts);
    i32(w.rows, w.cols, 0);
  }
  p.registers.forEach((r, k) => {
    i32(r.width);
    u32(r.rows === "out" ? ROWS_OUT : ROWS_STEP, ...names.registers[k]!);
  });
  for (const l of p.layers) i32(l.nHeads, l.nKvHeads, l.headDim, 0);
  for (const o of p.ops) {
    u32(o.kind, o.add ? FLAG_ADD : 0);
    i32(o.dst, o.a ?? -1, o.b ?? -1, o.weight ?? -1, o.weight2 ?? -1, 0);
    for (let k = 0; k < 4; k++) i32(o.i?.[k] ?? 0);
    for (let k = 0; k < 4; k++) f32(o.f?.[k] ?? 0);
  }
  for (let k = 0; k < nConsts; k++) f32(p.consts[k] ?? 0);
  new Uint8Array(blob, at).set(text);
  return blob;
}

/** The strings section: each text once, padded to a multiple of 8 bytes. */
function createStrings() {
  const encoder = new TextEncoder();
  const known = new Map<string, [at: number, length: number]>();
  const chunks: Uint8Array[] = [];
  let length = 0;
  return {
    add(text: string): [at: number, length: number] {
      const found = known.get(text);
      if (found) return found;
      const bytes = encoder.encode(text);
      const place: [number, number] = [length, bytes.length];
      known.set(text, place);
      chunks.push(bytes);
      length += bytes.length;
      return place;
    },
    bytes(): Uint8Array {
      const out = new Uint8Array(align8(length));
      let at = 0;
      for (const c of chunks) {
        out.set(c, at);
        at += c.length;
      }
      return out;
    },
  };
}
