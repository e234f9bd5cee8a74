// The whole engine over the real library: the same request gives the same tokens whatever its chunks,
// threads, company or history; cancellation and closing free what they should, in time.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import {
  createEngineClient,
  type EngineClientOptions,
  type OwnedEngine,
} from "../../src/engine/client.ts";
import { GREEDY } from "../../src/engine/sampling.ts";
import { EngineError, type GenerationRequest } from "../../src/engine/types.ts";
import { CODE } from "../../src/native/layout.ts";
import { randomModel } from "../support/random-model.ts";

const CONTEXT = 256;
const VOCAB = 512;
const NEVER = new AbortController().signal;
/** Of the poisoned model: after it there are no numbers. */
const NAN_TOKEN = 500;
/** What cancellation may take, by contract. */
const CANCEL_MS = 250;

let folder: string;
let small: EngineClientOptions["model"];
let poisoned: EngineClientOptions["model"];
let deep: EngineClientOptions["model"];

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "caldrix-engine-"));
  const at = (name: string): string => {
    mkdirSync(join(folder, name));
    return join(folder, name);
  };
  const heads = { nHeads: 4, nKvHeads: 2, headDim: 32 };
  small = randomModel(at("small"), {
    ...heads,
    nLayers: 3,
    hiddenSize: 128,
    intermediateSize: 256,
    vocabSize: VOCAB,
    contextLength: CONTEXT,
  });
  poisoned = randomModel(at("poisoned"), {
    ...heads,
    nLayers: 2,
    hiddenSize: 128,
    intermediateSize: 256,
    vocabSize: VOCAB,
    contextLength: CONTEXT,
    nanToken: NAN_TOKEN,
  });
  // Few bytes, much to compute: a prompt of its context takes seconds.
  deep = randomModel(at("deep"), {
    nHeads: 8,
    nKvHeads: 4,
    headDim: 64,
    nLayers: 48,
    hiddenSize: 512,
    intermediateSize: 1536,
    vocabSize: VOCAB,
    contextLength: 1024,
  });
});

afterAll(() => rmSync(folder, { recursive: true }));

/** Runs with a fresh engine over the small model. */
async function withEngine<T>(
  options: Partial<EngineClientOptions>,
  use: (engine: OwnedEngine) => Promise<T>,
): Promise<T> {
  const engine = await createEngineClient({
    model: small,
    threads: 1,
    maxRows: 1,
    context: CONTEXT,
    stepTokens: 64,
    activations: "fast",
    ...options,
  });
  try {
    return await use(engine);
  } finally {
    await engine.close();
  }
}

function prompt(length: number, step = 7): Int32Array {
  return Int32Array.from({ length }, (_, i) => (i * i * step + 3) % VOCAB);
}

function request(ids: Int32Array, change: Partial<GenerationRequest> = {}): GenerationRequest {
  return { ids, maxTokens: 24, stopIds: [], sampling: GREEDY, ...change };
}

interface Reply {
  readonly ids: number[];
  readonly cached: number;
  /** "none" when the stream ended without "done". */
  readonly reason: string;
}

async function reply(
  engine: OwnedEngine,
  wanted: GenerationRequest,
  signal: AbortSignal = NEVER,
): Promise<Reply> {
  const ids: number[] = [];
  let cached = -1;
  let reason = "none";
  for await (const event of engine.submit(wanted, signal)) {
    if (event.kind === "started") cached = event.cachedTokens;
    else if (event.kind === "tokens") ids.push(...event.ids);
    else reason = event.reason;
  }
  return { ids, cached, reason };
}

async function logitsAfter(
  engine: OwnedEngine,
  prompt: Int32Array,
  ids: Int32Array,
): Promise<Float32Array> {
  return (await engine.read({ prompt, ids, prefix: null }, NEVER)).logits;
}

/** Lets the event loop run until the engine is idle; returns how long that took in ms. */
async function idle(engine: OwnedEngine): Promise<number> {
  const start = performance.now();
  while (engine.stats().running + engine.stats().waiting > 0) await setImmediate();
  return performance.now() - start;
}

const SAMPLED = { ...GREEDY, temperature: 1.5, topK: 200, repetitionPenalty: 1.1, seed: 77n };

