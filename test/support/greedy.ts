// Prints 32 greedy tokens of a model in the fast mode; a process of its own because the kernel table is
// chosen once. Usage: bun greedy.ts MODEL

import { openModel } from "../../src/model/open.ts";
import { loadLibrary } from "../../src/native/library.ts";
import { argmax } from "./golden.ts";
import { Runner } from "./runner.ts";

const path = process.argv[2];
if (path === undefined) throw new Error("usage: greedy.ts MODEL");
const runner = new Runner(await loadLibrary(), await openModel(path), { activations: "fast" });
const ids = [5, 77, 130, 9, 200];
const prompt = ids.length;
while (ids.length < prompt + 32) ids.push(argmax(runner.last(ids)));
runner.close();
process.stdout.write(ids.slice(prompt).join(" "));
