import { describe, expect, test } from "bun:test";
import { errorBody } from "../../src/api/errors.ts";
import { reply } from "../../src/api/reply.ts";
import {
  CHAT_FORMAT,
  COMPLETION_FORMAT,
  dataFrame,
  endFrames,
  modelsBody,
} from "../../src/api/respond.ts";
import { frameStream } from "../../src/api/stream.ts";
import type { GenerationEvent } from "../../src/engine/types.ts";
import { ApiError } from "../../src/errors.ts";

const head = { id: "chatcmpl-1", created: 1792079067, model: "Qwen/Qwen3-0.6B" };

describe("the contract's captured exchanges, byte for byte", () => {
  test("a chat reply", () => {
    const text = "<think>\nOkay, the user is asking for the capital of France. I know";
    const usage = { promptTokens: 15, completionTokens: 16 };
    expect(CHAT_FORMAT.whole(head, text, "length", null, usage)).toBe(
      '{"choices":[{"finish_reason":"length","index":0,"message":{"content":"<think>\\nOkay, the user is asking for the capital of France. I know","role":"assistant"}}],"created":1792079067,"id":"chatcmpl-1","model":"Qwen/Qwen3-0.6B","object":"chat.completion","usage":{"completion_tokens":16,"prompt_tokens":15,"total_tokens":31}}',
    );
  });

  test("a chat reply with token ids", () => {
    const visionHead = { id: "chatcmpl-1", created: 1794140541, model: "smolvlm" };
    const usage = { promptTokens: 82, completionTokens: 2 };
    expect(CHAT_FORMAT.whole(visionHead, " In", "stop", [533, 451], usage)).toBe(
      '{"choices":[{"finish_reason":"stop","index":0,"message":{"content":" In","role":"assistant"},"token_ids":[533,451]}],"created":1794140541,"id":"chatcmpl-1","model":"smolvlm","object":"chat.completion","usage":{"completion_tokens":2,"prompt_tokens":82,"total_tokens":84}}',
    );
  });

  test("a chat stream", () => {
    const frames = CHAT_FORMAT.frames({ ...head, id: "chatcmpl-2", created: 1792079068 });
    expect(
      frames.text("<think>", null) +
        frames.text("\n", null) +
        endFrames(frames, "length", null, null, false),
    ).toBe(
      'data: {"choices":[{"delta":{"content":"<think>"},"finish_reason":null,"index":0}],"created":1792079068,"id":"chatcmpl-2","model":"Qwen/Qwen3-0.6B","object":"chat.completion.chunk"}\n\n' +
        'data: {"choices":[{"delta":{"content":"\\n"},"finish_reason":null,"index":0}],"created":1792079068,"id":"chatcmpl-2","model":"Qwen/Qwen3-0.6B","object":"chat.completion.chunk"}\n\n' +
        'data: {"choices":[{"delta":{},"finish_reason":"length","index":0}],"created":1792079068,"id":"chatcmpl-2","model":"Qwen/Qwen3-0.6B","object":"chat.completion.chunk"}\n\n' +
        "data: [DONE]\n\n",
    );
  });

  test("a completion", () => {
    const usage = { promptTokens: 5, completionTokens: 8 };
    const completionHead = { ...head, id: "cmpl-3", created: 1792079069 };
    const text = " Paris. The capital of Italy is Rome";
    expect(COMPLETION_FORMAT.whole(completionHead, text, "length", null, usage)).toBe(
      '{"choices":[{"finish_reason":"length","index":0,"text":" Paris. The capital of Italy is Rome"}],"created":1792079069,"id":"cmpl-3","model":"Qwen/Qwen3-0.6B","object":"text_completion","usage":{"completion_tokens":8,"prompt_tokens":5,"total_tokens":13}}',
    );
  });

  test("the models and a refusal", () => {
    expect(modelsBody("Qwen/Qwen3-0.6B")).toBe(
      '{"data":[{"id":"Qwen/Qwen3-0.6B","object":"model","owned_by":"inferno"}],"object":"list"}',
    );
    expect(errorBody(new ApiError(400, "must be 0 < p <= 1, got 2", "top_p", "x"), false)).toBe(
      '{"error":{"code":null,"message":"must be 0 < p <= 1, got 2","param":"top_p","type":"invalid_request_error"}}',
    );
  });
});

