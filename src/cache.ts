// Where the cache is: the models that were fetched, and the engine library when TMPDIR cannot hold
// it. Called by src/model/fetch.ts and src/native/library.ts.

import { homedir } from "node:os";
import { isAbsolute, join, resolve } from "node:path";

/** Folder of the cache: CALDRIX_CACHE, else caldrix in XDG_CACHE_HOME, else in ~/.cache. */
export function cacheRoot(env: Readonly<Record<string, string | undefined>>): string {
  if (env.CALDRIX_CACHE) return resolve(env.CALDRIX_CACHE);
  // By the XDG rules a relative path counts as unset.
  const xdg = env.XDG_CACHE_HOME && isAbsolute(env.XDG_CACHE_HOME) ? env.XDG_CACHE_HOME : null;
  return join(xdg ?? join(env.HOME || homedir(), ".cache"), "caldrix");
}
