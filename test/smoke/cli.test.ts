// The compiled executable from outside: what needs no model, and `run` with the default one.
import { describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { version } from "../../package.json";
import { BINARY, environment, finish, start } from "../support/binary.ts";
import { modelPath } from "../support/models.ts";

/** A run loads the model and answers; this machine may be busy. */
const RUN_MS = 60_000;
const QUESTION = "What is the capital of France?";
/** The answer is known in the reference mode; with 8-bit inputs a small model may say something else. */
const KNOWN = ["--activations", "f32", "--max-tokens", "12"];

describe("caldrix", () => {
  test("--version prints version and build", async () => {
    const { code, stdout } = await finish(start(["--version"]));
    expect(code).toBe(0);
    expect(stdout).toMatch(
      new RegExp(`^caldrix ${version.replaceAll(".", "\\.")} \\([\\w-]+\\)\n$`),
    );
  });

  test("--help goes to stdout, a wrong flag to stderr with code 2", async () => {
    const help = await finish(start(["--help"]));
    expect(help).toMatchObject({ code: 0, stderr: "" });
    expect(help.stdout).toContain("caldrix serve [MODEL]");
    const wrong = await finish(start(["serve", "--prot", "1"]));
    expect(wrong).toMatchObject({ code: 2, stdout: "" });
    expect(wrong.stderr).toStartWith("caldrix: unknown flag --prot of caldrix serve");
  });

  test.each(["serve", "run", "pull"])(
    "%s of an unknown model is one line and code 1",
    async (c) => {
      const { code, stdout, stderr } = await finish(start([c, "smolm2-135m"]));
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toMatch(/^caldrix: unknown model smolm2-135m; did you mean smollm2-135m.*\n$/);
    },
  );

  test("a model that this release cannot run is refused before it is fetched", async () => {
    const { code, stderr } = await finish(start(["run", "smolvlm-256m", "hi"]));
    expect(code).toBe(1);
    expect(stderr).toContain("smolvlm-256m needs the vision tower");
  });

  test("a full disk behind stdout is one line and code 1, a reader that has left is nothing", async () => {
    const shell = (script: string) =>
      Bun.spawnSync(["bash", "-o", "pipefail", "-c", script, BINARY], { env: environment() });
    const full = shell('"$0" list > /dev/full');
    expect(full.exitCode).toBe(1);
    expect(full.stderr.toString()).toMatch(/^caldrix: cannot write to stdout: .*\n$/);
    const closed = shell('"$0" list | true');
    expect({ code: closed.exitCode, stderr: closed.stderr.toString() }).toEqual({
      code: 0,
      stderr: "",
    });
  });

  test("list names the default model and says that it is cached", async () => {
    const { code, stdout } = await finish(start(["list"]));
    expect(code).toBe(0);
    expect(stdout).toMatch(/^smollm2-135m-instruct .* cached /m);
  });

  test("pull of a cached model prints its path", async () => {
    const { code, stdout, stderr } = await finish(start(["pull"]));
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toBe(`${modelPath("smollm2-135m-instruct")}\n`);
  });

  test("debug plan prints the program", async () => {
    const { code, stdout } = await finish(start(["debug", "plan", "smollm2-135m-instruct"]));
    expect(code).toBe(0);
    expect(stdout).toContain("vocab 49152");
  });
});

describe("caldrix run", () => {
  test(
    "answers a prompt, with and without the model's name",
    async () => {
      const short = await finish(start(["run", QUESTION, ...KNOWN]));
      expect(short).toMatchObject({ code: 0, stderr: "" });
      expect(short.stdout).toContain("Paris");
      expect(short.stdout).toEndWith("\n");
      const long = await finish(start(["run", "smollm2-135m-instruct", QUESTION, ...KNOWN]));
      expect(long.stdout).toBe(short.stdout);
    },
    2 * RUN_MS,
  );

  test(
    "answers with the default settings, the same each time",
    async () => {
      const first = await finish(start(["run", QUESTION, "--max-tokens", "12"]));
      expect(first).toMatchObject({ code: 0, stderr: "" });
      expect(first.stdout.trim().length).toBeGreaterThan(5);
      expect((await finish(start(["run", QUESTION, "--max-tokens", "12"]))).stdout).toBe(
        first.stdout,
      );
    },
    2 * RUN_MS,
  );

  test(
    "takes the prompt from stdin",
    async () => {
      const child = start(["run", ...KNOWN], environment(), new Blob([`${QUESTION}\n`]));
      const { code, stdout } = await finish(child);
      expect(code).toBe(0);
      expect(stdout).toContain("Paris");
    },
    RUN_MS,
  );

  test("without a prompt and without a terminal says what is missing", async () => {
    const { code, stderr } = await finish(start(["run"]));
    expect(code).toBe(2);
    expect(stderr).toContain("no prompt");
  });

  test(
    "works with a TMPDIR that is not there and a HOME that cannot be written to",
    async () => {
      const cache = mkdtempSync(join(tmpdir(), "caldrix-cache-"));
      symlinkSync(join(modelPath("smollm2-135m-instruct"), "../.."), join(cache, "models"));
      const env = environment({ TMPDIR: "/nonexistent/tmp", HOME: "/proc", CALDRIX_CACHE: cache });
      delete env.XDG_CACHE_HOME;
      const { code, stdout, stderr } = await finish(start(["run", QUESTION, ...KNOWN], env));
      expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
      expect(stdout).toContain("Paris");
      expect(readdirSync(cache).sort()).toEqual(["lib", "models"]);
      rmSync(cache, { recursive: true });
    },
    RUN_MS,
  );

  test("a cache that cannot be made is one line that names it, and code 1", async () => {
    const env = environment({ CALDRIX_CACHE: "/proc/foo" });
    const { code, stdout, stderr } = await finish(start(["run", "hi there"], env));
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(
      /^caldrix: cannot write \/proc\/foo\/models\/[^\n]* can be made there .*\n$/,
    );
  });

  test(
    "Ctrl-C while it answers ends it with 130",
    async () => {
      const child = start(["run", "Count from one to one thousand.", "--max-tokens", "5000"]);
      const reader = child.stdout.getReader();
      await reader.read();
      child.kill("SIGINT");
      expect(await child.exited).toBe(130);
    },
    RUN_MS,
  );
});
