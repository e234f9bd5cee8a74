// Conversations to prompts through a model's chat template: which roles it takes, what becomes of
// a system message it refuses, and how long it may take. Rendering itself is jinja.ts.
// Built by model/open.ts, called by the API and the terminal.
import { ApiError, ModelError } from "../errors.ts";
import {
  BudgetSpent,
  type Program,
  parseTemplate,
  RaisedByTemplate,
  runTemplate,
} from "./jinja.ts";
import { Callable, fromJs, TemplateError, type Value } from "./py-values.ts";
import { strftime } from "./strftime.ts";
import type { ChatMessage, ChatTemplate } from "./types.ts";

/** Longest template; the longest published ones have about 20 KB. */
const MAX_TEMPLATE_BYTES = 256 * 1024;

/**
 * Steps a rendering may take beyond those for its input, about a quarter of a second: the longest
 * published template takes a few hundred a message, a conversation has at most 256 messages.
 */
const BASE_STEPS = 1_000_000;
/** Steps for each character of input: a template may go over the whole text some thirty times. */
const STEPS_PER_CHAR = 4;

/** Roles whose messages every chat template is asked to take. */
const COMMON_ROLES = new Set(["system", "user", "assistant"]);

/**
 * Prepares a chat template.
 * @param tokens texts of special tokens by name: `bos` is the template's `bos_token`, and so on
 * @param where file the template came from, for messages
 * @param now clock of strftime_now
 * @throws ModelError when it cannot be parsed, or fails on a single user message.
 */
export function createTemplate(
  text: string,
  tokens: { readonly bos: string; readonly eos: string; readonly [name: string]: string },
  where: string,
  now: () => Date = () => new Date(),
): ChatTemplate {
  const bytes = Buffer.byteLength(text);
  if (bytes > MAX_TEMPLATE_BYTES) {
    throw new ModelError(
      `${where}: chat_template has ${bytes} bytes, more than ${MAX_TEMPLATE_BYTES}`,
    );
  }
  let program: Program;
  try {
    program = parseTemplate(text);
  } catch (error) {
    throw new ModelError(`${where}: chat_template cannot be parsed: ${messageOf(error)}`);
  }
  const constants = templateConstants(tokens, now);
  const run = (messages: readonly ChatMessage[], thinking: boolean | undefined): string => {
    const variables = new Map(constants);
    variables.set("messages", fromJs(messages.map(asTemplateMessage)));
    if (thinking !== undefined) variables.set("enable_thinking", thinking);
    const chars = messages.reduce((sum, m) => sum + m.role.length + m.content.length, 0);
    return runTemplate(program, variables, BASE_STEPS + STEPS_PER_CHAR * chars);
  };
  // Templates of vision models walk over a list of parts and would print nothing for a string.
  let wantsParts = false;
  const asTemplateMessage = ({ role, content }: ChatMessage) => ({
    role,
    content: wantsParts ? contentParts(content) : content,
  });
  const raises = (messages: readonly ChatMessage[]): boolean => {
    try {
      run(messages, undefined);
      return false;
    } catch (error) {
      if (error instanceof RaisedByTemplate) return true;
      throw error;
    }
  };

  const user: ChatMessage = { role: "user", content: "a" };
  const prints = (content: string): boolean => {
    try {
      return run([{ role: "user", content }], undefined).includes(content);
    } catch (error) {
      if (error instanceof RaisedByTemplate) return true;
      throw error;
    }
  };
  try {
    wantsParts = !prints(PROBE);
    if (wantsParts && !prints(PROBE)) wantsParts = false;
  } catch (error) {
    throw new ModelError(`${where}: chat_template fails on one user message: ${messageOf(error)}`);
  }

  // Found out by trial when first needed.
  let refusesSystem: boolean | undefined;
  const takesRole = new Map<string, boolean>();

  const checkRoles = (messages: readonly ChatMessage[]): void => {
    messages.forEach(({ role }, i) => {
      if (COMMON_ROLES.has(role)) return;
      let takes = takesRole.get(role);
      if (takes === undefined) {
        takes = printsRole(role);
        if (takesRole.size < MAX_KNOWN_ROLES) takesRole.set(role, takes);
      }
      if (!takes) throw roleError(i, role);
    });
  };
  // Some templates skip a role they do not know, which would lose the message.
  const printsRole = (role: string): boolean => {
    const before: ChatMessage[] = [user, { role: "assistant", content: "b" }];
    const message: ChatMessage = { role, content: PROBE };
    return [
      [...before, message],
      [message, user],
      [user, message],
    ].some((probe) => {
      try {
        return run(probe, undefined).includes(PROBE);
      } catch {
        return false;
      }
    });
  };
  // The first message with which the conversation so far is refused.
  const refusedAt = (messages: readonly ChatMessage[]): number => {
    let good = 0;
    let bad = messages.length;
    while (good + 1 < bad) {
      const middle = (good + bad) >> 1;
      if (raises(messages.slice(0, middle))) bad = middle;
      else good = middle;
    }
    return Math.max(0, bad - 1);
  };

  return {
    bytes,
    render(given, options) {
      let messages = given;
      try {
        checkRoles(messages);
        let systemFolded = false;
        if (messages[0]?.role === "system") {
          refusesSystem ??= raises([{ role: "system", content: "s" }, user]) && !raises([user]);
          if (refusesSystem) {
            messages = foldSystem(messages);
            systemFolded = true;
          }
        }
        try {
          return { prompt: run(messages, options?.thinking), systemFolded };
        } catch (error) {
          if (!(error instanceof RaisedByTemplate)) throw error;
          const at = refusedAt(messages) + (given.length - messages.length);
          throw roleError(at, given[at]?.role ?? "");
        }
      } catch (error) {
        throw asApiError(error);
      }
    },
  };
}

