// Runs a plan blob in float64 with the plainest loops: the naive reference of the C engine, and the proof
// that the arch files are right on their own. Slow; for tiny models. Semantics: csrc/caldrix.h.

import { readFileSync } from "node:fs";
import {
  ACT,
  type DecodedPlan,
  decodePlan,
  FILE_CONSTS,
  FLAG_ADD,
  OP,
  type PlanOp,
  type PlanPart,
  TRANSFORM_UNPERMUTE_ROPE,
  USE_VECTOR,
} from "../../src/model/plan-format.ts";
import { dequantize, rowBytes } from "./dequant.ts";

/** One token of a step; want: its logits are read. Tokens of a row come in order. */
export interface RefToken {
  readonly token: number;
  readonly pos: number;
  readonly row: number;
  readonly want: boolean;
}

export interface Reference {
  /** Runs the tokens; the logits of the wanted ones, in order. */
  step(tokens: readonly RefToken[]): Float64Array[];
  /** A register after the last step: rows x width. */
  register(name: string): Float64Array;
}

interface Matrix {
  readonly rows: number;
  readonly cols: number;
  readonly data: Float32Array;
}

/** Loads a plan's weights as float32 and returns its interpreter. */
export function createReference(blob: ArrayBuffer): Reference {
  const plan = decodePlan(blob);
  const files = plan.files.map((file) => {
    const bytes = readFileSync(file.path);
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  });
  const weights = plan.weights.map((w): Matrix => {
    const parts = plan.parts.slice(w.firstPart, w.firstPart + w.nParts);
    const data = new Float32Array(w.rows * w.cols);
    let at = 0;
    for (const part of parts) {
      const values = partValues(plan, files, part);
      data.set(values, at);
      at += values.length;
    }
    if (at !== data.length) throw new Error(`parts of ${parts[0]?.name} do not fill the weight`);
    return { rows: w.use === USE_VECTOR ? 1 : w.rows, cols: w.cols, data };
  });
  const registers = plan.registers.map(() => new Float64Array(0));
  const caches = plan.layers.map(() => new Map<string, { k: Float64Array; v: Float64Array }>());

  return {
    step(tokens) {
      const wanted = tokens.flatMap((t, i) => (t.want ? [i] : []));
      plan.registers.forEach((r, i) => {
        const rows = r.rows === 1 ? wanted.length : tokens.length;
        // NaN: a column that is read before it is written shows in the result.
        registers[i] = new Float64Array(rows * r.width).fill(Number.NaN);
      });
      for (const op of plan.ops) run({ plan, weights, registers, caches, tokens, wanted }, op);
      const logits = registers[plan.logits]!;
      return wanted.map((_, i) => logits.slice(i * plan.vocab, (i + 1) * plan.vocab));
    },
    register(name) {
      const index = plan.registers.findIndex((r) => r.name === name);
      if (index < 0) throw new Error(`no register ${name}`);
      return registers[index]!;
    },
  };
}

function partValues(plan: DecodedPlan, files: readonly DataView[], part: PlanPart): Float32Array {
  if (part.file === FILE_CONSTS) return plan.consts.slice(part.offset, part.offset + part.cols);
  const file = files[part.file]!;
  const bytes = rowBytes(part.dtype, part.cols);
  if (bytes * part.rows !== part.bytes) throw new Error(`${part.name}: bytes do not fit the shape`);
  const out = new Float32Array(part.rows * part.cols);
  for (let row = 0; row < part.rows; row++) {
    const from = part.transform === TRANSFORM_UNPERMUTE_ROPE ? interleavedRow(part, row) : row;
    out.set(dequantize(part.dtype, file, part.offset + from * bytes, part.cols), row * part.cols);
  }
  return out;
}

/** File row of row h*d + s*d/2 + i: h*d + 2i + s. */
function interleavedRow(part: PlanPart, row: number): number {
  const d = part.rows / part.transformArg;
  const inHead = row % d;
  const s = inHead < d / 2 ? 0 : 1;
  return row - inHead + 2 * (inHead - s * (d / 2)) + s;
}

interface Machine {
  readonly plan: DecodedPlan;
  readonly weights: readonly Matrix[];
  readonly registers: readonly Float64Array[];
  readonly caches: readonly Map<string, { k: Float64Array; v: Float64Array }>[];
  readonly tokens: readonly RefToken[];
  readonly wanted: readonly number[];
}

