import { describe, expect, test } from "bun:test";
import { createBodyReaders } from "../../src/api/schema.ts";
import { parseJson } from "../../src/decide/json.ts";
import { ApiError } from "../../src/errors.ts";

const readers = createBodyReaders({ servedName: "m", vocabSize: 300 });
const encoder = new TextEncoder();

/** A body of valid fields and these members, spelled as given. */
function chatText(members: string): string {
  return `{"model":"m","messages":[{"role":"user","content":"hi"}]${members && `,${members}`}}`;
}

function completionText(members: string): string {
  return `{"model":"m","prompt":"hi"${members && `,${members}`}}`;
}

function chat(text: string) {
  return readers.chat(parseJson(encoder.encode(text)));
}

function completion(text: string) {
  return readers.completion(parseJson(encoder.encode(text)));
}

function refusal(run: () => unknown): { param: string | null; message: string } {
  try {
    run();
  } catch (error) {
    if (error instanceof ApiError) {
      expect(error.status).toBe(400);
      return { param: error.param, message: error.message };
    }
    throw error;
  }
  throw new Error("the body was taken");
}

describe("sampling fields", () => {
  const accepted: [string, object][] = [
    ['"temperature":0', { temperature: 0 }],
    ['"temperature":2.5e0', { temperature: 2.5 }],
    ['"temperature":5e-324', { temperature: 5e-324 }],
    ['"temperature":null', { temperature: null }],
    ['"top_k":0', { topK: 0 }],
    ['"top_k":-1', { topK: 0 }],
    ['"top_k":40.0', { topK: 40 }],
    ['"top_k":1e30', { topK: 2 ** 31 - 1 }],
    ['"top_p":1', { topP: 1 }],
    ['"top_p":1e-9', { topP: 1e-9 }],
    ['"min_p":0', { minP: 0 }],
    ['"min_p":1', { minP: 1 }],
    ['"repetition_penalty":0.5', { repetitionPenalty: 0.5 }],
    ['"seed":0', { seed: 0n }],
    ['"seed":-1', { seed: "fresh" }],
    ['"seed":-1.0', { seed: "fresh" }],
    ['"seed":null', { seed: null }],
    ['"seed":18446744073709551615', { seed: 2n ** 64n - 1n }],
  ];
  for (const [members, wanted] of accepted) {
    test(`takes ${members} on both routes`, () => {
      expect(chat(chatText(members)).sampling).toMatchObject(wanted);
      expect(completion(completionText(members)).sampling).toMatchObject(wanted);
    });
  }

  const refused: [string, string, string][] = [
    ["top_p", "2", "must be 0 < p <= 1, got 2"],
    ["top_p", "0", "must be 0 < p <= 1, got 0"],
    ["top_p", "1.01", "must be 0 < p <= 1, got 1.01"],
    ["top_p", '"0.9"', "must be 0 < p <= 1, got a string"],
    ["top_p", "{}", "must be 0 < p <= 1, got an object"],
    ["temperature", "-0.1", "must be a finite number >= 0, got -0.1"],
    ["temperature", "1e999", "must be a finite number >= 0, got 1e999"],
    ["temperature", "[0.5]", "must be a finite number >= 0, got an array"],
    ["temperature", "true", "must be a finite number >= 0, got true"],
    ["top_k", "-2", "must be an integer >= 0, or -1, got -2"],
    ["top_k", "1.5", "must be an integer >= 0, or -1, got 1.5"],
    ["min_p", "-0.01", "must be 0 <= p <= 1, got -0.01"],
    ["min_p", "1.01", "must be 0 <= p <= 1, got 1.01"],
    ["repetition_penalty", "0", "must be a finite number > 0, got 0"],
    ["repetition_penalty", "-1.2", "must be a finite number > 0, got -1.2"],
    ["seed", "-2", "must be an integer from 0 to 18446744073709551615, or -1, got -2"],
    [
      "seed",
      "18446744073709551616",
      "must be an integer from 0 to 18446744073709551615, or -1, got 18446744073709551616",
    ],
    ["seed", "1.5", "must be an integer from 0 to 18446744073709551615, or -1, got 1.5"],
    ["seed", '"7"', "must be an integer from 0 to 18446744073709551615, or -1, got a string"],
  ];
  for (const [param, value, message] of refused) {
    test(`refuses ${param} ${value}, naming the field`, () => {
      const members = `"${param}":${value}`;
      expect(refusal(() => chat(chatText(members)))).toEqual({ param, message });
      expect(refusal(() => completion(completionText(members)))).toEqual({ param, message });
    });
  }
});