/** Roles remembered; a request could name a new one each time. */
const MAX_KNOWN_ROLES = 32;

/** Text that no template prints by itself. */
const PROBE = "caldrix-probe-7f3a";

/** Marks the place of an image in a message's text; the template prints its own mark there. */
const IMAGE_MARK = "<image>";

function contentParts(content: string): Record<string, string>[] {
  const parts: Record<string, string>[] = [];
  content.split(IMAGE_MARK).forEach((text, i) => {
    if (i > 0) parts.push({ type: "image" });
    if (text !== "" || content === "") parts.push({ type: "text", text });
  });
  return parts;
}

function templateConstants(
  tokens: Readonly<Record<string, string>>,
  now: () => Date,
): ReadonlyMap<string, Value> {
  const constants = new Map<string, Value>([
    ["add_generation_prompt", true],
    ["tools", null],
    ["documents", null],
    [
      "raise_exception",
      new Callable("raise_exception", ({ list }) => {
        throw new RaisedByTemplate(typeof list[0] === "string" ? list[0] : "");
      }),
    ],
    [
      "strftime_now",
      new Callable("strftime_now", ({ list }) => {
        if (typeof list[0] !== "string") throw new TemplateError("strftime_now wants a format");
        return strftime(now(), list[0]);
      }),
    ],
  ]);
  for (const [name, text] of Object.entries(tokens)) {
    // transformers passes only the tokens a model has.
    if (text !== "") constants.set(name.endsWith("_token") ? name : `${name}_token`, text);
  }
  return constants;
}

// Puts the text of the leading system messages on top of the first user message.
function foldSystem(messages: readonly ChatMessage[]): ChatMessage[] {
  const first = messages.findIndex(({ role }) => role !== "system");
  const next = messages[first];
  if (next?.role !== "user") throw roleError(0, "system");
  const system = messages.slice(0, first).map(({ content }) => content);
  const content = [...system, next.content].filter((part) => part !== "").join("\n\n");
  return [{ ...next, content }, ...messages.slice(first + 1)];
}

function roleError(at: number, role: string): ApiError {
  return new ApiError(
    400,
    `the model's chat template does not take the role ${JSON.stringify(role.slice(0, 40))} at this place`,
    `messages[${at}].role`,
  );
}

function asApiError(error: unknown): unknown {
  if (error instanceof BudgetSpent || error instanceof RangeError) {
    return new ApiError(
      400,
      "the conversation is too much for the model's chat template",
      "messages",
    );
  }
  if (error instanceof TemplateError) {
    return new ApiError(
      400,
      `the model's chat template failed on this conversation: ${error.message.slice(0, 200)}`,
      "messages",
    );
  }
  return error;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message.slice(0, 300) : String(error);
}
