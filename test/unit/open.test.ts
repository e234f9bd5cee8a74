// openModel over whole models: the malformed set, end tokens, templates and names.

import { describe, expect, test } from "bun:test";
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { ModelError } from "../../src/errors.ts";
import { openModel } from "../../src/model/open.ts";
import { fixture } from "../support/fixtures.ts";
import { createReference } from "../support/reference.ts";

interface Case {
  readonly path: string;
  readonly must: "refuse" | "load";
  readonly why: string;
  readonly message_has_one_of?: readonly string[];
  readonly prompt_ids?: readonly number[];
  readonly greedy_ids?: readonly number[];
}

/** The manifest's own rule. */
const CASE_TIMEOUT_MS = 2000;

const MALFORMED = fixture("malformed");
const { cases } = JSON.parse(readFileSync(join(MALFORMED, "manifest.json"), "utf8")) as {
  cases: Case[]; // a fixture of ours
};

/** Message of the refusal; fails the test when there is none or it is no ModelError. */
function refusal(path: string): string {
  try {
    openModel(path);
  } catch (e) {
    expect(e).toBeInstanceOf(ModelError);
    return (e as ModelError).message;
  }
  throw new Error(`${path} was loaded`);
}

/** A copy of the control folder with other config files; null deletes one. */
function folder(files: Record<string, unknown>, run: (dir: string) => void): void {
  const dir = mkdtempSync(join(tmpdir(), "caldrix-open-"));
  try {
    const from = join(MALFORMED, "st-ok");
    for (const name of readdirSync(from)) copyFileSync(join(from, name), join(dir, name));
    for (const [name, content] of Object.entries(files)) {
      if (content === null) rmSync(join(dir, name));
      else
        writeFileSync(
          join(dir, name),
          typeof content === "string" ? content : JSON.stringify(content),
        );
    }
    run(dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function controlJson(name: string): Record<string, unknown> {
  return JSON.parse(readFileSync(join(MALFORMED, "st-ok", name), "utf8")) as Record<
    string,
    unknown
  >;
}

describe("malformed set", () => {
  test("has its ninety cases", () => {
    expect(cases.length).toBe(90);
    expect(cases.filter((c) => c.must === "load").length).toBe(6);
  });

  for (const c of cases.filter((x) => x.must === "refuse")) {
    test(
      `refuses ${c.path}: ${c.why}`,
      () => {
        const message = refusal(join(MALFORMED, c.path));
        expect(message).toContain(c.path);
        const said = message.slice(join(MALFORMED, c.path).length).toLowerCase();
        const hit = c.message_has_one_of!.some((part) => said.includes(part.toLowerCase()));
        expect(hit ? "" : said).toBe("");
      },
      CASE_TIMEOUT_MS,
    );
  }

  for (const c of cases.filter((x) => x.must === "load")) {
    test(
      `loads ${c.path} and computes its tokens`,
      () => {
        const model = openModel(join(MALFORMED, c.path));
        const reference = createReference(model.plan);
        const prompt = c.prompt_ids!;
        const ids = [...prompt, ...c.greedy_ids!].slice(0, -1);
        const logits = reference.step(
          ids.map((token, pos) => ({ token, pos, row: 0, want: pos >= prompt.length - 1 })),
        );
        expect(logits.map((l) => l.indexOf(Math.max(...l)))).toEqual([...c.greedy_ids!]);
      },
      CASE_TIMEOUT_MS,
    );
  }
});

describe("names", () => {
  test("a file is called by its name without .gguf, a folder by its own", () => {
    expect(openModel(join(MALFORMED, "ok-llama.gguf")).name).toBe("ok-llama");
    expect(openModel(`${join(MALFORMED, "st-ok")}/`).name).toBe("st-ok");
    expect(openModel(join(MALFORMED, "st-ok"), { name: "org/model" }).name).toBe("org/model");
  });

  test("a path that is not there is refused by name", () => {
    expect(refusal(join(MALFORMED, "no-such-model"))).toContain("no-such-model: no such file");
  });
});

describe("end tokens", () => {
  test("generation_config.json wins over config.json, and a list counts whole", () => {
    folder({ "generation_config.json": { eos_token_id: [261, 5, 261] } }, (dir) => {
      expect(openModel(dir).eosIds).toEqual([261, 5]);
    });
    folder({ "generation_config.json": { eos_token_id: null } }, (dir) => {
      expect(openModel(dir).eosIds).toEqual([261]);
    });
  });

  test("one outside the vocabulary is refused, naming the file", () => {
    folder({ "generation_config.json": { eos_token_id: [261, 262] } }, (dir) => {
      expect(refusal(dir)).toContain("generation_config.json: eos_token_id 262");
    });
    folder({ "generation_config.json": { eos_token_id: "</s>" } }, (dir) => {
      expect(refusal(dir)).toContain("eos_token_id");
    });
  });

  test("without either file's, the tokenizer's end token is used, and none at all refused", () => {
    const config = { ...controlJson("config.json"), eos_token_id: null };
    const tokenizerConfig = controlJson("tokenizer_config.json");
    const added = (controlJson("tokenizer.json").added_tokens ?? []) as { content: string }[];
    const last = added.at(-1)!.content;
    folder(
      {
        "config.json": config,
        "tokenizer_config.json": { ...tokenizerConfig, eos_token: { content: last } },
      },
      (dir) => {
        const model = openModel(dir);
        expect(model.eosIds).toEqual([model.tokenizer.idOf(last)!]);
      },
    );
    folder(
      {
        "config.json": config,
        "tokenizer_config.json": { ...tokenizerConfig, eos_token: null },
      },
      (dir) => {
        expect(refusal(dir)).toContain("eos_token_id");
      },
    );
  });
});

describe("templates", () => {
  const render = (dir: string) =>
    openModel(dir).template?.render([{ role: "user", content: "hi" }]).prompt ?? null;

  test("chat_template.jinja wins over chat_template.json and tokenizer_config.json", () => {
    const tokenizerConfig = { ...controlJson("tokenizer_config.json"), chat_template: "config" };
    folder({ "tokenizer_config.json": tokenizerConfig }, (dir) => {
      expect(render(dir)).toBe("config");
    });
    folder(
      {
        "tokenizer_config.json": tokenizerConfig,
        "chat_template.json": { chat_template: "json {{ messages[0].content }}" },
      },
      (dir) => {
        expect(render(dir)).toBe("json hi");
      },
    );
    folder(
      { "chat_template.json": { chat_template: "json" }, "chat_template.jinja": "jinja" },
      (dir) => {
        expect(render(dir)).toBe("jinja");
      },
    );
  });

  test("of a list of templates the one called default is used", () => {
    const list = [
      { name: "tool_use", template: "tools" },
      { name: "default", template: "plain" },
    ];
    const config = { ...controlJson("tokenizer_config.json"), chat_template: list };
    folder({ "tokenizer_config.json": config }, (dir) => {
      expect(render(dir)).toBe("plain");
    });
  });

  test("a model without one has none", () => {
    const config = { ...controlJson("tokenizer_config.json"), chat_template: null };
    folder({ "tokenizer_config.json": config }, (dir) => {
      expect(openModel(dir).template).toBe(null);
    });
  });
});

describe("tokenizers", () => {
  test("an added token past the embedding is plain text, as for the image token of Gemma 3", () => {
    const tokenizer = controlJson("tokenizer.json");
    const added = tokenizer.added_tokens as Record<string, unknown>[];
    const extra = { ...added[0], id: 262, content: "<image_soft_token>" };
    folder({ "tokenizer.json": { ...tokenizer, added_tokens: [...added, extra] } }, (dir) => {
      const { tokenizer: t, vocabSize } = openModel(dir);
      expect(t.vocabSize).toBe(vocabSize);
      const ids = t.encode("<image_soft_token>", false);
      expect(ids.length).toBeGreaterThan(1);
      expect(Math.max(...ids)).toBeLessThan(vocabSize);
    });
  });

  test("a vocabulary larger than the embedding is refused", () => {
    const tokenizer = controlJson("tokenizer.json");
    const model = tokenizer.model as { vocab: Record<string, number> };
    const vocab = { ...model.vocab, extra: 262 };
    folder({ "tokenizer.json": { ...tokenizer, model: { ...model, vocab } } }, (dir) => {
      expect(refusal(dir)).toContain("263 tokens");
    });
  });
});

test("a folder without weights says which file it wants", () => {
  folder({ "model.safetensors": null }, (dir) => {
    expect(refusal(dir)).toContain("model.safetensors");
  });
  const empty = mkdtempSync(join(tmpdir(), "caldrix-open-"));
  mkdirSync(join(empty, "sub"));
  expect(refusal(empty)).toContain(`${basename(empty)}/config.json`);
  rmSync(empty, { recursive: true });
});

test("registers are named in index order", () => {
  const { registers, vocabSize } = openModel(join(MALFORMED, "ok-llama.gguf"));
  expect(registers.find((r) => r.name === "x")).toEqual({ name: "x", width: 32, rows: "step" });
  expect(registers.find((r) => r.name === "logits")).toEqual({
    name: "logits",
    width: vocabSize,
    rows: "out",
  });
});
