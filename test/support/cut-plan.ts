// Cuts the middle out of a plan's program so that a test can read a register as it is half way: the
// operations up to one are kept, then those from SELECT on (which write the logits every plan must have).

import { decodePlan, OP, PLAN_SIZES } from "../../src/model/plan-format.ts";

/** Bytes of the header: the blob's size and its number of operations. */
const BYTES_AT = 8;
const N_OPS_AT = 36;

/** Register number of the residual: the one EMBED writes. */
export function residualRegister(plan: ArrayBuffer): number {
  return decodePlan(plan).ops.find((op) => op.kind === OP.embed)!.dst;
}

/** Indices of the operations that write the residual. */
export function residualWrites(plan: ArrayBuffer): number[] {
  const residual = residualRegister(plan);
  return decodePlan(plan).ops.flatMap((op, k) => (op.dst === residual ? [k] : []));
}

/** The plan with operations 0..last, then SELECT and what follows. */
export function cutPlan(plan: ArrayBuffer, last: number): ArrayBuffer {
  const { files, parts, weights, registers, layers, ops } = decodePlan(plan);
  const size = PLAN_SIZES.op;
  const at =
    PLAN_SIZES.head +
    files.length * PLAN_SIZES.file +
    parts.length * PLAN_SIZES.part +
    weights.length * PLAN_SIZES.weight +
    registers.length * PLAN_SIZES.register +
    layers.length * PLAN_SIZES.layer;
  const select = ops.findIndex((op) => op.kind === OP.select);
  const dropped = select - last - 1;
  const bytes = new Uint8Array(plan);
  const cut = new Uint8Array(plan.byteLength - dropped * size);
  cut.set(bytes.subarray(0, at + (last + 1) * size));
  cut.set(bytes.subarray(at + select * size), at + (last + 1) * size);
  const head = new DataView(cut.buffer);
  head.setBigUint64(BYTES_AT, BigInt(cut.byteLength), true);
  head.setUint32(N_OPS_AT, ops.length - dropped, true);
  return cut.buffer;
}
