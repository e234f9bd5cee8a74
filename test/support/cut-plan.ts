// Cuts the middle out of a plan's program so that a test can read a register as it is half way: the
// operations up to one are kept, then those from SELECT on (which write the logits every plan must have).

import { OP, PLAN_SIZES } from "../../src/model/plan-format.ts";

const N_FILES_AT = 16; // of the header: n_files, n_parts, n_weights, n_registers, n_layers, n_ops

interface Program {
  readonly at: number;
  readonly count: number;
}

function program(plan: ArrayBuffer): Program {
  const head = new DataView(plan);
  const count = (k: number): number => head.getUint32(N_FILES_AT + 4 * k, true);
  const sizes = PLAN_SIZES;
  const before = [sizes.file, sizes.part, sizes.weight, sizes.register, sizes.layer];
  let at: number = sizes.head;
  for (const [k, size] of before.entries()) at += count(k) * size;
  return { at, count: count(5) };
}

/** Indices of the operations that write the residual register, which the first EMBED names. */
export function residualWrites(plan: ArrayBuffer): number[] {
  const { at, count } = program(plan);
  const view = new DataView(plan);
  const kind = (op: number): number => view.getUint32(at + op * PLAN_SIZES.op, true);
  const dst = (op: number): number => view.getInt32(at + op * PLAN_SIZES.op + 8, true);
  const ops = Array.from({ length: count }, (_, i) => i);
  const embed = ops.find((op) => kind(op) === OP.embed)!;
  return ops.filter((op) => dst(op) === dst(embed) && kind(op) !== OP.select);
}

/** Register number of the residual. */
export function residualRegister(plan: ArrayBuffer): number {
  const { at } = program(plan);
  return new DataView(plan).getInt32(at + residualWrites(plan)[0]! * PLAN_SIZES.op + 8, true);
}

/** The plan with operations 0..last, then SELECT and what follows. */
export function cutPlan(plan: ArrayBuffer, last: number): ArrayBuffer {
  const { at, count } = program(plan);
  const size = PLAN_SIZES.op;
  const view = new DataView(plan);
  let select = 0;
  while (view.getUint32(at + select * size, true) !== OP.select) select++;
  const bytes = new Uint8Array(plan);
  const cut = new Uint8Array(plan.byteLength - (select - last - 1) * size);
  cut.set(bytes.subarray(0, at + (last + 1) * size));
  cut.set(bytes.subarray(at + select * size), at + (last + 1) * size);
  const head = new DataView(cut.buffer);
  head.setBigUint64(8, BigInt(cut.byteLength), true);
  head.setUint32(N_FILES_AT + 20, count - (select - last - 1), true);
  return cut.buffer;
}