function run(m: Machine, op: PlanOp): void {
  const width = (r: number) => m.plan.registers[r]!.width;
  const dst = m.registers[op.dst]!;
  const w = width(op.dst);
  const n = m.plan.registers[op.dst]!.rows === 1 ? m.wanted.length : m.tokens.length;
  const a = m.registers[op.a] ?? dst;
  const wa = op.a >= 0 ? width(op.a) : w;
  const weight = m.weights[op.weight];
  const [i0, i1, i2, i3] = op.i as [number, number, number, number];
  const [f0, f1] = op.f as [number, number];
  const put = (at: number, value: number) => {
    dst[at] = op.flags & FLAG_ADD ? dst[at]! + value : value;
  };
  switch (op.kind) {
    case OP.embed:
      for (let t = 0; t < n; t++) {
        const from = m.tokens[t]!.token * w;
        for (let j = 0; j < w; j++) put(t * w + j, f0 * weight!.data[from + j]!);
      }
      return;
    case OP.rmsNorm:
      for (let t = 0; t < n; t++) {
        for (let g = 0; g < i2; g++) {
          const column = i1 + g * i0;
          const x = a.slice(t * wa + column, t * wa + column + i0);
          const scale = 1 / Math.sqrt(x.reduce((s, v) => s + v * v, 0) / i0 + f0);
          for (let j = 0; j < i0; j++) {
            put(t * w + column + j, x[j]! * scale * (f1 + weight!.data[j]!));
          }
        }
      }
      return;
    case OP.matmul: {
      const { rows, cols, data } = weight!;
      const bias = m.weights[op.weight2]?.data;
      for (let t = 0; t < n; t++) {
        const x = a.subarray(t * wa + i1, t * wa + i1 + cols);
        for (let r = 0; r < rows; r++) {
          let sum = bias?.[r] ?? 0;
          for (let k = 0, at = r * cols; k < cols; k++) sum += x[k]! * data[at + k]!;
          put(t * w + i0 + r, sum);
        }
      }
      return;
    }
    case OP.ropeTable:
      for (let t = 0; t < n; t++) {
        for (let j = 0; j < i0; j++) {
          const angle = Math.fround(m.tokens[t]!.pos * weight!.data[j]!);
          dst[t * w + j] = Math.cos(angle) * f0;
          dst[t * w + i0 + j] = Math.sin(angle) * f0;
        }
      }
      return;
    case OP.rope: {
      const table = m.registers[op.b]!;
      for (let t = 0; t < n; t++) {
        for (let head = 0; head < i2; head++) {
          const at = t * w + i1 + head * i0;
          for (let j = 0; j < i3; j++) {
            const cos = table[t * 2 * i3 + j]!;
            const sin = table[t * 2 * i3 + i3 + j]!;
            const x = dst[at + j]!;
            const y = dst[at + j + i3]!;
            dst[at + j] = x * cos - y * sin;
            dst[at + j + i3] = y * cos + x * sin;
          }
        }
      }
      return;
    }
    case OP.attend:
      attend(m, op, dst, a, wa);
      return;
    case OP.gate:
      for (let t = 0; t < n; t++) {
        for (let j = 0; j < w; j++) {
          const x = a[t * wa + j]!;
          const gate = i0 === ACT.silu ? x / (1 + Math.exp(-x)) : geluTanh(x);
          dst[t * w + j] = gate * a[t * wa + w + j]!;
        }
      }
      return;
    case OP.add: {
      const b = m.registers[op.b]!;
      for (let j = 0; j < n * w; j++) dst[j] = a[j]! + b[j]!;
      return;
    }
    case OP.select:
      m.wanted.forEach((t, i) => {
        dst.set(a.subarray(t * wa, t * wa + w), i * w);
      });
      return;
    case OP.softcap:
      for (let j = 0; j < n * w; j++) dst[j] = f0 * Math.tanh(a[j]! / f0);
      return;
    default:
      throw new Error(`unknown operation ${op.kind}`);
  }
}

function geluTanh(x: number): number {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
}

function attend(m: Machine, op: PlanOp, dst: Float64Array, a: Float64Array, wa: number): void {
  const [layerIndex, window] = op.i as [number, number];
  const [scale, softcap] = op.f as [number, number];
  const { nHeads, nKvHeads, headDim } = m.plan.layers[layerIndex]!;
  const cache = m.caches[layerIndex]!;
  const kAt = nHeads * headDim;
  const vAt = kAt + nKvHeads * headDim;
  m.tokens.forEach(({ row, pos }, t) => {
    const x = a.subarray(t * wa, (t + 1) * wa);
    cache.set(`${row}:${pos}`, { k: x.slice(kAt, vAt), v: x.slice(vAt, wa) });
    const first = window > 0 ? Math.max(0, pos - window + 1) : 0;
    const seen = Array.from(
      { length: pos - first + 1 },
      (_, i) => cache.get(`${row}:${first + i}`)!,
    );
    for (let h = 0; h < nHeads; h++) {
      const kv = Math.floor(h / (nHeads / nKvHeads)) * headDim;
      const scores = seen.map(({ k }) => {
        let s = 0;
        for (let j = 0; j < headDim; j++) s += x[h * headDim + j]! * k[kv + j]!;
        s *= scale;
        return softcap > 0 ? softcap * Math.tanh(s / softcap) : s;
      });
      const top = Math.max(...scores);
      const weights = scores.map((s) => Math.exp(s - top));
      const total = weights.reduce((s, p) => s + p, 0);
      for (let j = 0; j < headDim; j++) {
        let sum = 0;
        for (let i = 0; i < seen.length; i++) sum += weights[i]! * seen[i]!.v[kv + j]!;
        dst[t * nHeads * headDim + h * headDim + j] = sum / total;
      }
    }
  });
}