describe("the same tokens", () => {
  const requests = [
    request(prompt(100)),
    request(prompt(31, 11), { sampling: SAMPLED }),
    request(Int32Array.of(5), { sampling: { ...SAMPLED, topP: 0.9, minP: 0.01 } }),
  ];
  let expected: number[][];

  beforeAll(async () => {
    // Each from a row that holds nothing.
    expected = [];
    for (const wanted of requests) {
      expected.push(await withEngine({}, async (engine) => (await reply(engine, wanted)).ids));
    }
    expect(expected.map((ids) => ids.length)).toEqual([24, 24, 24]);
    // A model that says one thing only would make the tests below empty.
    expect(new Set(expected.flat()).size).toBeGreaterThan(12);
  });

  test.each([1, 7, 64])("in steps of %i tokens", async (stepTokens) => {
    await withEngine({ stepTokens }, async (engine) => {
      for (const [i, wanted] of requests.entries()) {
        expect((await reply(engine, wanted)).ids).toEqual(expected[i]!);
      }
    });
  });

  test("with two threads", async () => {
    await withEngine({ threads: 2 }, async (engine) => {
      for (const [i, wanted] of requests.entries()) {
        expect((await reply(engine, wanted)).ids).toEqual(expected[i]!);
      }
    });
  });

  test.each([2, 3])("with %i rows side by side", async (maxRows) => {
    await withEngine({ maxRows, stepTokens: 16 }, async (engine) => {
      const replies = await Promise.all(requests.map((wanted) => reply(engine, wanted)));
      expect(replies.map(({ ids }) => ids)).toEqual(expected);
    });
  });

  test("after a held prefix", async () => {
    await withEngine({}, async (engine) => {
      await reply(engine, request(prompt(60)));
      const again = await reply(engine, requests[0]!);
      expect(again.cached).toBe(60);
      expect(again.ids).toEqual(expected[0]!);
      const same = await reply(engine, requests[0]!);
      expect(same.cached).toBe(99);
      expect(same.ids).toEqual(expected[0]!);
    });
  });

  test("after a prefix copied from a row that is running", async () => {
    await withEngine({ maxRows: 2, stepTokens: 64 }, async (engine) => {
      // The longer one decodes in row 0 while the other one comes in and shares 60 tokens with it.
      const other = prompt(100);
      other[60] = other[60]! ^ 1;
      const first = engine.submit(request(other, { maxTokens: 150 }), NEVER);
      const events = first[Symbol.asyncIterator]();
      await events.next();
      await events.next();
      const copied = await reply(engine, requests[0]!);
      expect(copied.cached).toBe(60);
      expect(copied.ids).toEqual(expected[0]!);
      await events.return?.();
    });
  });

  test("after a cancelled request left part of a prompt in the row", async () => {
    await withEngine({ stepTokens: 4 }, async (engine) => {
      const controller = new AbortController();
      const events = engine.submit(requests[0]!, controller.signal)[Symbol.asyncIterator]();
      await events.next();
      controller.abort();
      expect(await events.next()).toEqual({ done: true, value: undefined });
      expect((await reply(engine, requests[0]!)).ids).toEqual(expected[0]!);
    });
  });
});

test("a seed decides the reply, and another seed makes another one", async () => {
  await withEngine({}, async (engine) => {
    const wanted = (seed: bigint) => request(prompt(20), { sampling: { ...SAMPLED, seed } });
    const first = await reply(engine, wanted(1n));
    expect((await reply(engine, wanted(1n))).ids).toEqual(first.ids);
    expect((await reply(engine, wanted(2n ** 64n - 1n))).ids).not.toEqual(first.ids);
  });
});

test("ends at an end token without showing it, at maxTokens, and at the end of the context", async () => {
  await withEngine({}, async (engine) => {
    const whole = await reply(engine, request(prompt(20)));
    expect(whole.reason).toBe("length");
    const end = whole.ids[5]!;
    const until = whole.ids.indexOf(end);
    const stopped = await reply(engine, request(prompt(20), { stopIds: [end] }));
    expect(stopped.reason).toBe("stop");
    expect(stopped.ids).toEqual(whole.ids.slice(0, until));
    const full = await reply(engine, request(prompt(CONTEXT - 3), { maxTokens: 50 }));
    expect(full.reason).toBe("length");
    expect(full.ids.length).toBe(3);
  });
});

test("joins the tokens that a slow consumer has not taken", async () => {
  await withEngine({}, async (engine) => {
    const events = engine.submit(request(prompt(20)), NEVER)[Symbol.asyncIterator]();
    await idle(engine);
    const kinds: string[] = [];
    let ids: readonly number[] = [];
    for (let next = await events.next(); !next.done; next = await events.next()) {
      kinds.push(next.value.kind);
      if (next.value.kind === "tokens") ids = next.value.ids;
    }
    expect(kinds).toEqual(["started", "tokens", "done"]);
    expect(ids.length).toBe(24);
  });
});

