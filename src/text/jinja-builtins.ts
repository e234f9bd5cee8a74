// jinja2's filters and tests and the methods of Python's str, list and dict, as far as chat
// templates use them. What is missing is an error by name, never another result.
// Called by jinja.ts; formatting of strings is in py-format.ts.
import { PYTHON_SPACE } from "./jinja-lexer.ts";
import { formatFields, formatPercent, roundTo } from "./py-format.ts";
import {
  type Args,
  arithmetic,
  asNumber,
  Callable,
  codePoints,
  compare,
  dumps,
  equal,
  fromJs,
  Lazy,
  Namespace,
  str,
  stringLength,
  TemplateError,
  Tuple,
  truthy,
  typeName,
  Undefined,
  undefinedError,
  type Value,
} from "./py-values.ts";

/** What filters need of the run they are part of. */
export interface Run {
  /** Counts work done: steps, or characters made. @throws when the budget is spent. */
  readonly spend: (chars: number) => void;
  /** str() of a value, counted. */
  readonly text: (value: Value) => string;
  /** Counts a value with all its parts. */
  readonly weigh: (value: Value) => void;
  /** jinja2's getattr-then-getitem and getitem-then-getattr. */
  readonly item: (object: Value, key: Value) => Value;
}

type Filter = (input: Value, args: Args, run: Run) => Value;
type Test = (input: Value, args: readonly Value[], run: Run) => boolean;

const SPACE_START = new RegExp(`^[${PYTHON_SPACE}]+`);
const SPACE_END = new RegExp(`[${PYTHON_SPACE}]+$`);
const WORDS = new RegExp(`[^${PYTHON_SPACE}]+`, "g");

/** Argument by position or name. */
function arg(args: Args, at: number, name: string, fallback: Value): Value {
  return args.list[at] ?? (args.list.length > at ? null : (args.named.get(name) ?? fallback));
}

function need(args: Args, at: number, name: string): Value {
  const value = args.list.length > at ? args.list[at]! : args.named.get(name);
  if (value === undefined) throw new TemplateError(`missing argument '${name}'`);
  return value;
}

function intArg(value: Value): number {
  if (typeof value === "bigint") return Number(value);
  if (typeof value === "boolean") return value ? 1 : 0;
  throw new TemplateError(`wanted an integer, got ${typeName(value)}`);
}

function textArg(value: Value): string {
  if (typeof value === "string") return value;
  throw new TemplateError(`wanted a string, got ${typeName(value)}`);
}

/** What a for loop walks over. @throws TemplateError for what Python cannot iterate. */
export function iterate(value: Value): readonly Value[] {
  if (typeof value === "string") return codePoints(value);
  if (Array.isArray(value)) return value;
  if (value instanceof Map) return [...value.keys()];
  if (value instanceof Lazy) return value.items;
  if (value instanceof Undefined) return [];
  throw new TemplateError(`'${typeName(value)}' object is not iterable`);
}

// jinja2's map and select take none, 0 and the like for an empty list.
function iterateIfAny(value: Value): readonly Value[] {
  return truthy(value) ? iterate(value) : [];
}

function lengthOf(value: Value): number {
  if (typeof value === "string") return stringLength(value);
  if (Array.isArray(value)) return value.length;
  if (value instanceof Map) return value.size;
  if (value instanceof Lazy && value.sized) return value.items.length;
  if (value instanceof Undefined) return 0;
  throw new TemplateError(`object of type '${typeName(value)}' has no len()`);
}

function strip(text: string, chars: Value, side: "both" | "left" | "right"): string {
  let out = text;
  if (chars === null) {
    if (side !== "right") out = out.replace(SPACE_START, "");
    return side === "left" ? out : out.slice(0, out.length - (endSpace(out)?.length ?? 0));
  }
  const set = new Set(codePoints(textArg(chars)));
  const points = codePoints(out);
  let start = 0;
  let end = points.length;
  while (side !== "right" && start < end && set.has(points[start]!)) start++;
  while (side !== "left" && end > start && set.has(points[end - 1]!)) end--;
  return points.slice(start, end).join("");
}

// The white space a text ends in, found from the end: a regex would try every run before it.
function endSpace(text: string): string | null {
  let at = text.length;
  while (at > 0 && SPACE_END.test(text[at - 1]!)) at--;
  return at === text.length ? null : text.slice(at);
}

