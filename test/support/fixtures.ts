// Paths of fixture models; unpacks gzipped weights into dist/fixtures once.

import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";

const FIXTURES = join(import.meta.dir, "../fixtures");
const UNPACKED = join(import.meta.dir, "../../dist/fixtures");

/** Path of a file under test/fixtures. */
export function fixture(...parts: readonly string[]): string {
  return join(FIXTURES, ...parts);
}

/** Directory of a tiny Hugging Face model with its weights unpacked. */
export function fixtureModel(name: string): string {
  const from = fixture("models", name);
  const to = join(UNPACKED, name);
  if (existsSync(join(to, "model.safetensors"))) return to;
  mkdirSync(to, { recursive: true });
  for (const file of readdirSync(from)) {
    if (!file.endsWith(".gz")) copyFileSync(join(from, file), join(to, file));
  }
  const weights = Bun.gunzipSync(readFileSync(join(from, "model.safetensors.gz")));
  const part = join(to, `weights.${process.pid}.part`);
  writeFileSync(part, weights);
  renameSync(part, join(to, "model.safetensors"));
  return to;
}
