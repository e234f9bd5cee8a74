// The C library's handles as classes with close(). A model and its engine belong to the thread that
// opened them; only interrupt() may be called from another one. Errors are NativeError with the
// library's code and words. Used by engine/worker.ts and the native tests; knows no scheduling.

import { NativeError } from "../errors.ts";
import {
  ACTIVATIONS,
  BACKEND,
  CODE,
  COUNTERS,
  ERR,
  IO,
  LIMITS,
  OPEN,
  PLAN_HEAD,
  PROBE,
  SAMPLING,
} from "./layout.ts";
import type { Library } from "./library.ts";
import { addressOf, type Handle, handleOf, type Symbols, viewOf } from "./symbols.ts";

/** How a model is opened. */
export interface ModelOptions {
  readonly backend: keyof typeof BACKEND;
  readonly activations: keyof typeof ACTIVATIONS;
  /** Threads for repacking; 0 = every core this process may use. */
  readonly threads: number;
  /** Set to 0..1000 as weights get ready; shared with the thread that shows it. */
  readonly progress?: Int32Array<SharedArrayBuffer>;
}

/** How an engine is opened; the limits of csrc/caldrix.h. */
export interface EngineLimits {
  readonly maxRows: number;
  readonly context: number;
  readonly stepTokens: number;
  /** Most tokens of a step that ask for an output. */
  readonly maxOut: number;
  /** 0 = every core this process may use. */
  readonly threads: number;
}

/** What this machine offers. */
export interface Probe {
  readonly cores: number;
  readonly gpus: number;
  /** Name of the kernel table in use. */
  readonly isa: string;
}

/** Figures since an engine was opened; times in nanoseconds. */
export type Counters = {
  readonly [K in Exclude<keyof typeof COUNTERS, "bytes">]: number;
};

/** Asks the library what this machine offers; any thread. */
export function probe(library: Library): Probe {
  const out = new DataView(new ArrayBuffer(PROBE.bytes));
  const code = library.symbols.cx_probe(addressOf(out));
  if (code !== CODE.ok) throw new NativeError(code, "cx_probe refused its argument");
  return {
    cores: out.getUint32(PROBE.cores, true),
    gpus: out.getUint32(PROBE.gpus, true),
    isa: cString(new Uint8Array(out.buffer, PROBE.isa, PROBE.isaBytes)),
  };
}

/**
 * Stops the running step of an engine between two operations; any thread.
 * @param engine NativeEngine.handle, while that engine is open
 */
export function interrupt(library: Library, engine: number): void {
  // The number is an address that came from NativeEngine.handle through a message.
  library.symbols.cx_interrupt(engine as Handle);
}

/** An opened model: weights read and repacked. */
export class NativeModel {
  readonly library: Library;
  readonly handle: Handle;
  readonly vocab: number;
  /** Positions the model was made for. */
  readonly context: number;
  /** Register that holds the logits of the last step. */
  readonly logitsRegister: number;
  #closed = false;

  private constructor(library: Library, handle: Handle, plan: ArrayBuffer) {
    const head = new DataView(plan);
    this.library = library;
    this.handle = handle;
    this.vocab = head.getInt32(PLAN_HEAD.vocab, true);
    this.context = head.getInt32(PLAN_HEAD.context, true);
    this.logitsRegister = head.getInt32(PLAN_HEAD.logits, true);
  }

  /**
   * Verifies a plan and gets its weights ready; takes seconds.
   * @throws NativeError: CX_PLAN, CX_FILE, CX_NOMEM, CX_UNSUPPORTED
   */
  static open(library: Library, plan: ArrayBuffer, options: ModelOptions): NativeModel {
    const open = new DataView(new ArrayBuffer(OPEN.bytes));
    open.setUint32(OPEN.backend, BACKEND[options.backend], true);
    open.setUint32(OPEN.activations, ACTIVATIONS[options.activations], true);
    open.setInt32(OPEN.threads, options.threads, true);
    if (options.progress !== undefined) {
      open.setBigUint64(OPEN.progress, BigInt(addressOf(options.progress)), true);
    }
    const error = new ErrorBlock();
    const handle = handleOf(
      library.symbols.cx_model_open(
        addressOf(new Uint8Array(plan)),
        plan.byteLength,
        addressOf(open),
        error.address,
      ),
    );
    if (handle === null) throw error.toError();
    return new NativeModel(library, handle, plan);
  }

  /** Frees the model; its engines must be closed before. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.library.symbols.cx_model_close(this.handle);
  }
}

/** Arenas, KV rows and threads over a model, and typed arrays over the step block. */
export class NativeEngine {
  readonly handle: Handle;
  readonly maxTokens: number;
  readonly maxOut: number;
  readonly vocab: number;
  /** The step block's arrays, owned by C; not to be touched after close(). */
  readonly token: Int32Array;
  readonly pos: Int32Array;
  readonly row: Int32Array;
  readonly want: Int32Array;
  readonly out: Int32Array;
  /** maxRows records of cx_sampling. */
  readonly sampling: DataView;
  readonly #symbols: Symbols;
  readonly #head: Int32Array;
  readonly #error = new ErrorBlock();
  readonly #logitsRegister: number;
  #closed = false;