function titleFilter(text: string): string {
  return text
    .split(/([-\s({[<]+)/u)
    .map((part) => capitalize(part))
    .join("");
}

function capitalize(text: string): string {
  const [first = "", ...rest] = codePoints(text);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

function titleMethod(text: string): string {
  return text.replace(/\p{L}+/gu, (word) => capitalize(word));
}

function replaceText(text: string, from: string, to: string, count: number, run: Run): string {
  const limit = count < 0 ? Number.POSITIVE_INFINITY : count;
  const parts = from === "" ? ["", ...codePoints(text), ""] : text.split(from);
  const times = Math.min(limit, parts.length - 1);
  run.spend(text.length + times * to.length);
  return (
    parts.slice(0, times + 1).join(to) +
    parts
      .slice(times + 1)
      .map((p) => from + p)
      .join("")
  );
}

// jinja2's make_attrgetter: "a.b" and integer parts.
function byAttribute(run: Run, path: Value): (value: Value) => Value {
  if (typeof path === "bigint") return (value) => run.item(value, path);
  const parts = textArg(path)
    .split(".")
    .map((part) => (/^\d+$/.test(part) ? BigInt(part) : part));
  return (value) => parts.reduce<Value>((v, part) => run.item(v, part), value);
}

function sortKey(run: Run, args: Args, at: number, attribute: Value): (value: Value) => Value {
  const sensitive = truthy(arg(args, at, "case_sensitive", false));
  const get = attribute === null ? (value: Value) => value : byAttribute(run, attribute);
  return (value) => {
    const key = get(value);
    return typeof key === "string" && !sensitive ? key.toLowerCase() : key;
  };
}

function sorted(items: readonly Value[], key: (v: Value) => Value, reverse: boolean, run: Run) {
  const keyed = items.map((item) => ({ item, key: key(item) }));
  const rounds = Math.ceil(Math.log2(items.length + 1)) + 1;
  for (let round = 0; round < rounds; round++) for (const entry of keyed) run.weigh(entry.key);
  // Python keeps equal items in order when reversing too.
  keyed.sort((a, b) => (reverse ? compare(b.key, a.key) : compare(a.key, b.key)));
  return keyed.map(({ item }) => item);
}

// select, reject, selectattr, rejectattr.
function chooser(wanted: boolean, byName: boolean): Filter {
  return (input, args, run) => {
    const get = byName ? byAttribute(run, need(args, 0, "attribute")) : (value: Value) => value;
    const [name, ...rest] = args.list.slice(byName ? 1 : 0);
    const test = name === undefined ? (value: Value) => truthy(value) : testFor(name, rest, run);
    return new Lazy(
      iterateIfAny(input).filter((item) => test(get(item)) === wanted),
      false,
    );
  };
}

function testFor(name: Value, rest: readonly Value[], run: Run): (value: Value) => boolean {
  const test = TESTS.get(textArg(name));
  if (!test) throw new TemplateError(`no test named '${str(name)}'`);
  return (value) => {
    run.weigh(value);
    return test(value, rest, run);
  };
}

const extreme =
  (sign: number): Filter =>
  (input, args, run) => {
    const key = sortKey(run, args, 0, arg(args, 1, "attribute", null));
    const items = iterate(input);
    run.weigh(input);
    if (items.length === 0) return new Undefined("the least or greatest of nothing");
    return items.reduce((best, item) => (compare(key(item), key(best)) * sign > 0 ? item : best));
  };

const toJson: Filter = (input, args, run) => {
  run.weigh(input);
  const indent = arg(args, 1, "indent", null);
  const separators = arg(args, 2, "separators", null);
  const pair = separators === null ? null : iterate(separators).map(textArg);
  return dumps(input, {
    ensureAscii: truthy(arg(args, 0, "ensure_ascii", false)),
    indent: indent === null ? null : indentText(indent),
    item: pair?.[0] ?? (indent === null ? ", " : ","),
    key: pair?.[1] ?? ": ",
    sortKeys: truthy(arg(args, 3, "sort_keys", false)),
  });
};

/** Widest indent; wider ones would only fill the memory. */
const MAX_INDENT = 256;

function indentText(indent: Value): string {
  const text =
    typeof indent === "string"
      ? indent
      : " ".repeat(Math.min(Math.max(intArg(indent), 0), MAX_INDENT + 1));
  if (text.length > MAX_INDENT) throw new TemplateError(`an indent is wider than ${MAX_INDENT}`);
  return text;
}

const batch: Filter = (input, args) => {
  const size = Math.max(1, intArg(need(args, 0, "linecount")));
  const fill = arg(args, 1, "fill_with", null);
  const items = [...iterate(input)];
  const rows: Value[] = [];
  for (let i = 0; i < items.length; i += size) {
    const row = items.slice(i, i + size);
    while (fill !== null && row.length < size) row.push(fill);
    rows.push(row);
  }
  return new Lazy(rows, false);
};

const indentFilter: Filter = (input, args, run) => {
  const width = arg(args, 0, "width", 4n);
  const pad = indentText(width);
  const blank = truthy(arg(args, 2, "blank", false));
  const lines = `${textArg(input)}\n`.split("\n").slice(0, -1);
  run.spend(pad.length * lines.length);
  const out = lines.map((line, i) => (i > 0 && (blank || line !== "") ? pad + line : line));
  return (truthy(arg(args, 1, "first", false)) ? pad : "") + out.join("\n");
};

const truncate: Filter = (input, args) => {
  const points = codePoints(textArg(input));
  const length = intArg(arg(args, 0, "length", 255n));
  const end = textArg(arg(args, 2, "end", "..."));
  if (points.length <= length + intArg(arg(args, 3, "leeway", 5n))) return points.join("");
  const cut = points.slice(0, length - stringLength(end)).join("");
  if (truthy(arg(args, 1, "killwords", false))) return cut + end;
  const space = cut.lastIndexOf(" ");
  return (space < 0 ? cut : cut.slice(0, space)) + end;
};

function toInt(input: Value, fallback: Value): Value {
  if (typeof input === "bigint") return input;
  if (typeof input === "boolean") return BigInt(input);
  if (typeof input === "number")
    return Number.isFinite(input) ? BigInt(Math.trunc(input)) : fallback;
  if (typeof input !== "string") return fallback;
  const text = strip(input, null, "both").replace(/(?<=\d)_(?=\d)/g, "");
  if (/^[-+]?\d+$/.test(text)) return BigInt(text.replace(/^\+/, ""));
  const float = toFloat(input, null);
  return typeof float === "number" ? toInt(float, fallback) : fallback;
}

function toFloat(input: Value, fallback: Value): Value {
  if (typeof input === "number") return input;
  if (typeof input === "bigint" || typeof input === "boolean") return Number(input);
  if (typeof input !== "string") return fallback;
  const text = strip(input, null, "both");
  return /^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$/.test(text) ? Number(text) : fallback;
}

const escapeHtml: Filter = (input, _, run) =>
  run
    .text(input)
    .replaceAll("&", "&amp;")
    .replaceAll(">", "&gt;")
    .replaceAll("<", "&lt;")
    .replaceAll("'", "&#39;")
    .replaceAll('"', "&#34;");

const length: Filter = (input) => BigInt(lengthOf(input));
const defaultFilter: Filter = (input, args) => {
  const missing = truthy(arg(args, 1, "boolean", false))
    ? !truthy(input)
    : input instanceof Undefined;
  return missing ? arg(args, 0, "default_value", "") : input;
};

// 1.0 stays a float and a long integer exact, as in Python.
function keepFloats(_key: string, value: unknown, context?: { source?: string }): unknown {
  const source = context?.source;
  if (typeof value !== "number" || source === undefined) return value;
  return /[.eE]/.test(source) ? Object(value) : BigInt(source);
}

/** Filters by name. */
export const FILTERS: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  [
    "abs",
    (input) => (compare(input, 0n) < 0 ? arithmetic("-", 0n, input) : arithmetic("+", input, 0n)),
  ],
  ["attr", (input, args, run) => run.item(input, textArg(need(args, 0, "name")))],
  ["batch", batch],
  ["capitalize", (input, _, run) => capitalize(run.text(input))],
  [
    "center",
    (input, args, run) =>
      pad(run.text(input), intArg(arg(args, 0, "width", 80n)), " ", "both", run),
  ],
  ["count", length],
  ["d", defaultFilter],
  ["default", defaultFilter],
  [
    "dictsort",
    (input, args, run) => {
      if (!(input instanceof Map)) throw new TemplateError("dictsort wants a mapping");
      const at = textArg(arg(args, 1, "by", "key")) === "key" ? 0n : 1n;
      const key = sortKey(run, args, 0, at);
      const pairs = [...input].map(([k, v]) => Tuple.of2(k, v));
      return sorted(pairs, key, truthy(arg(args, 2, "reverse", false)), run);
    },
  ],
  ["e", escapeHtml],
  ["escape", escapeHtml],
  ["first", (input) => iterate(input)[0] ?? new Undefined("the first of nothing")],
  ["float", (input, args) => toFloat(input, arg(args, 0, "default", 0))],
  [
    "format",
    (input, args, run) => {
      const values = args.named.size > 0 ? new Map<Value, Value>(args.named) : args.list;
      return formatPercent(run.text(input), values, run.spend);
    },
  ],
  [
    "fromjson",
    (input) => {
      try {
        return fromJs(JSON.parse(textArg(input), keepFloats));
      } catch {
        throw new TemplateError("fromjson: the text is not JSON");
      }
    },
  ],
  [
    "groupby",
    (input, args, run) => {
      const attribute = need(args, 0, "attribute");
      const get = byAttribute(run, attribute);
      const key = sortKey(run, args, 2, attribute);
      run.weigh(input);
      const groups: { key: Value; items: Value[] }[] = [];
      for (const item of sorted(iterate(input), key, false, run)) {
        const last = groups.at(-1);
        if (last && equal(key(item), key(last.items[0]!))) last.items.push(item);
        else groups.push({ key: get(item), items: [item] });
      }
      return groups.map((group) => Tuple.of2(group.key, group.items));
    },
  ],
  ["indent", indentFilter],
  ["int", (input, args) => toInt(input, arg(args, 0, "default", 0n))],
  [
    "items",
    (input) => {
      if (input instanceof Undefined) return new Lazy([], false);
      if (!(input instanceof Map))
        throw new TemplateError("Can only get item pairs from a mapping.");
      return new Lazy(
        [...input].map(([k, v]) => Tuple.of2(k, v)),
        false,
      );
    },
  ],
  [
    "join",
    (input, args, run) => {
      const attribute = arg(args, 1, "attribute", null);
      const get = attribute === null ? (v: Value) => v : byAttribute(run, attribute);
      const glue = run.text(arg(args, 0, "d", ""));
      const parts = iterate(input).map((item) => run.text(get(item)));
      run.spend(glue.length * parts.length + parts.reduce((sum, part) => sum + part.length, 0));
      return parts.join(glue);
    },
  ],
  ["last", (input) => iterate(input).at(-1) ?? new Undefined("the last of nothing")],
  ["length", length],
  ["list", (input) => [...iterate(input)]],
  ["lower", (input, _, run) => run.text(input).toLowerCase()],
  [
    "map",
    (input, args, run) => {
      const items = iterateIfAny(input);
      const attribute = args.named.get("attribute");
      if (args.list.length === 0 && attribute !== undefined) {
        const get = byAttribute(run, attribute);
        const fallback = args.named.get("default");
        const pick = (value: Value): Value =>
          value instanceof Undefined && fallback !== undefined ? fallback : value;
        return new Lazy(
          items.map((item) => pick(get(item))),
          false,
        );
      }
      const name = textArg(need(args, 0, "filter"));
      const filter = FILTERS.get(name);
      if (!filter) throw new TemplateError(`no filter named '${name}'`);
      const rest: Args = { list: args.list.slice(1), named: args.named };
      run.spend(items.length * 8);
      return new Lazy(
        items.map((item) => filter(item, rest, run)),
        false,
      );
    },
  ],
  ["max", extreme(1)],
  ["min", extreme(-1)],
  ["reject", chooser(false, false)],
  ["rejectattr", chooser(false, true)],
  [
    "replace",
    (input, args, run) => {
      const count = arg(args, 2, "count", null);
      const [from, to] = [run.text(need(args, 0, "old")), run.text(need(args, 1, "new"))];
      return replaceText(run.text(input), from, to, count === null ? -1 : intArg(count), run);
    },
  ],
  [
    "reverse",
    (input) =>
      typeof input === "string"
        ? codePoints(input).reverse().join("")
        : new Lazy([...iterate(input)].reverse(), false),
  ],
  [
    "round",
    (input, args) => {
      const places = intArg(arg(args, 0, "precision", 0n));
      return roundTo(input, places, textArg(arg(args, 1, "method", "common")));
    },
  ],
  ["safe", (input, _, run) => run.text(input)],
  ["select", chooser(true, false)],
  ["selectattr", chooser(true, true)],
  [
    "slice",
    (input, args) => {
      const items = [...iterate(input)];
      const count = Math.min(intArg(need(args, 0, "slices")), items.length + 1);
      const fill = arg(args, 1, "fill_with", null);
      const size = Math.floor(items.length / count);
      const longer = items.length % count;
      const rows: Value[] = [];
      for (let i = 0, at = 0; i < count; i++) {
        const end = at + size + (i < longer ? 1 : 0);
        const row = items.slice(at, end);
        if (fill !== null && i >= longer) row.push(fill);
        rows.push(row);
        at = end;
      }
      return new Lazy(rows, false);
    },
  ],
  [
    "sort",
    (input, args, run) => {
      const key = sortKey(run, args, 1, arg(args, 2, "attribute", null));
      return sorted(iterate(input), key, truthy(arg(args, 0, "reverse", false)), run);
    },
  ],
  ["string", (input, _, run) => run.text(input)],
  [
    "sum",
    (input, args, run) => {
      const attribute = arg(args, 0, "attribute", null);
      const get = attribute === null ? (v: Value) => v : byAttribute(run, attribute);
      return iterate(input).reduce<Value>(
        (sum, item) => arithmetic("+", sum, get(item)),
        arg(args, 1, "start", 0n),
      );
    },
  ],
  [
    "title",
    (input, _, run) => {
      const text = run.text(input);
      run.spend(text.length * 8); // many small parts
      return titleFilter(text);
    },
  ],
  ["tojson", toJson],
  ["trim", (input, args, run) => strip(run.text(input), arg(args, 0, "chars", null), "both")],
  ["truncate", truncate],
  [
    "unique",
    (input, args, run) => {
      const key = sortKey(run, args, 0, arg(args, 1, "attribute", null));
      const seen: Value[] = [];
      const items = iterate(input).filter((item) => {
        const k = key(item);
        for (let i = 0; i < seen.length; i++) run.weigh(k);
        if (seen.some((other) => equal(other, k))) return false;
        seen.push(k);
        return true;
      });
      return new Lazy(items, false);
    },
  ],
  ["upper", (input, _, run) => run.text(input).toUpperCase()],
  ["wordcount", (input, _, run) => BigInt(run.text(input).match(/[\p{L}\p{N}_]+/gu)?.length ?? 0)],
]);

const isNumber = (v: Value): boolean =>
  typeof v === "bigint" || typeof v === "number" || typeof v === "boolean";
const parity = (input: Value, wanted: bigint): boolean => equal(arithmetic("%", input, 2n), wanted);
const eq: Test = (input, [other], run) => {
  run.weigh(input);
  return equal(input, other ?? null);
};
const order =
  (wanted: (c: number) => boolean): Test =>
  (input, [other]) =>
    wanted(compare(input, other ?? null));

/** Tests by name. */
export const TESTS: ReadonlyMap<string, Test> = new Map<string, Test>([
  ["boolean", (v) => typeof v === "boolean"],
  ["callable", (v) => v instanceof Callable],
  ["defined", (v) => !(v instanceof Undefined)],
  ["divisibleby", (v, [by]) => equal(arithmetic("%", v, by ?? null), 0n)],
  ["eq", eq],
  ["==", eq],
  ["equalto", eq],
  ["even", (v) => parity(v, 0n)],
  ["false", (v) => v === false],
  ["filter", (v) => FILTERS.has(str(v))],
  ["float", (v) => typeof v === "number"],
  ["ge", order((c) => c >= 0)],
  [">=", order((c) => c >= 0)],
  ["gt", order((c) => c > 0)],
  [">", order((c) => c > 0)],
  ["greaterthan", order((c) => c > 0)],
  ["in", (v, [container], run) => contains(container ?? null, v, run)],
  ["integer", (v) => typeof v === "bigint"],
  [
    "iterable",
    (v) =>
      typeof v === "string" ||
      Array.isArray(v) ||
      v instanceof Map ||
      v instanceof Lazy ||
      v instanceof Undefined,
  ],
  ["le", order((c) => c <= 0)],
  ["<=", order((c) => c <= 0)],
  ["lower", (v) => isCased(str(v), (t) => t.toLowerCase())],
  ["lt", order((c) => c < 0)],
  ["<", order((c) => c < 0)],
  ["lessthan", order((c) => c < 0)],
  ["mapping", (v) => v instanceof Map],
  ["ne", (v, args, run) => !eq(v, args, run)],
  ["!=", (v, args, run) => !eq(v, args, run)],
  ["none", (v) => v === null],
  ["number", isNumber],
  ["odd", (v) => parity(v, 1n)],
  ["sameas", (v, [other]) => v === other],
  [
    "sequence",
    (v) => typeof v === "string" || Array.isArray(v) || v instanceof Map || v instanceof Undefined,
  ],
  ["string", (v) => typeof v === "string"],
  ["test", (v) => TESTS.has(str(v))],
  ["true", (v) => v === true],
  ["undefined", (v) => v instanceof Undefined],
  ["upper", (v) => isCased(str(v), (t) => t.toUpperCase())],
]);

function isCased(text: string, to: (text: string) => string): boolean {
  return to(text) === text && text.toLowerCase() !== text.toUpperCase();
}

/** Python's `in`. */
export function contains(container: Value, item: Value, run: Run): boolean {
  if (typeof container === "string") {
    if (item instanceof Undefined) throw undefinedError(item);
    if (typeof item !== "string") {
      throw new TemplateError(
        `'in <string>' requires string as left operand, not ${typeName(item)}`,
      );
    }
    run.spend(container.length);
    return container.includes(item);
  }
  if (container instanceof Map) return container.has(item);
  run.weigh(container);
  return iterate(container).some((other) => equal(other, item));
}

function pad(
  text: string,
  width: number,
  fill: string,
  side: "left" | "right" | "both",
  run: Run,
): string {
  const missing = width - stringLength(text);
  if (missing <= 0) return text;
  run.spend(missing);
  // Python puts the odd one out on the left when the width is odd.
  const half = Math.floor(missing / 2) + (missing & width & 1);
  const before = side === "right" ? 0 : side === "left" ? missing : half;
  return fill.repeat(before) + text + fill.repeat(missing - before);
}

function affix(text: string, value: Value, has: (affix: string) => boolean): boolean {
  if (value instanceof Tuple) return value.some((one) => has(textArg(one)));
  if (value instanceof Undefined) throw undefinedError(value);
  if (typeof value !== "string") {
    throw new TemplateError(`wanted a string or a tuple of strings, got ${typeName(value)}`);
  }
  return text.length >= value.length && has(value);
}

function split(text: string, separator: Value, most: number): string[] {
  const limit = most < 0 ? Number.POSITIVE_INFINITY : most;
  if (separator === null) {
    const parts: string[] = [];
    for (const match of text.matchAll(WORDS)) {
      if (parts.length === limit) {
        parts.push(strip(text.slice(match.index), null, "right"));
        break;
      }
      parts.push(match[0]);
    }
    return parts;
  }
  const glue = textArg(separator);
  if (glue === "") throw new TemplateError("empty separator");
  const parts = text.split(glue);
  if (parts.length - 1 <= limit) return parts;
  return [...parts.slice(0, limit), parts.slice(limit).join(glue)];
}

function splitRight(text: string, separator: Value, most: number): string[] {
  if (most < 0) return split(text, separator, -1);
  if (separator === null) throw new TemplateError("rsplit without a separator is not supported");
  const glue = textArg(separator);
  const parts = split(text, glue, -1);
  const keep = Math.max(0, parts.length - 1 - most);
  return [parts.slice(0, keep + 1).join(glue), ...parts.slice(keep + 1)];
}

function partition(text: string, glue: string, at: number, empty: "left" | "right"): Tuple {
  const tuple = new Tuple(3);
  const parts =
    at >= 0
      ? [text.slice(0, at), glue, text.slice(at + glue.length)]
      : empty === "left"
        ? ["", "", text]
        : [text, "", ""];
  parts.forEach((part, i) => {
    tuple[i] = part;
  });
  return tuple;
}

const find = (text: string, part: string, last: boolean): bigint => {
  const at = last ? text.lastIndexOf(part) : text.indexOf(part);
  return BigInt(at < 0 ? at : stringLength(text.slice(0, at)));
};

type Method<T> = (self: T, args: Args, run: Run) => Value;

const STRING_METHODS: ReadonlyMap<string, Method<string>> = new Map<string, Method<string>>([
  ["capitalize", (s) => capitalize(s)],
  [
    "center",
    (s, a, run) =>
      pad(s, intArg(need(a, 0, "width")), textArg(arg(a, 1, "fillchar", " ")), "both", run),
  ],
  ["count", (s, a) => BigInt(s.split(textArg(need(a, 0, "sub"))).length - 1)],
  ["endswith", (s, a) => affix(s, need(a, 0, "suffix"), (x) => s.endsWith(x))],
  ["find", (s, a) => find(s, textArg(need(a, 0, "sub")), false)],
  ["format", (s, a, run) => formatFields(s, a, run.spend)],
  [
    "index",
    (s, a) => {
      const at = find(s, textArg(need(a, 0, "sub")), false);
      if (at < 0n) throw new TemplateError("substring not found");
      return at;
    },
  ],
  ["isalnum", (s) => /^[\p{L}\p{N}]+$/u.test(s)],
  ["isalpha", (s) => /^\p{L}+$/u.test(s)],
  ["isdecimal", (s) => /^\p{Nd}+$/u.test(s)],
  ["isdigit", (s) => /^[\p{Nd}²³¹⁰⁴-⁹₀-₉]+$/u.test(s)],
  ["islower", (s) => isCased(s, (t) => t.toLowerCase())],
  ["isspace", (s) => s !== "" && strip(s, null, "left") === ""],
  ["isupper", (s) => isCased(s, (t) => t.toUpperCase())],
  [
    "join",
    (s, a, run) => {
      const parts = iterate(need(a, 0, "iterable")).map(textArg);
      run.spend(s.length * parts.length + parts.reduce((sum, part) => sum + part.length, 0));
      return parts.join(s);
    },
  ],
  [
    "ljust",
    (s, a, run) =>
      pad(s, intArg(need(a, 0, "width")), textArg(arg(a, 1, "fillchar", " ")), "right", run),
  ],
  ["lower", (s) => s.toLowerCase()],
  ["lstrip", (s, a) => strip(s, arg(a, 0, "chars", null), "left")],
  [
    "partition",
    (s, a) =>
      partition(s, textArg(need(a, 0, "sep")), s.indexOf(textArg(need(a, 0, "sep"))), "right"),
  ],
  [
    "removeprefix",
    (s, a) =>
      s.startsWith(textArg(need(a, 0, "prefix")))
        ? s.slice(textArg(need(a, 0, "prefix")).length)
        : s,
  ],
  [
    "removesuffix",
    (s, a) => {
      const suffix = textArg(need(a, 0, "suffix"));
      return suffix !== "" && s.endsWith(suffix) ? s.slice(0, -suffix.length) : s;
    },
  ],
  [
    "replace",
    (s, a, run) => {
      const count = intArg(arg(a, 2, "count", -1n));
      return replaceText(s, textArg(need(a, 0, "old")), textArg(need(a, 1, "new")), count, run);
    },
  ],
  ["rfind", (s, a) => find(s, textArg(need(a, 0, "sub")), true)],
  [
    "rjust",
    (s, a, run) =>
      pad(s, intArg(need(a, 0, "width")), textArg(arg(a, 1, "fillchar", " ")), "left", run),
  ],
  [
    "rpartition",
    (s, a) =>
      partition(s, textArg(need(a, 0, "sep")), s.lastIndexOf(textArg(need(a, 0, "sep"))), "left"),
  ],
  ["rsplit", (s, a) => splitRight(s, arg(a, 0, "sep", null), intArg(arg(a, 1, "maxsplit", -1n)))],
  ["rstrip", (s, a) => strip(s, arg(a, 0, "chars", null), "right")],
  ["split", (s, a) => split(s, arg(a, 0, "sep", null), intArg(arg(a, 1, "maxsplit", -1n)))],
  [
    "splitlines",
    (s) => {
      const lines = s.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
      return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
    },
  ],
  ["startswith", (s, a) => affix(s, need(a, 0, "prefix"), (x) => s.startsWith(x))],
  ["strip", (s, a) => strip(s, arg(a, 0, "chars", null), "both")],
  ["title", (s) => titleMethod(s)],
  ["upper", (s) => s.toUpperCase()],
  [
    "zfill",
    (s, a, run) => {
      const sign = /^[-+]/.test(s) ? s[0]! : "";
      const width = intArg(need(a, 0, "width")) - sign.length;
      return sign + pad(s.slice(sign.length), width, "0", "left", run);
    },
  ],
]);

const LIST_METHODS: ReadonlyMap<string, Method<Value[]>> = new Map<string, Method<Value[]>>([
  ["copy", (list) => [...list]],
  ["count", (list, a) => BigInt(list.filter((item) => equal(item, need(a, 0, "value"))).length)],
  [
    "index",
    (list, a) => {
      const at = list.findIndex((item) => equal(item, need(a, 0, "value")));
      if (at < 0) throw new TemplateError("the value is not in the list");
      return BigInt(at);
    },
  ],
]);

const DICT_METHODS: ReadonlyMap<string, Method<Map<Value, Value>>> = new Map<
  string,
  Method<Map<Value, Value>>
>([
  ["copy", (dict) => new Map(dict)],
  [
    "get",
    (dict, a) =>
      dict.get(need(a, 0, "key")) ??
      (dict.has(need(a, 0, "key")) ? null : arg(a, 1, "default", null)),
  ],
  [
    "items",
    (dict) =>
      new Lazy(
        [...dict].map(([k, v]) => Tuple.of2(k, v)),
        true,
      ),
  ],
  ["keys", (dict) => new Lazy([...dict.keys()], true)],
  ["values", (dict) => new Lazy([...dict.values()], true)],
]);

// Methods Python has and a template may not call (they change the object) or that are missing here.
const REFUSED: Readonly<Record<string, readonly string[]>> = {
  str: [
    ...["casefold", "encode", "expandtabs", "format_map", "isascii", "isidentifier", "isnumeric"],
    ...["isprintable", "istitle", "maketrans", "rindex", "swapcase", "translate"],
  ],
  list: ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"],
  dict: ["clear", "fromkeys", "pop", "popitem", "setdefault", "update"],
};

/** A method of a value, or undefined when Python has none of that name. */
export function methodOf(self: Value, name: string, run: Run): Callable | undefined {
  const bound = <T extends Value>(
    value: T,
    method: Method<T> | undefined,
  ): Callable | undefined => {
    if (method) {
      return new Callable(name, (args) => {
        // Most methods look at the whole of their object.
        run.weigh(value);
        return method(value, args, run);
      });
    }
    const type = value instanceof Map ? "dict" : Array.isArray(value) ? "list" : "str";
    if (REFUSED[type]!.includes(name)) {
      throw new TemplateError(`the method '${name}' of '${type}' is not available in templates`);
    }
    return undefined;
  };
  if (typeof self === "string") return bound(self, STRING_METHODS.get(name));
  if (Array.isArray(self)) return bound(self, LIST_METHODS.get(name));
  if (self instanceof Map) return bound(self, DICT_METHODS.get(name));
  return undefined;
}

/** Most numbers range() gives, as in jinja2's sandbox. */
const MAX_RANGE = 100_000;

/** Functions every template can call. */
export function globalFunctions(run: Run): Map<string, Value> {
  const functions: [string, (args: Args) => Value][] = [
    [
      "range",
      (args) => {
        const numbers = args.list.map(intArg);
        const [first = 0, second, step = 1] = numbers;
        const [start, stop] = second === undefined ? [0, first] : [first, second];
        if (step === 0) throw new TemplateError("range() arg 3 must not be zero");
        const count = Math.max(0, Math.ceil((stop - start) / step));
        if (count > MAX_RANGE) {
          throw new TemplateError(`Range too big: at most ${MAX_RANGE} numbers are allowed`);
        }
        run.spend(count * 8);
        return new Lazy(
          Array.from({ length: count }, (_, i) => BigInt(start + i * step)),
          true,
        );
      },
    ],
    [
      "dict",
      (args) => {
        const from = args.list[0];
        const dict = from instanceof Map ? new Map(from) : new Map<Value, Value>();
        if (from !== undefined && !(from instanceof Map)) {
          for (const pair of iterate(from)) {
            const [key, value] = iterate(pair);
            dict.set(key ?? null, value ?? null);
          }
        }
        for (const [key, value] of args.named) dict.set(key, value);
        return dict;
      },
    ],
    [
      "namespace",
      (args) => {
        const space = new Namespace();
        const from = args.list[0];
        if (from instanceof Map) for (const [key, value] of from) space.values.set(str(key), value);
        for (const [key, value] of args.named) space.values.set(key, value);
        return space;
      },
    ],
    [
      "joiner",
      (args) => {
        let used = false;
        return new Callable("joiner", () => {
          const out = used ? arg(args, 0, "sep", ", ") : "";
          used = true;
          return out;
        });
      },
    ],
  ];
  return new Map(functions.map(([name, call]) => [name, new Callable(name, call)]));
}

/** A number for indexing. @throws TemplateError unless it is a whole number. */
export function indexOf(value: Value): number {
  if (typeof value === "bigint" || typeof value === "boolean") return Number(asNumber(value));
  throw new TemplateError(`indices must be integers, not ${typeName(value)}`);
}