test("reads logits of some tokens, the same alone and beside a generation", async () => {
  const ids = Int32Array.of(0, 17, VOCAB - 1);
  const alone = await withEngine({}, (engine) => logitsAfter(engine, prompt(40), ids));
  expect(alone.length).toBe(3);
  expect(new Set(alone).size).toBe(3);
  await withEngine({ maxRows: 2, stepTokens: 8 }, async (engine) => {
    const [beside] = await Promise.all([
      logitsAfter(engine, prompt(40), ids),
      reply(engine, request(prompt(30, 11))),
    ]);
    expect(beside).toEqual(alone);
    // The greedy token is the one with the largest logit.
    const every = Int32Array.from({ length: VOCAB }, (_, i) => i);
    const all = await logitsAfter(engine, prompt(40), every);
    const greedy = await reply(engine, request(prompt(40), { maxTokens: 1 }));
    expect(greedy.ids).toEqual([all.indexOf(Math.max(...all))]);
  });
});

test("prompts of one request start from their kept prefix, with the same logits", async () => {
  const ids = Int32Array.of(0, 17, VOCAB - 1);
  const state = prompt(90);
  const prompts = [1, 2, 3].map((n) => Int32Array.of(...state, n, n + 40, n * 9));
  const alone: Float32Array[] = [];
  for (const one of prompts) {
    alone.push(await withEngine({}, (engine) => logitsAfter(engine, one, ids)));
  }
  await withEngine({ stepTokens: 64 }, async (engine) => {
    const prefix = engine.sharePrefix(state.length);
    const got: Float32Array[] = [];
    const cached: number[] = [];
    for (const one of prompts) {
      let starts = 0;
      const reading = await engine.read({ prompt: one, ids, prefix }, NEVER, () => starts++);
      got.push(reading.logits);
      cached.push(reading.cachedTokens);
      expect(starts).toBe(1);
      // Takes the only row for something else.
      await reply(engine, request(prompt(120, 11)));
    }
    expect(got).toEqual(alone);
    expect(cached).toEqual([0, 90, 90]);
    // One request after the other: a dropped prefix makes room for the next.
    const other = engine.sharePrefix(2);
    engine.dropPrefix(prefix);
    const read = (last: number) =>
      engine.read({ prompt: Int32Array.of(5, 6, last), ids, prefix: other }, NEVER);
    expect((await read(7)).cachedTokens).toBe(0);
    await reply(engine, request(prompt(120, 11)));
    expect((await read(8)).cachedTokens).toBe(2);
    engine.dropPrefix(other);
  });
});

const refusals: [string, Partial<GenerationRequest>, string][] = [
  ["no prompt", { ids: new Int32Array(0) }, "a prompt must have 1 to 255 tokens"],
  ["a prompt as long as the context", { ids: prompt(CONTEXT) }, "got 256"],
  ["a token outside the vocabulary", { ids: Int32Array.of(1, VOCAB) }, "0 to 511, got 512"],
  ["a negative token", { ids: Int32Array.of(-1) }, "0 to 511, got -1"],
  ["no room for a reply", { maxTokens: 0 }, "maxTokens must be an integer of 1 or more, got 0"],
  ["a setting outside its range", { sampling: { ...GREEDY, topP: 2 } }, "topP must be above 0"],
];
test("refuses what it cannot run, by name, and goes on", async () => {
  await withEngine({}, async (engine) => {
    for (const [what, change, message] of refusals) {
      const error = await reply(engine, request(prompt(3), change)).catch((e: unknown) => e);
      expect(error, what).toBeInstanceOf(EngineError);
      expect((error as EngineError).message, what).toContain(message);
      expect((error as EngineError).stopped, what).toBe(false);
    }
    const outside = logitsAfter(engine, prompt(3), Int32Array.of(VOCAB));
    await expect(outside).rejects.toThrow("got 512");
    expect(engine.stats()).toEqual({ waiting: 0, running: 0, stopped: false });
    expect((await reply(engine, request(prompt(3)))).reason).toBe("length");
  });
});

test("a load that the library refuses rejects with its code", async () => {
  const broken = { ...small, plan: small.plan.slice(0, 60) };
  const error = await withEngine({ model: broken }, async () => null).catch((e: unknown) => e);
  expect(error).toMatchObject({ name: "NativeError", code: CODE.plan });
});

