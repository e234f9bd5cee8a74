// Compiles the C library: every csrc file once, the kernels once for each instruction set, then one
// shared library. Knows nothing of TypeScript or of the executable. Called by build.ts only.

import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename, dirname, join, relative } from "node:path";

/** A build step that failed; the message says which tool, on what, and what it printed. */
export class BuildError extends Error {}

const ROOT = dirname(import.meta.dir);
const DIST = join(ROOT, "dist");
/** More jobs than cores only fight over memory; more than 8 never had work to do. */
const MAX_JOBS = 8;
/** A test program that prints nothing for this long hangs (all of them end within seconds). */
const TEST_TIMEOUT_MS = 180_000;

const WARNINGS = [
  "-Wall",
  "-Wextra",
  "-Werror",
  "-Wshadow",
  "-Wvla",
  "-Wstrict-prototypes",
  "-Wmissing-prototypes",
  "-Wpointer-arith",
];
const COMMON = ["-std=c17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"];
/** Files that turn sizes from outside into memory: a silent narrowing there is a hole. */
const STRICT_CONVERSION = new Set(["api.c", "plan.c", "model.c"]);

/** Instruction sets by machine: each is one object with these flags, exporting one table. */
const ISAS: Record<string, Record<string, readonly string[]>> = {
  x64: {
    scalar: [],
    avx2: ["-mavx2", "-mfma", "-mf16c"],
    avx512: [..."f bw vl dq".split(" ").map((x) => `-mavx512${x}`), "-mfma", "-mf16c"],
    avx512vnni: [..."f bw vl dq vnni".split(" ").map((x) => `-mavx512${x}`), "-mfma", "-mf16c"],
  },
  arm64: { scalar: [], neon: [] },
};

interface Variant {
  readonly name: string;
  readonly flags: readonly string[];
  /** For the kernels besides. */
  readonly kernelFlags?: readonly string[];
}
/** The shipped objects. -g1: line tables only, split off after linking. */
const RELEASE: Variant = { name: "release", flags: ["-O3", "-g1"] };
/**
 * Sanitizers see -O1 code; -g1 because gcc takes minutes to follow variables through it. What gcc
 * warns of in code that it instruments itself is no error.
 */
const SANITIZED = ["-O1", "-g1", "-Wno-error", "-fno-omit-frame-pointer"];
/**
 * Checks that only cost the kernels time: what goes wrong there is an address, which the address
 * sanitizer sees whatever arithmetic led to it; their arrays outlive no scope.
 */
