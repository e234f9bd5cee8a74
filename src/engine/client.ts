// The main thread's side of the engine: starts the worker, submits prompts, hands out their events.
// It never blocks. Used by cli/ and api/ through the types of types.ts.

import { NativeError } from "../errors.ts";
import type { LoadedModel } from "../model/types.ts";
import {
  type Counters,
  interrupt,
  type ModelOptions,
  type Probe,
  probe,
} from "../native/engine.ts";
import { CODE } from "../native/layout.ts";
import { type Library, loadLibrary } from "../native/library.ts";
import type { Command, Report, StepEvent } from "./protocol.ts";
import { checkSampling } from "./sampling.ts";
import type { Purpose } from "./sequence.ts";
import { createStream } from "./stream.ts";
import {
  type EngineClient,
  EngineError,
  type GenerationEvent,
  type GenerationRequest,
  type Reading,
  type ReadRequest,
  type SharedPrefix,
} from "./types.ts";

export interface EngineClientOptions {
  readonly model: Pick<LoadedModel, "plan" | "vocabSize" | "contextLength">;
  /** 0 = every core this process may use. */
  readonly threads: number;
  /** Sequences computed side by side. */
  readonly maxRows: number;
  /** Positions of a row; the model's own are the most. */
  readonly context: number;
  /** Most tokens of one step: the longest a command waits. */
  readonly stepTokens: number;
  readonly activations: ModelOptions["activations"];
  /** Called now and then with 0..1 while the weights get ready. */
  readonly onProgress?: (share: number) => void;
}

/** The engine as its owner sees it. */
export interface OwnedEngine extends EngineClient {
  readonly machine: Probe;
  /** Figures right after opening: bytes of the weights and of a row. */
  readonly opened: Counters;
}

/** How often onProgress is called, in milliseconds: a bar that moves, at no cost. */
const PROGRESS_EVERY_MS = 100;

/**
 * KV rows beside those that sequences run in: one for a shared prefix. Only one-at-a-time servers
 * read decisions (the contract's rule), so only they need it; its memory is untouched until then.
 */
const prefixRows = (maxRows: number): number => (maxRows === 1 ? 1 : 0);

/** A request that the worker has not ended yet. */
interface Pending {
  started: boolean;
  readonly take: (event: StepEvent) => void;
  readonly fail: (error: EngineError) => void;
}

/**
 * Loads the library, starts the engine's worker and opens the model there.
 * @throws NativeError when the library, the plan or a limit is refused
 */
export async function createEngineClient(options: EngineClientOptions): Promise<OwnedEngine> {
  const library = await loadLibrary();
  const context = Math.min(options.context, options.model.contextLength);
  const progress = new Int32Array(new SharedArrayBuffer(4));
  const { onProgress } = options;
  const timer = onProgress && setInterval(() => onProgress(progress[0]! / 1000), PROGRESS_EVERY_MS);
  const worker = new Worker(new URL("./worker.ts", import.meta.url).href);
  try {
    const { handle, counters } = await open(worker, {
      kind: "open",
      library: library.path,
      plan: options.model.plan,
      model: {
        backend: "cpu",
        activations: options.activations,
        threads: options.threads,
        progress,
      },
      limits: {
        maxRows: options.maxRows + prefixRows(options.maxRows),
        context,
        stepTokens: options.stepTokens,
        // One output a sequence and step, each at a token of its own.
        maxOut: Math.min(options.maxRows, options.stepTokens),
        threads: options.threads,
      },
      maxRows: options.maxRows,
    });
    const { vocabSize } = options.model;
    const facts = { library, handle, counters, context, vocabSize, maxRows: options.maxRows };
    return connect(worker, facts);
  } catch (error) {
    // It has reported a refusal or died: it is in no native call.
    worker.terminate();
    throw error;
  } finally {
    clearInterval(timer);
  }
}

/** Sends "open" and waits for the answer. */
function open(
  worker: Worker,
  command: Extract<Command, { kind: "open" }>,
): Promise<Extract<Report, { kind: "opened" }>> {
  return new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new NativeError(CODE.state, event.message));
    worker.onmessage = ({ data }: MessageEvent<Report>) => {
      if (data.kind === "opened") resolve(data);
      else if (data.kind === "refused") reject(new NativeError(data.code, data.message));
    };
    worker.postMessage(command);
  });
}

interface Facts {
  readonly library: Library;
  readonly handle: number;
  readonly counters: Counters;
  readonly context: number;
  readonly vocabSize: number;
  readonly maxRows: number;
}

