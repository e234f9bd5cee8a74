// Speed of the engine alone, in turn with a peer's bench program on the same file: prompt tokens per second
// of one long prompt, and tokens per second of greedy decoding at some depths. Medians; never asserted.
//
//   bun bench/engine.ts MODEL [--threads 2] [--runs 5] [--depth 0] [--prompt 512] [--generate 64]
//                       [--peer PATH_OF_llama-bench]

import { parseArgs } from "node:util";
import { openModel } from "../src/model/open.ts";
import { NativeEngine, NativeModel, probe } from "../src/native/engine.ts";
import { loadLibrary } from "../src/native/library.ts";

const WANT_SAMPLE = 1;
/** Tokens of one prefill step, as the server uses. */
const STEP_TOKENS = 128;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    threads: { type: "string", default: "2" },
    runs: { type: "string", default: "5" },
    depth: { type: "string", default: "0" },
    prompt: { type: "string", default: "512" },
    generate: { type: "string", default: "64" },
    peer: { type: "string" },
    activations: { type: "string", default: "fast" },
    step: { type: "string", default: String(STEP_TOKENS) },
  },
});
const path = positionals[0];
if (path === undefined) throw new Error("usage: bun bench/engine.ts MODEL [--peer llama-bench]");
const threads = Number(values.threads);
const runs = Number(values.runs);
const depths = values.depth.split(",").map(Number);
const nPrompt = Number(values.prompt);
const nGenerate = Number(values.generate);
const stepTokens = Number(values.step);

const library = await loadLibrary();
const model = await openModel(path);
const native = NativeModel.open(library, model.plan, {
  backend: "cpu",
  activations: values.activations === "f32" ? "f32" : "fast",
  threads,
});
const context = Math.max(nPrompt, Math.max(...depths) + nGenerate) + 1;
const engine = new NativeEngine(native, {
  maxRows: 1,
  context,
  stepTokens,
  maxOut: 1,
  threads,
});
engine.sampling.setFloat32(4, 1, true);
engine.sampling.setFloat32(12, 1, true);

/** Any ids do: speed does not depend on them. */
const idAt = (i: number): number => (i * 7919 + 13) % Math.min(model.vocabSize, 20_000);

function feed(from: number, n: number): void {
  for (let at = 0; at < n; at += stepTokens) {
    const count = Math.min(stepTokens, n - at);
    for (let i = 0; i < count; i++) {
      engine.token[i] = idAt(from + at + i);
      engine.pos[i] = from + at + i;
      engine.row[i] = 0;
      engine.want[i] = at + i === n - 1 ? WANT_SAMPLE : 0;
    }
    engine.step(count);
  }
}

function prefill(): number {
  engine.rowTrim(0, 0);
  const start = Bun.nanoseconds();
  feed(0, nPrompt);
  return nPrompt / ((Bun.nanoseconds() - start) / 1e9);
}

function decode(depth: number): number {
  engine.rowTrim(0, 0);
  feed(0, Math.max(depth, 1));
  const start = Bun.nanoseconds();
  let pos = Math.max(depth, 1);
  for (let i = 0; i < nGenerate; i++, pos++) {
    engine.token[0] = engine.out[0]!;
    engine.pos[0] = pos;
    engine.want[0] = WANT_SAMPLE;
    engine.step(1);
  }
  return nGenerate / ((Bun.nanoseconds() - start) / 1e9);
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1]!;
}

/** One run of the peer: tokens per second of its prompt and decode tests. */
function peerRun(args: readonly string[]): number {
  const run = Bun.spawnSync([
    values.peer!,
    ...["-m", path!, "-t", String(threads), "-r", "1", "-fa", "1", "-o", "json"],
    ...args,
  ]);
  if (run.exitCode !== 0) throw new Error(`the peer failed: ${run.stderr.toString()}`);
  const rows = JSON.parse(run.stdout.toString()) as { avg_ts: number }[];
  return rows[0]!.avg_ts;
}

const tests = [
  {
    name: `prefill ${nPrompt}`,
    ours: prefill,
    peer: () => peerRun(["-p", String(nPrompt), "-n", "0"]),
  },
  ...depths.map((depth) => ({
    name: `decode at ${depth}`,
    ours: () => decode(depth),
    peer: () => peerRun(["-p", "0", "-n", String(nGenerate), "-d", String(depth)]),
  })),
];

console.log(
  `${path.split("/").at(-1)}: ${probe(library).isa}, ${threads} threads, ${runs} runs in turn`,
);
for (const one of tests) {
  one.ours();
  const ours: number[] = [];
  const peer: number[] = [];
  for (let i = 0; i < runs; i++) {
    ours.push(one.ours());
    if (values.peer !== undefined) peer.push(one.peer());
  }
  const text = `${one.name}: ${median(ours).toFixed(1)} tokens/s`;
  const beside =
    peer.length === 0
      ? ""
      : `, peer ${median(peer).toFixed(1)}, ratio ${(median(ours) / median(peer)).toFixed(2)}`;
  console.log(text + beside);
}
const c = engine.counters();
const share = (ns: number): string => `${((100 * ns) / c.stepNs).toFixed(0)} %`;
console.log(
  `time: matmul ${share(c.matmulNs)}, attend ${share(c.attendNs)}, sample ${share(c.sampleNs)}, other ${share(c.otherNs)}`,
);
engine.close();
native.close();
