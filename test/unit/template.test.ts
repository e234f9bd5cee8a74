import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { ApiError, ModelError } from "../../src/errors.ts";
import { parseTemplate, RaisedByTemplate, runTemplate } from "../../src/text/jinja.ts";
import { Callable, fromJs, type Value } from "../../src/text/py-values.ts";
import { strftime } from "../../src/text/strftime.ts";
import { createTemplate } from "../../src/text/template.ts";
import type { ChatMessage } from "../../src/text/types.ts";

const read = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../fixtures/templates/${name}`, import.meta.url), "utf8"));

interface Outcome {
  readonly ok?: string;
  readonly error?: string;
}

const NOW = new Date(2026, 10, 29, 14, 5, 9);
const TOKENS = { bos: "<s>", eos: "</s>" };
const user = (content: string): ChatMessage => ({ role: "user", content });
const system = (content: string): ChatMessage => ({ role: "system", content });
const assistant = (content: string): ChatMessage => ({ role: "assistant", content });

function caught(action: () => unknown): unknown {
  try {
    action();
  } catch (error) {
    return error;
  }
  return null;
}

describe("expressions print as in Python", () => {
  const golden = read("expressions.json") as {
    context: Record<string, unknown>;
    cases: ({ template: string } & Outcome)[];
  };
  const variables = new Map<string, Value>(
    Object.entries(golden.context).map(([name, value]) => [name, fromJs(value)]),
  );
  // JSON has neither a float 1.0 nor an exact long integer.
  variables.set("x", 1.0);
  variables.set("big", 12345678901234567890n);
  variables.set(
    "raise_exception",
    new Callable("raise_exception", () => {
      throw new RaisedByTemplate("no");
    }),
  );
  variables.set(
    "strftime_now",
    new Callable("strftime_now", ({ list }) => strftime(NOW, list[0] as string)),
  );
  test.each(golden.cases.map((c) => [c.template, c] as const))("%j", (template, wanted) => {
    const run = () => runTemplate(parseTemplate(template), variables, 1_000_000);
    if (wanted.ok === undefined) expect(run).toThrow();
    else expect(run()).toBe(wanted.ok);
  });
});

describe("prompts equal those of transformers", () => {
  const golden = read("conversations.json") as {
    templates: Record<string, string>;
    cases: ({ template: string; messages: ChatMessage[]; thinking: boolean | null } & Outcome)[];
  };
  for (const [name, text] of Object.entries(golden.templates)) {
    test(name, () => {
      const template = createTemplate(text, TOKENS, name, () => NOW);
      const cases = golden.cases.filter((c) => c.template === name);
      expect(cases.length).toBeGreaterThan(10);
      for (const { messages, thinking, ok } of cases) {
        // What becomes of a refused system message is tested below.
        if (ok === undefined && messages[0]?.role === "system") continue;
        const options = thinking === null ? {} : { thinking };
        if (ok === undefined) expect(() => template.render(messages, options)).toThrow(ApiError);
        else
          expect(template.render(messages, options)).toEqual({ prompt: ok, systemFolded: false });
      }
    });
  }
});

describe("roles", () => {
  const strict = `{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' %}<{{ m.role }}>{{ m.content }}
{% else %}{{ raise_exception('Only user and assistant!') }}{% endif %}{% endfor %}`;
  const skipping =
    "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system', 'tool'] %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
  const alternating = `{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ m.content }}{% endfor %}`;

  test.each([
    ["a plain one", [system("rules"), user("hi")], "<user>rules\n\nhi\n"],
    ["an empty one", [system(""), user("hi")], "<user>hi\n"],
    [
      "two of them",
      [system("a"), system("b"), user("c"), assistant("d")],
      "<user>a\n\nb\n\nc\n<assistant>d\n",
    ],
  ])("a refused system message moves into the first user message: %s", (_, messages, wanted) => {
    const template = createTemplate(strict, TOKENS, "t");
    expect(template.render(messages)).toEqual({ prompt: wanted, systemFolded: true });
    expect(template.render([user("x")])).toEqual({ prompt: "<user>x\n", systemFolded: false });
  });

  test.each([
    ["an unknown role that raises", strict, [user("a"), { role: "banana", content: "b" }], 1],
    ["an unknown role that is skipped", skipping, [{ role: "banana", content: "b" }, user("a")], 0],
    ["two users in a row", alternating, [user("a"), user("b"), user("c")], 1],
    ["a late system message", strict, [user("a"), system("b"), user("c")], 1],
    ["a system message alone", strict, [system("b")], 0],
    ["after a folded one", strict, [system("s"), user("a"), { role: "x", content: "" }], 2],
  ])("%s is a 400 at its place, without the template's words", (_, text, messages, at) => {
    const error = caught(() => createTemplate(text, TOKENS, "t").render(messages));
    expect(error).toBeInstanceOf(ApiError);
    const { status, param, message } = error as ApiError;
    expect({ status, param }).toEqual({ status: 400, param: `messages[${at}].role` });
    expect(message).not.toContain("Only user");
    expect(message).not.toContain("alternate");
  });

  test("a role only this template knows is taken", () => {
    const template = createTemplate(skipping, TOKENS, "t");
    expect(template.render([user("a"), { role: "tool", content: "b" }]).prompt).toBe(
      "<user>a<tool>b",
    );
  });

  test("a template that walks over parts gets parts, with images at their marks", () => {
    const vision =
      "{% for m in messages %}{{ m.role|capitalize }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<image>{% endif %}{% endfor %};{% endfor %}";
    const template = createTemplate(vision, TOKENS, "t");
    expect(template.render([user("hi")]).prompt).toBe("User: hi;");
    expect(template.render([user("<image>What?")]).prompt).toBe("User:<image>What?;");
  });
});

test("enable_thinking is passed only when given, special tokens only when there are some", () => {
  const text =
    "{{ enable_thinking is defined }}{{ enable_thinking }}{{ eos_token is defined }}{{ pad_token }}";
  const template = createTemplate(text, { bos: "", eos: "", pad_token: "<p>" }, "t");
  expect(template.render([user("a")]).prompt).toBe("FalseFalse<p>");
  expect(template.render([user("a")], { thinking: false }).prompt).toBe("TrueFalseFalse<p>");
  expect(template.bytes).toBe(Buffer.byteLength(text));
});

test("strftime_now uses the clock passed in", () => {
  const template = createTemplate("{{ strftime_now('%d %B %Y') }}", TOKENS, "t", () => NOW);
  expect(template.render([user("a")]).prompt).toBe("29 November 2026");
});

const doubling = (use: string): string =>
  `{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(200) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}${use}`;

test.each([
  [
    "nested loops",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
  ],
  ["a long string", "{{ 'a' * 1000000000000 }}"],
  [
    "a doubled string",
    "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
  ],
  ["a shared list printed", doubling("{{ ns.a }}")],
  ["a shared list as JSON", doubling("{{ ns.a | tojson }}")],
  ["shared lists compared", doubling("{{ ns.a == ns.b }}")],
  ["shared lists searched", doubling("{{ ns.a in [ns.b] }}")],
  ["shared lists sorted", doubling("{{ [ns.a, ns.b] | sort | length }}")],
  ["powers", "{{ 9 ** 9999 }}"],
  ["endless recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"],
  ["a wide format", "{{ '%999999999d' % 1 }}"],
  ["a wide indent", "{{ [1] | tojson(indent=1000000000) }}"],
  ["replacing", "{% set s = 'a' * 100000 %}{{ s.replace('a', s) }}"],
  [
    "filters in a loop",
    "{% set l = range(100000) | list %}{% for i in l %}{% set x = l | map('string') | list %}{% endfor %}",
  ],
  [
    "methods in a loop",
    "{% set l = range(100000) | list %}{% for i in l %}{% set x = l.index(i) %}{% endfor %}",
  ],
  ["deep brackets", `{{ ${"(".repeat(20000)}1${")".repeat(20000)} }}`],
  ["a template of 1 MB", "a".repeat(1_000_000)],
  ["a block without end", "{% if x %}"],
  ["an unknown filter", "{{ 1 | frobnicate }}"],
])(
  "a template with %s does not load",
  (_, text) => {
    const error = caught(() => createTemplate(text, TOKENS, "model.gguf"));
    expect(error).toBeInstanceOf(ModelError);
    expect((error as Error).message).toStartWith("model.gguf: chat_template ");
  },
  5_000,
);

test("a bomb that one conversation sets off is a 400", () => {
  const text =
    "{% if messages | length > 1 %}{{ 'a' * 10**12 }}{% endif %}{{ messages[0].content }}";
  const template = createTemplate(text, TOKENS, "t");
  expect(template.render([user("a")]).prompt).toBe("a");
  const error = caught(() => template.render([user("a"), assistant("b")])) as ApiError;
  expect({ status: error.status, param: error.param }).toEqual({ status: 400, param: "messages" });
});

test("a long conversation fits the budget", () => {
  const { templates } = read("conversations.json") as { templates: Record<string, string> };
  const messages = Array.from({ length: 256 }, (_, i) =>
    i % 2 === 0 ? user("x".repeat(16_000)) : assistant("y".repeat(16_000)),
  );
  for (const [name, text] of Object.entries(templates)) {
    const { prompt } = createTemplate(text, TOKENS, name).render(messages);
    expect(prompt.length).toBeGreaterThan(256 * 16_000);
  }
});