test("the usage frame has no choices and comes before [DONE]", () => {
  const frames = COMPLETION_FORMAT.frames(head);
  const end = endFrames(frames, "stop", [7], { promptTokens: 1, completionTokens: 2 }, false);
  const tail =
    '"created":1792079067,"id":"chatcmpl-1","model":"Qwen/Qwen3-0.6B","object":"text_completion"';
  expect(end).toBe(
    dataFrame(
      `{"choices":[{"finish_reason":"stop","index":0,"text":"","token_ids":[7]}],${tail}}`,
    ) +
      dataFrame(
        `{"choices":[],${tail},"usage":{"completion_tokens":2,"prompt_tokens":1,"total_tokens":3}}`,
      ) +
      "data: [DONE]\n\n",
  );
});

test("served names are escaped", () => {
  expect(JSON.parse(modelsBody('a"b\\c')).data[0].id).toBe('a"b\\c');
});

describe("frameStream", () => {
  /** Frames that end when `more` says so, counting how many were made. */
  function source(count: number) {
    const state = { made: 0, ended: false };
    async function* frames(): AsyncGenerator<string, void, undefined> {
      try {
        while (state.made < count) yield `frame ${++state.made}`;
      } finally {
        state.ended = true;
      }
    }
    return { state, frames: frames() };
  }

  test("carries every frame in order", async () => {
    const { frames, state } = source(3);
    const text = await new Response(frameStream(frames, () => {})).text();
    expect(text).toBe("frame 1frame 2frame 3");
    expect(state.ended).toBe(true);
  });

  test("makes no more frames than the queue holds when nobody reads", async () => {
    const { frames, state } = source(1000);
    const stream = frameStream(frames, () => {});
    await Bun.sleep(20);
    expect(state.made).toBeLessThanOrEqual(17);
    const before = state.made;
    const reader = stream.getReader();
    for (let i = 0; i < 5; i++) await reader.read();
    await Bun.sleep(5);
    expect(state.made).toBe(before + 5);
    await reader.cancel();
  });

  test("sends a comment while the next frame takes long", async () => {
    const slow = Promise.withResolvers<void>();
    async function* frames(): AsyncGenerator<string, void, undefined> {
      await slow.promise;
      yield "data: late\n\n";
    }
    const reader = frameStream(frames(), () => {}, 5).getReader();
    const read = async () => new TextDecoder().decode((await reader.read()).value);
    expect(await read()).toBe(": waiting\n\n");
    expect(await read()).toBe(": waiting\n\n");
    slow.resolve();
    let next = await read();
    while (next === ": waiting\n\n") next = await read();
    expect(next).toBe("data: late\n\n");
  });

  test("ends the frames and says so when the client goes", async () => {
    const { frames, state } = source(1000);
    let gone = 0;
    const reader = frameStream(frames, () => gone++).getReader();
    await reader.read();
    await reader.cancel();
    expect(gone).toBe(1);
    expect(state.ended).toBe(true);
  });
});

test("reply ends with null when the events end without done", async () => {
  async function* events(): AsyncGenerator<GenerationEvent> {
    yield { kind: "started", cachedTokens: 3 };
    yield { kind: "tokens", ids: [65] };
  }
  const seen: number[] = [];
  const parts = reply(
    events(),
    { push: (id) => String.fromCharCode(id), end: () => "" },
    { push: (text) => ({ text, stopped: false }), end: () => "" },
    10,
    { started: (cached) => seen.push(cached), token: () => seen.push(-1) },
  );
  expect(await parts.next()).toEqual({ done: false, value: { text: "A", ids: [65] } });
  expect(await parts.next()).toEqual({ done: true, value: null });
  expect(seen).toEqual([3, -1]);
});

test("reply makes no more parts than tokens are allowed", async () => {
  async function* events(): AsyncGenerator<GenerationEvent> {
    yield { kind: "started", cachedTokens: 0 };
    yield { kind: "tokens", ids: [1, 2] };
    yield { kind: "done", reason: "length" };
  }
  // Each token shows one letter and may begin a stop string with the next.
  const parts = reply(
    events(),
    { push: (id) => `${id}-`, end: () => "" },
    { push: (text) => ({ text: text.slice(0, 1), stopped: false }), end: () => "-" },
    2,
    { started: () => {}, token: () => {} },
  );
  const texts: string[] = [];
  for await (const { text } of parts) texts.push(text);
  expect(texts).toEqual(["1", "2-"]);
});
