// `caldrix pull`, `caldrix list` and `caldrix debug plan`: models without an engine.

import { cacheRoot } from "../cache.ts";
import { ModelError, UsageError } from "../errors.ts";
import { CATALOG, type CatalogModel } from "../model/catalog.ts";
import { cachedModel } from "../model/fetch.ts";
import { openModel } from "../model/open.ts";
import { printPlan } from "../model/plan-format.ts";
import { print } from "./output.ts";
import { megabytes } from "./progress.ts";
import { chooseModel, provideModel, unknownModel } from "./resolve.ts";
import { EXIT_INTERRUPTED, stopOnSignal } from "./signals.ts";

/** Fetches a catalogue model; prints where it lies. */
export async function pull(args: readonly string[]): Promise<number> {
  const [word] = args;
  const choice = chooseModel(word);
  if (choice?.kind === "path") throw new ModelError(`${word} is on this machine: nothing to fetch`);
  if (!choice) throw unknownModel(word ?? "");
  const stop = stopOnSignal();
  try {
    const { path } = await provideModel(choice, stop.signal, false);
    await print(`${path}\n`);
    return 0;
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    process.stderr.write("\ncaldrix: stopped\n");
    return stop.by() === "SIGINT" ? EXIT_INTERRUPTED : 1;
  } finally {
    stop.unwatch();
  }
}

/** The catalogue as a table, with what is in the cache. */
export async function list(): Promise<number> {
  const rows = CATALOG.map((model) => {
    const cached = cachedModel(model, process.env);
    return [
      model.name,
      model.format,
      cached ? megabytes(cached.bytes) : sizeToCome(model),
      cached ? "cached" : "",
      model.needs === undefined ? model.note : `${model.note} (not yet: needs ${model.needs})`,
    ];
  });
  const table = [["NAME", "FORMAT", "SIZE", "", "NOTE"], ...rows];
  const widths = [0, 1, 2, 3].map((i) => Math.max(...table.map((row) => row[i]?.length ?? 0)));
  const lines = table.map((row) => {
    return row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join("  ")
      .trimEnd();
  });
  await print(`${lines.join("\n")}\n\nCache: ${cacheRoot(process.env)}\n`);
  return 0;
}

/** What a model will take in the cache: the same number as when it is there, if that is known. */
export function sizeToCome({ sources: [first], about }: CatalogModel): string {
  if (first?.kind === "pypi") return megabytes(first.bytes);
  return about === undefined ? "unknown" : `about ${megabytes(about).replace(".0 ", " ")}`;
}

/** `debug plan MODEL`: the program that the engine runs for a model. */
export async function debug(args: readonly string[]): Promise<number> {
  const [what, word] = args;
  if (what !== "plan") {
    throw new UsageError(`caldrix debug: wanted plan MODEL, got ${what ?? "nothing"}`);
  }
  const choice = chooseModel(word);
  if (!choice) throw unknownModel(word ?? "");
  const { path, name } = await provideModel(choice, new AbortController().signal, true);
  const model = openModel(path, { name });
  await print(printPlan(model.plan));
  return 0;
}