describe("fields that are not implemented", () => {
  const neutral = {
    n: ["1", "1.0", "null"],
    presence_penalty: ["0", "-0.0", "null"],
    frequency_penalty: ["0", "null"],
    top_logprobs: ["0", "null"],
    best_of: ["1", "null"],
    logprobs: ["false", "0", "null"],
    logit_bias: ["{}", "null"],
    tools: ["[]", "null"],
    tool_choice: ['"none"', "null"],
    response_format: ['{"type":"text"}', "null"],
  };
  const other = {
    n: ["2", "0", '"1"', "true"],
    presence_penalty: ["0.5", "false"],
    frequency_penalty: ["-0.5"],
    top_logprobs: ["3"],
    best_of: ["2"],
    logprobs: ["true", "1", '"false"'],
    logit_bias: ['{"5":1}', "[]"],
    tools: ['[{"type":"function"}]', "{}"],
    tool_choice: ['"auto"', '{"type":"function"}'],
    response_format: ['{"type":"json_object"}', '{"type":"text","x":1}', '"text"'],
  };
  for (const [name, values] of Object.entries(neutral)) {
    for (const value of values) {
      test(`${name} is taken as ${value}`, () => {
        chat(chatText(`"${name}":${value}`));
        completion(completionText(`"${name}":${value}`));
      });
    }
  }
  for (const [name, values] of Object.entries(other)) {
    for (const value of values) {
      test(`${name} is refused as ${value}`, () => {
        for (const run of [
          () => chat(chatText(`"${name}":${value}`)),
          () => completion(completionText(`"${name}":${value}`)),
        ]) {
          const { param, message } = refusal(run);
          expect(param).toBe(name);
          expect(message).toStartWith(`${name} is not implemented by this server; only `);
        }
      });
    }
  }
});

describe("other fields", () => {
  test("fields nobody names are taken, whatever they hold", () => {
    const members = '"user":"u","metadata":{"a":[1]},"store":true,"x":{"k":1,"k":2}';
    expect(chat(chatText(members)).messages).toHaveLength(1);
  });

  test("max_tokens and its newer name mean the same and may not disagree", () => {
    expect(chat(chatText("")).maxTokens).toBeNull();
    expect(chat(chatText('"max_tokens":null,"max_completion_tokens":5')).maxTokens).toBe(5);
    expect(chat(chatText('"max_tokens":5.0,"max_completion_tokens":5e0')).maxTokens).toBe(5);
    expect(chat(chatText(`"max_tokens":1${"0".repeat(40)}`)).maxTokens).toBe(2 ** 31 - 1);
    const members = '"max_tokens":5,"max_completion_tokens":6';
    expect(refusal(() => chat(chatText(members))).param).toBe("max_completion_tokens");
  });

  for (const name of ["max_tokens", "max_completion_tokens"]) {
    for (const value of ["0", "-1", "1.5", '"5"', "true", "[]"]) {
      test(`refuses ${name} ${value}`, () => {
        const { param, message } = refusal(() => chat(chatText(`"${name}":${value}`)));
        expect(param).toBe(name);
        expect(message).toStartWith("must be an integer >= 1, got ");
      });
    }
  }

  for (const name of ["stream", "return_token_ids", "ignore_eos"]) {
    test(`${name} is a boolean, null or absent`, () => {
      for (const value of ["true", "false", "null"]) chat(chatText(`"${name}":${value}`));
      for (const value of ['"yes"', "1", "[]"]) {
        expect(refusal(() => completion(completionText(`"${name}":${value}`))).param).toBe(name);
      }
    });
  }

  test("stream_options is an object; include_usage a boolean", () => {
    expect(chat(chatText('"stream_options":{"include_usage":true}')).includeUsage).toBe(true);
    expect(chat(chatText('"stream_options":{"include_usage":null,"x":1}')).includeUsage).toBe(
      false,
    );
    expect(refusal(() => chat(chatText('"stream_options":true'))).param).toBe("stream_options");
    expect(refusal(() => chat(chatText('"stream_options":{"include_usage":1}'))).param).toBe(
      "stream_options.include_usage",
    );
  });

  test("stop is one string or up to four, each 1 to 256 bytes", () => {
    const stopOf = (value: unknown) => chat(chatText(`"stop":${JSON.stringify(value)}`)).stop;
    expect(stopOf(null)).toEqual([]);
    expect(stopOf([])).toEqual([]);
    expect(stopOf("~")).toEqual(["~"]);
    expect(stopOf(["a", "b", "c", "d"])).toEqual(["a", "b", "c", "d"]);
    expect(stopOf("é".repeat(128))).toHaveLength(1);
    for (const value of [
      "",
      ["a", ""],
      "x".repeat(257),
      "é".repeat(129),
      [..."abcde"],
      5,
      ["a", 5],
    ]) {
      expect(refusal(() => stopOf(value)).param).toBe("stop");
    }
  });

  for (const value of ['"other"', '"M"', '""', "5", "null"]) {
    test(`refuses the model ${value}`, () => {
      const body = `{"model":${value},"messages":[{"role":"user","content":"hi"}]}`;
      const { param, message } = refusal(() => chat(body));
      expect(param).toBe("model");
      expect(message).toContain('"m"');
      expect(message).not.toContain("other");
    });
  }

  test("refuses a missing model", () => {
    expect(refusal(() => completion('{"prompt":"hi"}')).param).toBe("model");
  });

  for (const body of ["[]", '"hi"', "null", "5"]) {
    test(`refuses the body ${body}`, () => {
      expect(refusal(() => chat(body)).message).toStartWith(
        "the request body must be a JSON object",
      );
    });
  }

  test("refuses a duplicate of a field it reads, at any depth of it", () => {
    const at = (text: string) => refusal(() => chat(text)).param;
    expect(at(chatText('"max_tokens":4,"max_tokens":3'))).toBe("max_tokens");
    expect(at('{"model":"m","messages":[{"role":"user","role":"user","content":"a"}]}')).toBe(
      "messages[0].role",
    );
  });

  test("refuses the other route's prompt field first, and takes it as null", () => {
    expect(refusal(() => chat('{"model":"m","prompt":"hi"}')).param).toBe("prompt");
    expect(refusal(() => completion(completionText('"messages":[]'))).param).toBe("messages");
    chat(chatText('"prompt":null'));
    completion(completionText('"messages":null'));
  });
});

