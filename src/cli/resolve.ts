// From the MODEL of a command line to a file or folder on this machine, fetched when it is missing.

import { basename, resolve } from "node:path";
import { ModelError } from "../errors.ts";
import { CATALOG, type CatalogModel, DEFAULT_MODEL, findModel } from "../model/catalog.ts";
import { cachedModel, fetchModel } from "../model/fetch.ts";
import { look } from "../model/file.ts";
import { nearest } from "./nearest.ts";
import { createProgress } from "./progress.ts";

/** What MODEL can mean. */
export type ModelChoice =
  | { readonly kind: "catalog"; readonly model: CatalogModel }
  | { readonly kind: "path"; readonly path: string; readonly name: string };

/** A model on this machine, ready for openModel. */
export interface LocalModel {
  readonly path: string;
  /** The id it is served as. */
  readonly name: string;
}

/** A catalogue name, a folder or a .gguf file; absent: the default model; null when it is neither. */
export function chooseModel(word: string | undefined): ModelChoice | null {
  const known = findModel(word ?? DEFAULT_MODEL);
  if (known) return { kind: "catalog", model: known };
  if (word === undefined || word === "") return null;
  const path = resolve(word);
  const stat = look(path);
  if (stat?.isDirectory()) return { kind: "path", path, name: basename(path) };
  if (stat?.isFile()) return { kind: "path", path, name: basename(path).replace(/\.gguf$/i, "") };
  return null;
}

/** The refusal of a word that names no model. */
export function unknownModel(word: string): ModelError {
  if (word === "") return new ModelError("the name of the model is empty");
  if (/[/\\]|\.gguf$/i.test(word)) {
    return new ModelError(`no model at ${word}: wanted a directory or a .gguf file`);
  }
  const close = nearest(
    word,
    CATALOG.map((model) => model.name),
  );
  return new ModelError(
    close.length > 0
      ? `unknown model ${word}; did you mean ${close.join(" or ")}?`
      : `unknown model ${word}; wanted a name of \`caldrix list\`, a directory or a .gguf file`,
  );
}

/**
 * Makes sure that a chosen model is on this machine.
 * @param toRun refuse, before anything is fetched, what this release cannot run
 */
export async function provideModel(
  choice: ModelChoice,
  signal: AbortSignal,
  toRun: boolean,
): Promise<LocalModel> {
  if (choice.kind === "path") return { path: choice.path, name: choice.name };
  const { model } = choice;
  if (toRun && model.needs !== undefined) {
    throw new ModelError(`${model.name} needs ${model.needs}, which this release does not have`);
  }
  const found = cachedModel(model, process.env);
  const path = found
    ? found.path
    : await fetchModel(model, {
        env: process.env,
        progress: createProgress(process.stderr),
        say: (line) => process.stderr.write(`caldrix: ${line}\n`),
        signal,
      });
  return { path, name: model.served };
}