/** The client over an opened engine. */
function connect(worker: Worker, facts: Facts): OwnedEngine {
  const { library, handle, context, vocabSize, maxRows } = facts;
  const pending = new Map<number, Pending>();
  let running = 0;
  let nextId = 0;
  let nextPrefix = 0;
  /** Why no more requests are taken. */
  let stopped: EngineError | null = null;
  let closing: Promise<void> | null = null;
  let onClosed = (): void => {};
  /** The worker has died: nobody answers "close". */
  let dead = false;

  worker.onmessage = ({ data }: MessageEvent<Report>) => {
    switch (data.kind) {
      case "events":
        for (const event of data.events) dispatch(event);
        return;
      case "stopped":
        stop(`the engine has stopped: ${data.message}`);
        return;
      case "closed":
        onClosed();
        return;
      case "opened":
      case "refused":
        return;
      default:
        data satisfies never;
    }
  };
  worker.onerror = (event) => {
    dead = true;
    stop(`the engine's thread has failed: ${event.message}`);
    onClosed();
  };

  function dispatch(event: StepEvent): void {
    const request = pending.get(event.id);
    if (request === undefined) return;
    if (event.kind === "started") {
      request.started = true;
      running++;
    } else if (event.kind !== "tokens") {
      remove(event.id);
    }
    request.take(event);
  }

  function remove(id: number): void {
    if (pending.get(id)?.started) running--;
    pending.delete(id);
  }

  function stop(message: string): void {
    stopped ??= new EngineError(message, true);
    for (const [id, request] of pending) {
      remove(id);
      request.fail(stopped);
    }
  }

  function send(command: Command): void {
    worker.postMessage(command);
  }

  /** Why a prompt cannot be taken, or null. */
  function refusalOf(prompt: Int32Array): EngineError | null {
    if (stopped !== null) return stopped;
    if (prompt.length < 1 || prompt.length > context - 1) {
      const wanted = `1 to ${context - 1} tokens in a context of ${context}`;
      return new EngineError(`a prompt must have ${wanted}, got ${prompt.length}`, false);
    }
    const stranger = prompt.find((id) => id < 0 || id >= vocabSize);
    return stranger === undefined ? null : outside(stranger);
  }

  function outside(id: number): EngineError {
    return new EngineError(`token ids must be 0 to ${vocabSize - 1}, got ${id}`, false);
  }

  function enter(prompt: Int32Array, purpose: Purpose, request: Pending): number {
    const id = nextId++;
    pending.set(id, request);
    // A copy of just these ids: a clone would take all of the buffer that a subarray stands on.
    const own = prompt.slice();
    worker.postMessage({ kind: "submit", id, prompt: own, purpose } satisfies Command, [
      own.buffer,
    ]);
    return id;
  }

  /** Asks the worker to forget a request; the report "ended" removes it here. */
  function cancel(id: number): void {
    const request = pending.get(id);
    if (request === undefined || closing !== null) return;
    send({ kind: "cancel", id });
    // Only when nobody else loses work: a step interrupted in vain is run again.
    if (request.started && running === 1) interrupt(library, handle);
  }

  function submit(request: GenerationRequest, signal: AbortSignal): AsyncIterable<GenerationEvent> {
    const stream = createStream();
    const refusal = refusalOf(request.ids) ?? refusalOfSettings(request);
    if (refusal !== null) {
      stream.fail(refusal);
    } else if (signal.aborted) {
      stream.end();
    } else {
      const onAbort = (): void => {
        stream.end();
        cancel(id);
      };
      const left = (): void => signal.removeEventListener("abort", onAbort);
      stream.onEnd(left);
      stream.onReturn(() => cancel(id));
      const { maxTokens, stopIds, sampling } = request;
      const purpose: Purpose = { kind: "generate", maxTokens, stopIds, sampling };
      const id = enter(request.ids, purpose, {
        started: false,
        take: stream.take,
        fail: stream.fail,
      });
      signal.addEventListener("abort", onAbort, { once: true });
    }
    return stream.iterable;
  }

  function read(
    { prompt, ids, prefix }: ReadRequest,
    signal: AbortSignal,
    started?: () => void,
  ): Promise<Reading> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted();
      let cachedTokens = 0;
      const stranger = ids.find((id) => id < 0 || id >= vocabSize);
      const refusal = refusalOf(prompt) ?? (stranger === undefined ? null : outside(stranger));
      if (refusal !== null) throw refusal;
      const onAbort = (): void => {
        reject(signal.reason);
        cancel(id);
      };
      const fail = (error: EngineError): void => {
        signal.removeEventListener("abort", onAbort);
        reject(error);
      };
      const take = (event: StepEvent): void => {
        if (event.kind === "failed") fail(new EngineError(event.message, false));
        if (event.kind === "started") {
          cachedTokens = event.cachedTokens;
          started?.();
        }
        if (event.kind !== "read") return;
        signal.removeEventListener("abort", onAbort);
        resolve({ logits: event.logits, cachedTokens });
      };
      const purpose: Purpose = { kind: "read", ids: [...ids], prefix };
      const id = enter(prompt, purpose, { started: false, take, fail });
      signal.addEventListener("abort", onAbort, { once: true });
    });
  }

  function sharePrefix(length: number): SharedPrefix {
    return { id: nextPrefix++, length };
  }

  function dropPrefix({ id }: SharedPrefix): void {
    if (closing === null) send({ kind: "dropPrefix", id });
  }

  function close(): Promise<void> {
    closing ??= new Promise<void>((resolve) => {
      onClosed = resolve;
      if (dead) resolve();
      // Before "close" is sent: afterwards the engine may be gone.
      if (running > 0) interrupt(library, handle);
      send({ kind: "close" });
      stop("the engine is closed");
    }).then(() => {
      worker.terminate();
    });
    return closing;
  }

  return {
    maxRows,
    context,
    machine: probe(library),
    opened: facts.counters,
    submit,
    read,
    sharePrefix,
    dropPrefix,
    stats: () => ({ waiting: pending.size - running, running, stopped: stopped !== null }),
    close,
  };
}

/** What is wrong with the numbers of a request, or null. */
function refusalOfSettings({ maxTokens, sampling }: GenerationRequest): EngineError | null {
  if (!Number.isInteger(maxTokens) || maxTokens < 1) {
    return new EngineError(`maxTokens must be an integer of 1 or more, got ${maxTokens}`, false);
  }
  try {
    checkSampling(sampling);
    return null;
  } catch (error) {
    return new EngineError(error instanceof Error ? error.message : String(error), false);
  }
}
