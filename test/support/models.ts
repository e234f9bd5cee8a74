// Paths of the two published models that tests use. The test set-up downloads them into the cache
// directory, in the layout of src/model/fetch.ts; nothing here downloads.
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const FILES = {
  "smollm2-135m-instruct": "SmolLM2-135M-Instruct.Q4_1.gguf",
  "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf",
} as const;

/** Path of a published model's GGUF file. @throws Error when it has not been fetched. */
export function modelPath(name: keyof typeof FILES): string {
  const cache =
    process.env.CALDRIX_CACHE ??
    join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "caldrix");
  const path = join(cache, "models", name, FILES[name]);
  if (!existsSync(path)) throw new Error(`${path} is missing: run npm test, which fetches it`);
  return path;
}