describe("messages", () => {
  const cases: [string, string, string][] = [
    ['"hi"', "messages", "must be an array of messages, got a string"],
    ["null", "messages", "must be an array of messages, got null"],
    ["{}", "messages", "must be an array of messages, got an object"],
    ["[]", "messages", "must hold 1 to 256 messages, got 0"],
    ["[5]", "messages[0]", "must be an object with role and content, got 5"],
    ['[{"content":"a"}]', "messages[0].role", "must be a string, got nothing"],
    [
      '[{"role":"user","content":5}]',
      "messages[0].content",
      "must be a string or an array of parts, got 5",
    ],
    [
      '[{"role":"user"}]',
      "messages[0].content",
      "must be a string or an array of parts, got nothing",
    ],
    [
      '[{"role":"system","content":null}]',
      "messages[0].content",
      "must be a string or an array of parts, got null",
    ],
    ['[{"role":"user","content":[]}]', "messages[0].content", "must hold at least one part"],
    [
      '[{"role":"user","content":["a"]}]',
      "messages[0].content[0]",
      "must be a content part object, got a string",
    ],
    [
      '[{"role":"user","content":[{"text":"a"}]}]',
      "messages[0].content[0]",
      'the type of a content part must be "text"',
    ],
    [
      '[{"role":"user","content":[{"type":"input_audio"}]}]',
      "messages[0].content[0]",
      'the type of a content part must be "text"',
    ],
    [
      '[{"role":"user","content":[{"type":"text","text":5}]}]',
      "messages[0].content[0]",
      "text must be a string, got 5",
    ],
    [
      '[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]',
      "messages[1].content[1]",
      "this model takes text only",
    ],
  ];
  for (const [messages, param, message] of cases) {
    test(`refuses ${messages.slice(0, 60)}`, () => {
      expect(refusal(() => chat(`{"model":"m","messages":${messages}}`))).toEqual({
        param,
        message,
      });
    });
  }

  test("takes 256 messages and refuses 257", () => {
    const body = (n: number) =>
      `{"model":"m","messages":[${'{"role":"user","content":"a"},'.repeat(n - 1)}{"role":"user","content":"a"}]}`;
    expect(chat(body(256)).messages).toHaveLength(256);
    expect(refusal(() => chat(body(257))).message).toBe("must hold 1 to 256 messages, got 257");
  });
});

describe("prompts", () => {
  for (const value of ["5", '{"text":"a"}', "null", "true"]) {
    test(`refuses the prompt ${value}`, () => {
      const { param, message } = refusal(() => completion(`{"model":"m","prompt":${value}}`));
      expect(param).toBe("prompt");
      expect(message).toStartWith("must be a string or an array of token ids, got ");
    });
  }

  for (const item of [
    "-1",
    "300",
    "1000000000",
    "1099511627776",
    "2.5",
    '"a"',
    "[1]",
    "null",
    "1e40",
  ]) {
    test(`refuses the token id ${item}`, () => {
      const { param, message } = refusal(() => completion(`{"model":"m","prompt":[1,${item}]}`));
      expect(param).toBe("prompt");
      expect(message).toStartWith("token id 1 must be an integer from 0 to 299, got ");
    });
  }

  test("refuses a missing prompt", () => {
    expect(refusal(() => completion('{"model":"m"}')).param).toBe("prompt");
  });
});
