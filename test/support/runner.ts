// Runs token lists through the real library and hands back logits: what the parity and equality tests
// stand on. No scheduler: each call fills the step block itself.

import type { LoadedModel } from "../../src/model/types.ts";
import { type EngineLimits, NativeEngine, NativeModel } from "../../src/native/engine.ts";
import type { Library } from "../../src/native/library.ts";

const WANT_NOTHING = 0;
const WANT_LOGITS = 2;

export interface RunnerOptions {
  readonly activations: "fast" | "f32";
  readonly context?: number;
  readonly stepTokens?: number;
  readonly maxRows?: number;
  readonly threads?: number;
}

/** One engine over one model, with rows driven by hand. */
export class Runner {
  readonly model: LoadedModel;
  readonly engine: NativeEngine;
  readonly #native: NativeModel;
  readonly #limits: EngineLimits;

  constructor(
    library: Library,
    model: LoadedModel,
    options: RunnerOptions,
    plan: ArrayBuffer = model.plan,
  ) {
    const threads = options.threads ?? 2;
    const stepTokens = options.stepTokens ?? 64;
    this.model = model;
    this.#native = NativeModel.open(library, plan, {
      backend: "cpu",
      activations: options.activations,
      threads,
    });
    this.#limits = {
      maxRows: options.maxRows ?? 1,
      context: options.context ?? 2048,
      stepTokens,
      maxOut: stepTokens,
      threads,
    };
    this.engine = new NativeEngine(this.#native, this.#limits);
  }

  /**
   * Runs ids at positions from.. of a row in steps of `chunk` tokens.
   * @param onLogits called with the logits of every position at or after `wantFrom`
   */
  run(
    ids: ArrayLike<number>,
    from: number,
    wantFrom: number,
    onLogits: (pos: number, logits: Float32Array) => void,
    options: { readonly row?: number; readonly chunk?: number } = {},
  ): void {
    const engine = this.engine;
    const row = options.row ?? 0;
    const chunk = options.chunk ?? this.#limits.stepTokens;
    for (let at = 0; at < ids.length; at += chunk) {
      const n = Math.min(chunk, ids.length - at);
      for (let i = 0; i < n; i++) {
        engine.token[i] = ids[at + i]!;
        engine.pos[i] = from + at + i;
        engine.row[i] = row;
        engine.want[i] = from + at + i >= wantFrom ? WANT_LOGITS : WANT_NOTHING;
      }
      const nOut = engine.step(n);
      for (let k = 0; k < nOut; k++) {
        const pos = from + at + n - nOut + k;
        onLogits(pos, this.logitsRow(k));
      }
    }
  }

  /** Logits after the last of ids, on a fresh row. */
  last(ids: ArrayLike<number>, options: { row?: number; chunk?: number } = {}): Float32Array {
    let result: Float32Array = new Float32Array(0);
    this.engine.rowTrim(options.row ?? 0, 0);
    this.run(
      ids,
      0,
      ids.length - 1,
      (_, logits) => {
        result = logits;
      },
      options,
    );
    return result;
  }

  /** Logits at every position of ids, on a fresh row. */
  all(ids: ArrayLike<number>, options: { row?: number; chunk?: number } = {}): Float32Array[] {
    const result: Float32Array[] = [];
    this.engine.rowTrim(options.row ?? 0, 0);
    this.run(
      ids,
      0,
      0,
      (_, logits) => {
        result.push(logits);
      },
      options,
    );
    return result;
  }

  /** Logits of output k of the last step. */
  logitsRow(k: number): Float32Array {
    return this.registerRow(this.#native.logitsRegister, k, this.model.vocabSize);
  }

  /** Row `at` of a register of the given width, after the last step. */
  registerRow(register: number, at: number, width: number): Float32Array {
    return this.engine.read(register, at * width, width);
  }

  close(): void {
    this.engine.close();
    this.#native.close();
  }
}
