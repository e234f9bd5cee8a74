// Opens a model and its engine with the settings that `serve` and `run` share.

import { STRICT_CONTEXT } from "../api/prompt.ts";
import { createEngineClient, type OwnedEngine } from "../engine/client.ts";
import { UsageError } from "../errors.ts";
import { openModel } from "../model/open.ts";
import type { LoadedModel } from "../model/types.ts";
import type { FlagValues } from "./flags.ts";
import { createLoadProgress } from "./progress.ts";
import { type ModelChoice, provideModel } from "./resolve.ts";

/** A longer context is used only when asked for: its attention is slow on a CPU. */
const DEFAULT_CONTEXT = 32_768;
/** Prompt tokens a step: a cancel waits for a step at most, and larger steps are hardly faster. */
const STEP_TOKENS = 128;

export interface Loaded {
  readonly model: LoadedModel;
  readonly engine: OwnedEngine;
}

/**
 * Fetches what is missing, opens the model, starts the engine.
 * @param maxRows sequences side by side
 * @throws UsageError for a context larger than the model's, ModelError and NativeError as they come
 */
async function loadModel(
  choice: ModelChoice,
  flags: FlagValues,
  maxRows: number,
  signal: AbortSignal,
): Promise<Loaded> {
  const { path, name } = await provideModel(choice, signal, true);
  signal.throwIfAborted();
  const model = openModel(path, { name });
  const most = model.contextLength;
  if (flags.context !== null && flags.context > most) {
    throw new UsageError(`--context: ${name} has a context of ${most}, got "${flags.context}"`);
  }
  signal.throwIfAborted();
  const progress = createLoadProgress(process.stderr, name);
  const engine = await createEngineClient({
    model,
    threads: flags.threads ?? 0,
    maxRows,
    context: flags.context ?? Math.min(most, flags.strict ? STRICT_CONTEXT : DEFAULT_CONTEXT),
    stepTokens: STEP_TOKENS,
    activations: flags.activations,
    onProgress: progress.at,
  }).finally(progress.end);
  return { model, engine };
}

/**
 * loadModel that the signal ends at once: null then. Nothing runs yet, so nobody waits for what is
 * still being loaded; the process ends.
 */
export async function loadUnlessStopped(
  choice: ModelChoice,
  flags: FlagValues,
  maxRows: number,
  signal: AbortSignal,
): Promise<Loaded | null> {
  const stopped = new Promise<null>((resolve) => {
    signal.addEventListener("abort", () => resolve(null), { once: true });
  });
  try {
    return await Promise.race([loadModel(choice, flags, maxRows, signal), stopped]);
  } catch (error) {
    if (signal.aborted) return null;
    throw error;
  }
}

/** Sampling settings of the flags; -1 is an old spelling of "no top-k". */
export function samplingOf(flags: FlagValues) {
  return {
    temperature: flags.temperature,
    topK: Math.max(0, flags["top-k"]),
    topP: flags["top-p"],
    minP: flags["min-p"],
    repetitionPenalty: flags["repetition-penalty"],
    seed: flags.seed,
  };
}