  /**
   * Opens an engine over a model.
   * @throws NativeError: CX_ARG for a limit outside its range, CX_NOMEM
   */
  constructor(model: NativeModel, limits: EngineLimits) {
    const block = new DataView(new ArrayBuffer(LIMITS.bytes));
    block.setInt32(LIMITS.maxRows, limits.maxRows, true);
    block.setInt32(LIMITS.context, limits.context, true);
    block.setInt32(LIMITS.stepTokens, limits.stepTokens, true);
    block.setInt32(LIMITS.maxOut, limits.maxOut, true);
    block.setInt32(LIMITS.threads, limits.threads, true);
    this.#symbols = model.library.symbols;
    this.#logitsRegister = model.logitsRegister;
    const handle = handleOf(
      this.#symbols.cx_engine_open(model.handle, addressOf(block), this.#error.address),
    );
    if (handle === null) throw this.#error.toError();
    this.handle = handle;

    const length = new BigUint64Array(new ArrayBuffer(8));
    const io = handleOf(this.#symbols.cx_engine_io(handle, addressOf(length)));
    if (io === null) throw new NativeError(CODE.state, "the engine has no step block");
    const memory = viewOf(io, Number(length[0]));
    const head = new DataView(memory, 0, IO.bytes);
    this.maxTokens = head.getInt32(IO.maxTokens, true);
    this.maxOut = head.getInt32(IO.maxOut, true);
    this.vocab = head.getInt32(IO.vocab, true);
    const ints = (at: number, n: number): Int32Array =>
      new Int32Array(memory, head.getUint32(at, true), n);
    this.token = ints(IO.tokenAt, this.maxTokens);
    this.pos = ints(IO.posAt, this.maxTokens);
    this.row = ints(IO.rowAt, this.maxTokens);
    this.want = ints(IO.wantAt, this.maxTokens);
    this.out = ints(IO.outAt, this.maxOut);
    this.sampling = new DataView(
      memory,
      head.getUint32(IO.samplingAt, true),
      head.getInt32(IO.maxRows, true) * SAMPLING.bytes,
    );
    this.#head = new Int32Array(memory, 0, IO.bytes / 4);
  }

  /**
   * Runs the first nTokens of the step block; blocks. Returns how many outputs it made.
   * @throws NativeError; CX_INTERRUPTED and all others but CX_NUMERIC leave every row as it was
   */
  step(nTokens: number): number {
    this.#head[IO.nTokens / 4] = nTokens;
    const code = this.#symbols.cx_step(this.handle, this.#error.address);
    if (code !== CODE.ok) throw this.#error.toError(code);
    return this.#head[IO.nOut / 4]!;
  }

  /** Copies the first nTokens positions of row `from` over row `to`. */
  rowCopy(from: number, to: number, nTokens: number): void {
    this.#check(this.#symbols.cx_row_copy(this.handle, from, to, nTokens, this.#error.address));
  }

  /** Cuts a row to nTokens positions. */
  rowTrim(row: number, nTokens: number): void {
    this.#check(this.#symbols.cx_row_trim(this.handle, row, nTokens, this.#error.address));
  }

  /** n floats of a register of the last step, from element `at` of it as one run. */
  read(register: number, at: number, n: number): Float32Array {
    const floats = new Float32Array(new ArrayBuffer(n * 4));
    this.#check(
      this.#symbols.cx_read(this.handle, register, at, addressOf(floats), n, this.#error.address),
    );
    return floats;
  }

  /** Logits of some tokens for output `out` of the last step. */
  logits(out: number, ids: ArrayLike<number>): Float32Array {
    const at = out * this.vocab;
    return Float32Array.from(ids, (id) => this.read(this.#logitsRegister, at + id, 1)[0]!);
  }

  /** Figures since open. */
  counters(): Counters {
    const out = new DataView(new ArrayBuffer(COUNTERS.bytes));
    const code = this.#symbols.cx_counters(this.handle, addressOf(out));
    if (code !== CODE.ok) throw new NativeError(code, "cx_counters refused its argument");
    const at = (offset: number): number => Number(out.getBigUint64(offset, true));
    return {
      steps: at(COUNTERS.steps),
      tokens: at(COUNTERS.tokens),
      outputs: at(COUNTERS.outputs),
      stepNs: at(COUNTERS.stepNs),
      matmulNs: at(COUNTERS.matmulNs),
      attendNs: at(COUNTERS.attendNs),
      sampleNs: at(COUNTERS.sampleNs),
      otherNs: at(COUNTERS.otherNs),
      weightBytes: at(COUNTERS.weightBytes),
      kvRowBytes: at(COUNTERS.kvRowBytes),
    };
  }

  /** Joins the engine's threads and frees it; the typed arrays must not be touched afterwards. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#symbols.cx_engine_close(this.handle);
  }

  #check(code: number): void {
    if (code !== CODE.ok) throw this.#error.toError(code);
  }
}

/** A cx_err that C fills and we read. */
class ErrorBlock {
  readonly #bytes = new Uint8Array(new ArrayBuffer(ERR.bytes));
  readonly address = addressOf(this.#bytes);

  toError(code?: number): NativeError {
    const own = new DataView(this.#bytes.buffer).getInt32(ERR.code, true);
    return new NativeError(code ?? own, cString(this.#bytes.subarray(ERR.message)));
  }
}

function cString(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(end < 0 ? bytes : bytes.subarray(0, end));
}
