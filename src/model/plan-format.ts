// The plan blob of csrc/caldrix.h: numbers, record sizes, decoding and printing. The other side is
// csrc/plan.c. plan.ts writes blobs; `caldrix debug plan` and the tests read them with this file.

import { GGML_TYPES } from "./dtypes.ts";

export const PLAN_MAGIC = 0x4c505843;
export const PLAN_VERSION = 1;

/** Record sizes in bytes; a test compares them with caldrix.h. */
export const PLAN_SIZES = {
  head: 72,
  file: 16,
  part: 56,
  weight: 24,
  register: 16,
  layer: 16,
  op: 64,
} as const;

/** Limits of a plan that arch files check configs against; the names are those of caldrix.h. */
export const MAX_LAYERS = 1024;
export const MAX_WIDTH = 1_048_576;
export const MAX_VOCAB = 4_194_304;
export const MAX_CONTEXT = 1_048_576;

/** Part.file of data that stands in the consts section. */
export const FILE_CONSTS = 0xffffffff;
export const TRANSFORM_NONE = 0;
export const TRANSFORM_UNPERMUTE_ROPE = 1;
export const USE_VECTOR = 0;
export const USE_MATRIX = 1;
export const ROWS_STEP = 0;
export const ROWS_OUT = 1;
export const FLAG_ADD = 1;

/** Kinds of operation (CX_OP_*). */
export const OP = {
  embed: 1,
  rmsNorm: 2,
  matmul: 3,
  ropeTable: 4,
  rope: 5,
  attend: 6,
  gate: 7,
  add: 8,
  select: 9,
  softcap: 10,
} as const;

/** Activations of OP.gate (CX_ACT_*). */
export const ACT = { silu: 0, geluTanh: 1 } as const;
export type Activation = keyof typeof ACT;

export interface PlanFile {
  readonly path: string;
  readonly bytes: number;
}

export interface PlanPart {
  readonly name: string;
  readonly file: number;
  readonly dtype: number;
  readonly offset: number;
  readonly bytes: number;
  readonly rows: number;
  readonly cols: number;
  readonly transform: number;
  readonly transformArg: number;
}

export interface PlanWeight {
  readonly use: number;
  readonly firstPart: number;
  readonly nParts: number;
  readonly rows: number;
  readonly cols: number;
}

export interface PlanLayer {
  readonly nHeads: number;
  readonly nKvHeads: number;
  readonly headDim: number;
}

/** One operation; what a kind means by its fields stands in caldrix.h. */
export interface PlanOp {
  readonly kind: number;
  readonly flags: number;
  readonly dst: number;
  readonly a: number;
  readonly b: number;
  readonly weight: number;
  readonly weight2: number;
  readonly i: readonly number[];
  readonly f: readonly number[];
}

/** A blob as records. */
export interface DecodedPlan {
  readonly vocab: number;
  readonly context: number;
  readonly logits: number;
  readonly files: readonly PlanFile[];
  readonly parts: readonly PlanPart[];
  readonly weights: readonly PlanWeight[];
  readonly registers: readonly { readonly name: string; width: number; rows: number }[];
  readonly layers: readonly PlanLayer[];
  readonly ops: readonly PlanOp[];
  readonly consts: Float32Array;
}

/** Rounds up to a multiple of 8, where sections start. */
export function align8(n: number): number {
  return Math.ceil(n / 8) * 8;
}

/** Reads a blob that plan.ts wrote; it is not a verifier (csrc/plan.c is). */
export function decodePlan(blob: ArrayBuffer): DecodedPlan {
  const v = new DataView(blob);
  const u32 = (at: number) => v.getUint32(at, true);
  const i32 = (at: number) => v.getInt32(at, true);
  const u64 = (at: number) => Number(v.getBigUint64(at, true));
  if (u32(0) !== PLAN_MAGIC || u32(4) !== PLAN_VERSION) throw new Error("not a plan of version 1");

  let at: number = PLAN_SIZES.head;
  const section = (count: number, size: number) => {
    const start = at;
    at = align8(at + count * size);
    return start;
  };
  const [nFiles, nParts, nWeights, nRegisters] = [u32(16), u32(20), u32(24), u32(28)];
  const [nLayers, nOps, nConsts, nStringBytes] = [u32(32), u32(36), u32(40), u32(44)];
  const filesAt = section(nFiles, PLAN_SIZES.file);
  const partsAt = section(nParts, PLAN_SIZES.part);
  const weightsAt = section(nWeights, PLAN_SIZES.weight);
  const registersAt = section(nRegisters, PLAN_SIZES.register);
  const layersAt = section(nLayers, PLAN_SIZES.layer);
  const opsAt = section(nOps, PLAN_SIZES.op);
  const constsAt = section(nConsts, 4);
  const strings = new Uint8Array(blob, at, nStringBytes);
  const decoder = new TextDecoder();
  const text = (p: number) => decoder.decode(strings.subarray(u32(p), u32(p) + u32(p + 4)));
  const records = <T>(start: number, count: number, size: number, read: (p: number) => T) =>
    Array.from({ length: count }, (_, k) => read(start + k * size));

  return {
    vocab: i32(48),
    context: i32(52),
    logits: i32(56),
    files: records(filesAt, nFiles, PLAN_SIZES.file, (p) => ({ path: text(p), bytes: u64(p + 8) })),
    parts: records(partsAt, nParts, PLAN_SIZES.part, (p) => ({
      file: u32(p),
      dtype: u32(p + 4),
      offset: u64(p + 8),
      bytes: u64(p + 16),
      rows: i32(p + 24),
      cols: i32(p + 28),
      transform: u32(p + 32),
      transformArg: i32(p + 36),
      name: text(p + 40),
    })),
    weights: records(weightsAt, nWeights, PLAN_SIZES.weight, (p) => ({
      use: u32(p),
      firstPart: u32(p + 4),
      nParts: u32(p + 8),
      rows: i32(p + 12),
      cols: i32(p + 16),
    })),
    registers: records(registersAt, nRegisters, PLAN_SIZES.register, (p) => ({
      width: i32(p),
      rows: u32(p + 4),
      name: text(p + 8),
    })),
    layers: records(layersAt, nLayers, PLAN_SIZES.layer, (p) => ({
      nHeads: i32(p),
      nKvHeads: i32(p + 4),
      headDim: i32(p + 8),
    })),
    ops: records(opsAt, nOps, PLAN_SIZES.op, (p) => ({
      kind: u32(p),
      flags: u32(p + 4),
      dst: i32(p + 8),
      a: i32(p + 12),
      b: i32(p + 16),
      weight: i32(p + 20),
      weight2: i32(p + 24),
      i: [i32(p + 32), i32(p + 36), i32(p + 40), i32(p + 44)],
      f: [48, 52, 56, 60].map((d) => v.getFloat32(p + d, true)),
    })),
    consts: new Float32Array(blob, constsAt, nConsts),
  };
}