test("logits that are no numbers fail their request only, and their row is not reused", async () => {
  await withEngine({ model: poisoned, maxRows: 2, activations: "f32" }, async (engine) => {
    const good = request(Int32Array.of(1, 2, 3));
    const bad = Int32Array.of(1, 2, NAN_TOKEN, 4);
    const alone = await reply(engine, good);
    const [beside, error] = await Promise.all([
      reply(engine, good),
      reply(engine, request(bad)).catch((e: unknown) => e),
    ]);
    expect(beside.ids).toEqual(alone.ids);
    expect(error).toMatchObject({ name: "EngineError", stopped: false });
    // Not expect().rejects: it spins the event loop itself, and no message of a worker gets in.
    const unread = await logitsAfter(engine, bad, Int32Array.of(1)).catch((e: unknown) => e);
    expect(unread).toMatchObject({ message: "the model's logits are not finite" });
    expect(engine.stats()).toEqual({ waiting: 0, running: 0, stopped: false });
    // Only the healthy row is held.
    expect(await reply(engine, request(bad.with(3, 5))).catch((e: unknown) => e)).toBeInstanceOf(
      EngineError,
    );
    expect((await reply(engine, good)).ids).toEqual(alone.ids);
  });
});

test("queues past its rows, and says how many wait and run", async () => {
  await withEngine({}, async (engine) => {
    const replies = [1, 2, 3].map((n) => reply(engine, request(prompt(n))));
    expect(engine.stats()).toEqual({ waiting: 3, running: 0, stopped: false });
    await Promise.all(replies);
    expect(engine.stats()).toEqual({ waiting: 0, running: 0, stopped: false });
  });
});

test("an aborted wait ends at once and leaves the running request alone", async () => {
  await withEngine({}, async (engine) => {
    const running = reply(engine, request(prompt(20)));
    const controller = new AbortController();
    const waiting = reply(engine, request(prompt(21)), controller.signal);
    controller.abort();
    expect((await waiting).reason).toBe("none");
    expect((await running).ids.length).toBe(24);
    const before = await reply(engine, request(prompt(5)), AbortSignal.abort());
    expect(before).toEqual({ ids: [], cached: -1, reason: "none" });
    await idle(engine);
  });
});

test("an aborted read rejects with the signal's reason", async () => {
  await withEngine({}, async (engine) => {
    const controller = new AbortController();
    const asked = { prompt: prompt(200), ids: Int32Array.of(1), prefix: null };
    const reading = engine.read(asked, controller.signal);
    controller.abort(new Error("gone"));
    await expect(reading).rejects.toThrow("gone");
    await idle(engine);
  });
});

test("200 quick submits and cancels leave no row in use", async () => {
  await withEngine({ maxRows: 2, stepTokens: 8 }, async (engine) => {
    for (let i = 0; i < 200; i++) {
      const controller = new AbortController();
      const one = reply(engine, request(prompt(20 + (i % 50))), controller.signal);
      // By turns while waiting, in the prompt, in the reply.
      for (let turn = i % 5; turn > 0; turn--) await setImmediate();
      controller.abort();
      await one;
    }
    await idle(engine);
    expect(engine.stats()).toEqual({ waiting: 0, running: 0, stopped: false });
    expect((await reply(engine, request(prompt(9)))).ids.length).toBe(24);
  });
});

describe("in a step that takes seconds", () => {
  const options = () => ({ model: deep, context: 1024, stepTokens: 1024, threads: 2 });
  const long = () => request(prompt(1000), { maxTokens: 1 });

  test("cancelling frees the row within 250 ms", async () => {
    await withEngine(options(), async (engine) => {
      const controller = new AbortController();
      const events = engine.submit(long(), controller.signal)[Symbol.asyncIterator]();
      expect((await events.next()).value?.kind).toBe("started");
      controller.abort();
      expect(await idle(engine)).toBeLessThan(CANCEL_MS);
      expect(await events.next()).toEqual({ done: true, value: undefined });
    });
  });

  test("leaving the loop early does the same", async () => {
    await withEngine(options(), async (engine) => {
      for await (const event of engine.submit(long(), NEVER)) {
        expect(event.kind).toBe("started");
        break;
      }
      expect(await idle(engine)).toBeLessThan(CANCEL_MS);
    });
  });

  test("closing waits for the step only until it is interrupted, and fails the request", async () => {
    const engine = await createEngineClient({ ...options(), maxRows: 1, activations: "fast" });
    const events = engine.submit(long(), NEVER)[Symbol.asyncIterator]();
    await events.next();
    const start = performance.now();
    const closed = engine.close();
    const error = await events.next().catch((e: unknown) => e);
    expect(error).toMatchObject({ name: "EngineError", stopped: true });
    await closed;
    expect(performance.now() - start).toBeLessThan(CANCEL_MS);
    expect(engine.stats()).toEqual({ waiting: 0, running: 0, stopped: true });
    await expect(reply(engine, request(prompt(3)))).rejects.toThrow("the engine is closed");
    await engine.close();
  });
});
