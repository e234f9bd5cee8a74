// What the npm scripts run: plain Node without dependencies, because nothing is installed yet on a
// fresh clone. It installs once, finds Bun, builds what is out of date and passes on to it.

import { spawn, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const BINARY = join(ROOT, "dist", "caldrix");
/** What dist/caldrix is made from. */
const SOURCES = [
  "src",
  "csrc",
  "build.ts",
  "scripts/native.ts",
  "package.json",
  "package-lock.json",
];
/** Until its install script has run, the bun package holds a placeholder of a few hundred bytes. */
const LEAST_RUNTIME_BYTES = 1024 * 1024;

async function main() {
  const [command, ...args] = process.argv.slice(2);
  if (Number(process.versions.node.split(".")[0]) < 20) {
    fail(`Node 20 or newer is needed; this is ${process.version}`);
  }
  install();
  const bun = findBun();
  switch (command) {
    case "start":
      build(bun, false);
      return run(BINARY, args.length === 0 ? ["serve"] : args);
    case "build":
      return build(bun, true);
    case "check":
    case "test":
      return run(bun, [join(ROOT, "scripts", "test.ts"), command, ...args]);
    default:
      fail(`scripts/npm.mjs: unknown command ${command}; wanted start, build, check or test`);
  }
}

/** npm ci, unless node_modules already holds what package-lock.json asks for. */
function install() {
  if (isInstalled()) return;
  // Under `npm start` this is the npm that runs us; --ignore-scripts: findBun does the one that counts.
  const npm = process.env.npm_execpath;
  const [file, first] = npm?.endsWith("js") ? [process.execPath, [npm]] : ["npm", []];
  console.error("caldrix: installing dependencies (once)");
  const args = [...first, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
  const done = spawnSync(file, args, { cwd: ROOT, stdio: ["ignore", 2, 2] });
  if (done.status !== 0) fail("npm ci failed; the lines above say why");
}

/** npm writes node_modules/.package-lock.json last, so it names what is really there. */
function isInstalled() {
  const hidden = join(ROOT, "node_modules", ".package-lock.json");
  if (!existsSync(hidden)) return false;
  const there = JSON.parse(readFileSync(hidden, "utf8")).packages;
  const wanted = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8")).packages;
  return Object.entries(wanted).every(([path, entry]) => {
    // Optional packages are those of other machines.
    return path === "" || entry.optional || there[path]?.version === entry.version;
  });
}

function findBun() {
  const placed = join(ROOT, "node_modules", "bun", "bin", "bun.exe");
  const scope = join(ROOT, "node_modules", "@oven");
  const packages = existsSync(scope) ? readdirSync(scope).sort() : [];
  // A glibc and a musl build may both be there; only one of them starts.
  const find = () =>
    [placed, ...packages.map((name) => join(scope, name, "bin", "bun"))].find(
      (path) =>
        existsSync(path) &&
        statSync(path).size > LEAST_RUNTIME_BYTES &&
        spawnSync(path, ["--version"]).status === 0,
    );
  const found = find();
  if (found === placed) return found;
  // The package's own step moves the runtime to where `npx bun` looks for it.
  const script = join(ROOT, "node_modules", "bun", "install.js");
  spawnSync(process.execPath, [script], { cwd: dirname(script), stdio: ["ignore", "ignore", 2] });
  return find() ?? fail(`no Bun runtime in node_modules for ${process.platform} ${process.arch}`);
}

function build(bun, always) {
  if (!always && existsSync(BINARY) && newest(SOURCES) <= statSync(BINARY).mtimeMs) return;
  console.error("caldrix: building dist/caldrix");
  const done = spawnSync(bun, ["build.ts"], { cwd: ROOT, stdio: ["ignore", 2, 2] });
  if (done.status !== 0) fail("the build failed; the lines above say why");
}

function newest(paths) {
  let time = 0;
  for (const path of paths.map((path) => join(ROOT, path))) {
    const stat = statSync(path);
    const below = stat.isDirectory() ? readdirSync(path, { recursive: true }) : [];
    // Directories count too: a deleted file changes only them.
    for (const file of [path, ...below.map((name) => join(path, name))]) {
      time = Math.max(time, statSync(file).mtimeMs);
    }
  }
  return time;
}

/** Runs a program in our place: its terminal, our signals, its exit code. */
function run(file, args) {
  const child = spawn(file, args, { stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
    process.on(signal, () => child.kill(signal));
  }
  child.on("error", (error) => fail(`${file}: ${error.message}`));
  child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
}

function fail(message) {
  console.error(`caldrix: ${message}`);
  process.exit(1);
}

await main();