const KERNELS_UNCHECKED = [
  "-fno-sanitize=pointer-overflow,null",
  "-fno-sanitize-address-use-after-scope",
];
const TESTS: readonly Variant[] = [
  RELEASE,
  {
    name: "asan",
    flags: [...SANITIZED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    kernelFlags: KERNELS_UNCHECKED,
  },
  { name: "tsan", flags: [...SANITIZED, "-fsanitize=thread"] },
];

interface Unit {
  readonly source: string;
  readonly object: string;
  readonly flags: readonly string[];
  /** The one symbol it must export, for kernel objects. */
  readonly exports?: string;
}

/** Builds dist/libcaldrix.so and returns its path. */
export async function buildLibrary(): Promise<string> {
  const cc = compiler();
  const units = libraryUnits(RELEASE);
  await compileAll(cc, units);
  for (const unit of units) if (unit.exports) checkKernelObject(unit);
  const out = join(DIST, "libcaldrix.so");
  const objects = units.map((unit) => unit.object);
  const stamp = join(objectDir(RELEASE), "link.cmd");
  const same = existsSync(stamp) && readFileSync(stamp, "utf8") === objects.join(" ");
  if (same && existsSync(out) && objects.every((object) => mtime(object) <= mtime(out))) return out;
  const linked = temporary(out);
  await tool([
    cc,
    "-shared",
    "-Wl,-z,defs,-z,relro,-z,now,-soname,libcaldrix.so",
    ...objects,
    ...["-o", linked, "-lm", "-pthread"],
  ]);
  checkLibrary(linked);
  await splitDebugInfo(linked, `${out}.debug`);
  renameSync(linked, out);
  await Bun.write(stamp, objects.join(" "));
  return out;
}

/** What the C test programs counted, all variants together. */
export interface TestCount {
  passed: number;
  failed: number;
}

/** Builds and runs every program of csrc/test: as shipped, under ASan+UBSan, under TSan. */
export async function runTests(only: string | undefined): Promise<TestCount> {
  const names = TESTS.map((variant) => variant.name);
  if (only !== undefined && !names.includes(only)) {
    throw new BuildError(
      `no variant ${only} of the C tests; wanted ${names.join(", ")} or nothing`,
    );
  }
  const cc = compiler();
  const count: TestCount = { passed: 0, failed: 0 };
  for (const variant of TESTS) {
    if (only !== undefined && variant.name !== only) continue;
    const seconds = stopwatch();
    // Cold, the kernels under a sanitizer take a minute: silence would look like a hang.
    console.log(`== C tests, ${variant.name}: compiling`);
    const units = libraryUnits(variant);
    const dir = objectDir(variant);
    // Benchmarks measure; what they print is not a count.
    const sources = list(join(ROOT, "csrc", "test")).filter((name) => !name.endsWith("_bench.c"));
    const programs = sources.map((source): Unit => {
      return { source, object: join(dir, `test_${stem(source)}.o`), flags: variant.flags };
    });
    if (programs.length === 0) throw new BuildError("csrc/test holds no test program");
    await compileAll(cc, [...units, ...programs]);
    // An archive, so that a program of one part needs only that part.
    const archive = join(dir, "libcaldrix.a");
    const packed = temporary(archive);
    await tool(["ar", "rcs", packed, ...units.map((unit) => unit.object)]);
    renameSync(packed, archive);
    console.log(`== C tests, ${variant.name}: compiled in ${seconds()} s, running`);
    for (const program of programs) {
      const exe = join(dir, stem(program.source));
      const linked = temporary(exe);
      await tool(
        [cc, ...variant.flags, program.object, archive].concat("-o", linked, "-lm", "-pthread"),
      );
      renameSync(linked, exe);
      await runProgram(exe, variant.name, count);
    }
    console.log(`== C tests, ${variant.name}: done, ${seconds()} s`);
  }
  return count;
}

async function runProgram(exe: string, variant: string, count: TestCount): Promise<void> {
  const name = `${basename(exe)} (${variant})`;
  // setarch -R: the thread sanitizer of gcc 12 refuses the wide address randomisation of new kernels.
  const fixed = variant === "tsan" && Bun.which("setarch") ? ["setarch", "-R"] : [];
  const run = Bun.spawn([...fixed, exe], {
    cwd: ROOT,
    stdout: "pipe",
    stderr: "pipe",
    timeout: TEST_TIMEOUT_MS,
  });
  const [stdout, stderr] = await Promise.all([run.stdout.text(), run.stderr.text()]);
  const code = await run.exited;
  const line = stdout.match(/(\d+) passed, (\d+) failed\s*$/);
  const passed = Number(line?.[1] ?? 0);
  // A program that dies, or says nothing, is one failure more than it counted.
  const counted = Number(line?.[2] ?? 0);
  const failed = code !== 0 && counted === 0 ? 1 : line === null ? Math.max(1, counted) : counted;
  count.passed += passed;
  count.failed += failed;
  console.log(`${name}: ${passed} passed, ${failed} failed${code === 0 ? "" : `, exit ${code}`}`);
  if (failed > 0 || code !== 0) console.log(`${stdout}${stderr}`.trimEnd());
}

/** Returns what says how many seconds have passed. */
function stopwatch(): () => string {
  const started = performance.now();
  return () => ((performance.now() - started) / 1000).toFixed(1);
}

function compiler(): string {
  const wanted = process.env.CC;
  const found = (wanted ? [wanted] : ["gcc", "cc", "clang"]).find((name) => Bun.which(name));
  if (found) return found;
  const looked = wanted ? `CC=${wanted}` : "gcc, cc and clang";
  throw new BuildError(
    `no C compiler: looked for ${looked} in PATH. Install one (Debian and Ubuntu: apt-get install gcc libc6-dev).`,
  );
}

function objectDir(variant: Variant): string {
  const dir = join(DIST, "obj", variant.name);
  mkdirSync(dir, { recursive: true });
  return dir;
}

function libraryUnits(variant: Variant): Unit[] {
  const isas = ISAS[process.arch];
  if (!isas) throw new BuildError(`no kernels for ${process.arch}: wanted x64 or arm64`);
  const dir = objectDir(variant);
  const units: Unit[] = [];
  for (const folder of ["csrc", "csrc/cpu"]) {
    for (const source of list(join(ROOT, folder))) {
      if (basename(source) === "kernels.c") continue;
      const strict = STRICT_CONVERSION.has(basename(source)) ? ["-Wconversion"] : [];
      const object = join(dir, `${stem(source)}.o`);
      units.push({ source, object, flags: [...variant.flags, ...strict] });
    }
  }
  const kernels = join(ROOT, "csrc", "cpu", "kernels.c");
  for (const [isa, flags] of Object.entries(isas)) {
    units.push({
      source: kernels,
      object: join(dir, `kernels_${isa}.o`),
      flags: [...variant.flags, ...(variant.kernelFlags ?? []), ...flags, `-DCX_ISA=${isa}`],
      exports: `cx_kernels_${isa}`,
    });
  }
  return units;
}

async function compileAll(cc: string, units: readonly Unit[]): Promise<void> {
  const waiting = [...units];
  const errors: string[] = [];
  const worker = async () => {
    for (let unit = waiting.shift(); unit; unit = waiting.shift()) {
      try {
        await compile(cc, unit);
      } catch (error) {
        errors.push(String(error instanceof Error ? error.message : error));
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(MAX_JOBS, availableParallelism()) }, worker));
  if (errors.length > 0) throw new BuildError(errors.join("\n"));
}

async function compile(cc: string, unit: Unit): Promise<void> {
  if (!existsSync(unit.source))
    throw new BuildError(`${relative(ROOT, unit.source)}: no such file`);
  const command = [cc, ...COMMON, ...WARNINGS, ...unit.flags, `-I${join(ROOT, "csrc")}`];
  const stamp = `${unit.object}.cmd`;
  if (isFresh(unit, stamp, command.join(" "))) return;
  const object = temporary(unit.object);
  const deps = `${object}.d`;
  await tool([...command, "-MMD", "-MF", deps, "-c", unit.source, "-o", object]);
  renameSync(deps, `${unit.object}.d`);
  renameSync(object, unit.object);
  await Bun.write(stamp, command.join(" "));
}

/** An object is fresh when its command is the same and no file it was made from is newer. */
function isFresh(unit: Unit, stamp: string, command: string): boolean {
  const deps = `${unit.object}.d`;
  if (![unit.object, deps, stamp].every((file) => existsSync(file))) return false;
  if (readFileSync(stamp, "utf8") !== command) return false;
  const made = mtime(unit.object);
  const files = readFileSync(deps, "utf8").replace(/\\\n/g, " ").split(/\s+/).slice(1);
  return files.every((file) => file === "" || (existsSync(file) && mtime(file) < made));
}

/** A kernel object that exported a second symbol could lend AVX code to a machine without it. */
function checkKernelObject(unit: Unit): void {
  const names = exported(["-g", "--defined-only", unit.object]);
  if (names.length === 1 && names[0] === unit.exports) return;
  throw new BuildError(
    `${relative(ROOT, unit.object)} must export ${unit.exports} alone, but exports: ${names.join(", ") || "nothing"}`,
  );
}

function checkLibrary(library: string): void {
  const header = readFileSync(join(ROOT, "csrc", "caldrix.h"), "utf8");
  const wanted = [...header.matchAll(/^CX_API [^;(]*?(cx_\w+)\(/gm)].map((m) => m[1] ?? "").sort();
  const found = exported(["-D", "--defined-only", library]).sort();
  if (wanted.join() === found.join()) return;
  const missing = wanted.filter((name) => !found.includes(name)).join(", ");
  const extra = found.filter((name) => !wanted.includes(name)).join(", ");
  throw new BuildError(
    `libcaldrix.so must export the ${wanted.length} functions of caldrix.h; missing: ${missing || "none"}; not in it: ${extra || "none"}`,
  );
}

function exported(args: string[]): string[] {
  const nm = Bun.spawnSync(["nm", ...args]);
  if (!nm.success) throw new BuildError(`nm ${args.join(" ")}: ${nm.stderr.toString().trim()}`);
  const lines = nm.stdout.toString().trim().split("\n");
  return lines.map((line) => line.split(" ").at(-1) ?? "").filter((name) => name !== "");
}

/** Line tables go to a file beside the library: debuggers find it, the executable stays small. */
async function splitDebugInfo(library: string, debug: string): Promise<void> {
  if (!Bun.which("objcopy")) return;
  await tool(["objcopy", "--only-keep-debug", library, debug]);
  await tool(["objcopy", "--strip-debug", `--add-gnu-debuglink=${debug}`, library]);
}

async function tool(command: string[]): Promise<void> {
  const run = Bun.spawn(command, { cwd: ROOT, stdout: "pipe", stderr: "pipe" });
  const [stdout, stderr] = await Promise.all([run.stdout.text(), run.stderr.text()]);
  if ((await run.exited) === 0) return;
  throw new BuildError(`${command.join(" ")}\n${stdout}${stderr}`.trimEnd());
}

/** Two builds may run at once: each writes its own file and renames it into place. */
function temporary(path: string): string {
  return `${path}.${process.pid}.tmp`;
}

function list(dir: string): string[] {
  if (!existsSync(dir)) return [];
  const names = readdirSync(dir).filter((name) => name.endsWith(".c"));
  return names.sort().map((name) => join(dir, name));
}

function stem(path: string): string {
  return basename(path, ".c");
}

function mtime(path: string): number {
  return statSync(path).mtimeMs;
}