/** The program as text, one operation a line with its shapes: `caldrix debug plan MODEL`. */
export function printPlan(blob: ArrayBuffer): string {
  const plan = decodePlan(blob);
  const lines = [
    `vocab ${plan.vocab}  context ${plan.context}  layers ${plan.layers.length}  weights ${plan.weights.length}  bytes ${blob.byteLength}`,
  ];
  plan.files.forEach((f, k) => {
    lines.push(`file ${k}  ${f.path}  ${f.bytes} bytes`);
  });
  plan.registers.forEach((_, k) => {
    lines.push(`register ${k}  ${registerText(plan, k)}`);
  });
  plan.ops.forEach((op, k) => {
    lines.push(`${String(k).padStart(4)}  ${opText(plan, op)}`);
  });
  return `${lines.join("\n")}\n`;
}

function registerText(plan: DecodedPlan, index: number): string {
  const r = plan.registers[index];
  if (r === undefined) return `register ${index}`;
  return `${r.name}[${r.rows === ROWS_OUT ? "out" : "step"}, ${r.width}]`;
}

function weightText(plan: DecodedPlan, index: number): string {
  const w = plan.weights[index];
  if (w === undefined) return `weight ${index}`;
  const parts = plan.parts.slice(w.firstPart, w.firstPart + w.nParts);
  const text = parts.map((p) => {
    const type = GGML_TYPES.get(p.dtype)?.name ?? `type ${p.dtype}`;
    const turn = p.transform === TRANSFORM_UNPERMUTE_ROPE ? " unpermuted" : "";
    return `${p.name} ${type}${turn}`;
  });
  const shape = w.use === USE_MATRIX ? `[${w.rows}, ${w.cols}]` : `[${w.cols}]`;
  return `{${text.join(" | ")}}${shape}`;
}

function opText(plan: DecodedPlan, op: PlanOp): string {
  const r = (k: number) => registerText(plan, k);
  const w = () => weightText(plan, op.weight);
  const name = Object.entries(OP).find(([, kind]) => kind === op.kind)?.[0] ?? `kind ${op.kind}`;
  const head = `${name.padEnd(9)} ${r(op.dst)} ${op.flags & FLAG_ADD ? "+=" : "="} `;
  const [i0, i1, i2, i3] = op.i as [number, number, number, number];
  const [f0, f1] = op.f as [number, number];
  switch (op.kind) {
    case OP.embed:
      return `${head}${w()} * ${f0}`;
    case OP.rmsNorm:
      return `${head}${r(op.a)} cols ${i1}+${i2}x${i0}, eps ${f0}, ${f1} + ${w()}`;
    case OP.matmul: {
      const bias = op.weight2 >= 0 ? ` + ${weightText(plan, op.weight2)}` : "";
      return `${head}${r(op.a)} cols ${i1}.. -> ${i0}.. . ${w()}${bias}`;
    }
    case OP.ropeTable:
      return `${head}pos * ${w()}, half ${i0}, scale ${f0}`;
    case OP.rope:
      return `${head}cols ${i1}+${i2}x${i0} turned by ${r(op.b)}, half ${i3}`;
    case OP.attend: {
      const l = plan.layers[i0];
      const shape = l ? `${l.nHeads}:${l.nKvHeads} heads of ${l.headDim}` : "?";
      return `${head}${r(op.a)}, layer ${i0}, ${shape}, scale ${f0}, window ${i1}, softcap ${f1}`;
    }
    case OP.gate:
      return `${head}${i0 === ACT.silu ? "silu" : "gelu_tanh"}(${r(op.a)})`;
    case OP.add:
      return `${head}${r(op.a)} + ${r(op.b)}`;
    case OP.select:
      return `${head}wanted rows of ${r(op.a)}`;
    case OP.softcap:
      return `${head}${r(op.a)}, cap ${f0}`;
    default:
      return head;
  }
}
