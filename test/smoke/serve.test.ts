// The compiled server from outside: curl, the official OpenAI client, signals.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import OpenAI from "openai";
import { finish, type Served, start, startServe } from "../support/binary.ts";

const MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct";
const QUESTION = { role: "user", content: "What is the capital of France?" } as const;
const RUN_MS = 60_000;

async function curl(...args: string[]): Promise<string> {
  const run = Bun.spawn(["curl", "-sS", "--max-time", "30", ...args], { stderr: "inherit" });
  const text = await run.stdout.text();
  expect(await run.exited).toBe(0);
  return text;
}

describe("caldrix serve", () => {
  let served: Served;
  beforeAll(async () => {
    // The reference mode, in which the answer is known.
    served = await startServe(["--activations", "f32"]);
  }, RUN_MS);
  afterAll(() => served.process.kill("SIGKILL"));

  test("is ready and names the model", async () => {
    expect(await curl(`${served.url}/readyz`)).toBe("ok");
    expect(JSON.parse(await curl(`${served.url}/v1/models`)).data[0].id).toBe(MODEL);
  });

  test(
    "prints a curl command that works as it stands",
    async () => {
      const command = served.greeting.slice(served.greeting.indexOf("curl "));
      const run = Bun.spawn(["sh", "-c", command], { stderr: "ignore" });
      const body = JSON.parse(await run.stdout.text());
      expect(body.choices[0].message.content).toContain("Tokyo");
    },
    RUN_MS,
  );

  test(
    "streams a chat to the official client",
    async () => {
      const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: "none", maxRetries: 0 });
      const stream = await client.chat.completions.create({
        model: MODEL,
        messages: [QUESTION],
        max_tokens: 12,
        stream: true,
        stream_options: { include_usage: true },
      });
      let text = "";
      let tokens = 0;
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? "";
        tokens = chunk.usage?.completion_tokens ?? tokens;
      }
      expect(text).toContain("Paris");
      expect(tokens).toBeGreaterThan(0);
    },
    RUN_MS,
  );

  test(
    "a second server on the same port says so and ends with 1",
    async () => {
      const { port } = new URL(served.url);
      const { code, stderr } = await finish(start(["serve", "--port", port]));
      expect(code).toBe(1);
      expect(stderr).toContain(`port ${port} on localhost is in use`);
    },
    RUN_MS,
  );

  test(
    "SIGTERM lets a running stream finish and exits with 0",
    async () => {
      const body = { model: MODEL, messages: [QUESTION], max_tokens: 40, stream: true };
      const answer = await fetch(`${served.url}/v1/chat/completions`, {
        method: "POST",
        body: JSON.stringify({ ...body, temperature: 0 }),
      });
      served.process.kill("SIGTERM");
      expect(await answer.text()).toEndWith("data: [DONE]\n\n");
      expect(await served.process.exited).toBe(0);
    },
    RUN_MS,
  );
});

describe("stopping", () => {
  test(
    "a second signal ends at once with 1",
    async () => {
      const { process: child, url } = await startServe([]);
      const body = {
        model: MODEL,
        prompt: "One,",
        max_tokens: 8000,
        ignore_eos: true,
        stream: true,
      };
      const answer = await fetch(`${url}/v1/completions`, {
        method: "POST",
        body: JSON.stringify(body),
      });
      child.kill("SIGINT");
      await Bun.sleep(400); // signals closer together than 250 ms are one
      expect(child.exitCode).toBeNull();
      child.kill("SIGINT");
      expect(await child.exited).toBe(1);
      await answer.text().catch(() => {});
    },
    RUN_MS,
  );

  test("SIGTERM while the model loads exits with 0", async () => {
    const child = start(["serve", "--port", "0"]);
    await Bun.sleep(100); // early enough to hit the load, late enough for the handlers
    child.kill("SIGTERM");
    const code = await child.exited;
    expect([0, 143]).toContain(code);
  });
});
