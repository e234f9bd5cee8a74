// Python's values as chat templates see them, and what Python's str, repr, json.dumps, comparison
// and arithmetic make of them. Integers are bigint and floats number, so 1 and 1.0 stay apart.
// Used by jinja.ts and jinja-builtins.ts only.

/** A value inside a template. Lists are arrays, tuples Tuple, dicts Map. */
export type Value =
  | null
  | boolean
  | bigint
  | number
  | string
  | Value[]
  | Map<Value, Value>
  | Undefined
  | Lazy
  | Namespace
  | Callable;

/** A tuple: an array that prints with parentheses. */
export class Tuple extends Array<Value> {
  static of2(a: Value, b: Value): Tuple {
    const tuple = new Tuple(2);
    tuple[0] = a;
    tuple[1] = b;
    return tuple;
  }
  // map and filter on a tuple give plain arrays.
  static override get [Symbol.species](): ArrayConstructor {
    return Array;
  }
}

/** A name, attribute or item that is not there. */
export class Undefined {
  readonly what: string;
  constructor(what: string) {
    this.what = what;
  }
}

/** What Python's generators and dict views are: can be walked, but printing them is an error. */
export class Lazy {
  readonly items: readonly Value[];
  /** dict views have a length, generators do not. */
  readonly sized: boolean;
  constructor(items: readonly Value[], sized: boolean) {
    this.items = items;
    this.sized = sized;
  }
}

/** jinja2's namespace(): the one object a template may change. */
export class Namespace {
  readonly values = new Map<string, Value>();
}

/** Positional and keyword arguments of a call. */
export interface Args {
  readonly list: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
}

/** A function, method or macro. `attribute` gives loop.index and the like. */
export class Callable {
  readonly name: string;
  readonly call: (args: Args) => Value;
  readonly attribute: (name: string) => Value | undefined;
  constructor(
    name: string,
    call: (args: Args) => Value,
    attribute: (name: string) => Value | undefined = () => undefined,
  ) {
    this.name = name;
    this.call = call;
    this.attribute = attribute;
  }
}

/** An error of the template or its use; the message is Python's where a reader would look it up. */
export class TemplateError extends Error {}

/** Python's type name of a value. */
export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  switch (typeof value) {
    case "boolean":
      return "bool";
    case "bigint":
      return "int";
    case "number":
      return "float";
    case "string":
      return "str";
    default:
  }
  if (value instanceof Tuple) return "tuple";
  if (Array.isArray(value)) return "list";
  if (value instanceof Map) return "dict";
  if (value instanceof Undefined) return "undefined";
  return value instanceof Lazy ? "generator" : "object";
}

/** @throws TemplateError, as jinja2 does when an undefined value is used. */
export function undefinedError(value: Undefined): TemplateError {
  return new TemplateError(`${value.what} is undefined`);
}

export function truthy(value: Value): boolean {
  if (value === null || value instanceof Undefined) return false;
  if (typeof value === "object") {
    if (Array.isArray(value)) return value.length > 0;
    if (value instanceof Map) return value.size > 0;
    if (value instanceof Lazy) return !value.sized || value.items.length > 0;
    return true;
  }
  return Boolean(value);
}

/** Python's str(). */
export function str(value: Value): string {
  if (typeof value === "string") return value;
  if (value instanceof Undefined) return "";
  return repr(value);
}

/** Python's repr(). */
export function repr(value: Value): string {
  if (value === null) return "None";
  switch (typeof value) {
    case "boolean":
      return value ? "True" : "False";
    case "bigint":
      return value.toString();
    case "number":
      return floatText(value);
    case "string":
      return reprString(value);
    default:
  }
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof Tuple) {
    return value.length === 1 ? `(${repr(value[0]!)},)` : `(${[...value].map(repr).join(", ")})`;
  }
  if (Array.isArray(value)) return `[${value.map(repr).join(", ")}]`;
  if (value instanceof Map) {
    return `{${[...value].map(([k, v]) => `${repr(k)}: ${repr(v)}`).join(", ")}}`;
  }
  // Python prints an address here, so no two runs would agree.
  throw new TemplateError(`a ${typeName(value)} cannot be printed`);
}

/** A float as Python writes it. */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) {
    const [digits, exponent] = value.toExponential().split("e") as [string, string];
    return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  }
  const text = String(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

function reprString(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  let out = mark;
  for (const char of text) {
    const code = char.codePointAt(0)!;
    if (char === mark || char === "\\") out += `\\${char}`;
    else if (char === "\n") out += "\\n";
    else if (char === "\r") out += "\\r";
    else if (char === "\t") out += "\\t";
    // Python escapes what it does not call printable: controls, separators, unassigned.
    else if (code === 0x20 || !/[\p{C}\p{Z}]/u.test(char)) out += char;
    else if (code < 0x100) out += `\\x${code.toString(16).padStart(2, "0")}`;
    else if (code < 0x10000) out += `\\u${code.toString(16).padStart(4, "0")}`;
    else out += `\\U${code.toString(16).padStart(8, "0")}`;
  }
  return out + mark;
}

/** How json.dumps is to write. */
export interface JsonStyle {
  readonly ensureAscii: boolean;
  readonly indent: string | null;
  readonly item: string;
  readonly key: string;
  readonly sortKeys: boolean;
}

/** Python's json.dumps. */
export function dumps(value: Value, style: JsonStyle, depth = 0): string {
  const quoted = (text: string): string => {
    const json = JSON.stringify(text);
    if (!style.ensureAscii) return json;
    return json.replace(/[\u007f-\uffff]/g, (c) =>
      c === "\u007f" ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
  };
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") {
    if (Number.isFinite(value)) return floatText(value);
    return Number.isNaN(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  }
  if (typeof value === "string") return quoted(value);
  const wrap = (open: string, items: string[], close: string): string => {
    if (items.length === 0) return open + close;
    if (style.indent === null) return open + items.join(style.item) + close;
    const inner = `\n${style.indent.repeat(depth + 1)}`;
    return `${open}${inner}${items.join(style.item + inner)}\n${style.indent.repeat(depth)}${close}`;
  };
  if (Array.isArray(value)) {
    return wrap(
      "[",
      [...value].map((item) => dumps(item, style, depth + 1)),
      "]",
    );
  }
  if (value instanceof Map) {
    let entries = [...value];
    if (style.sortKeys) entries = entries.sort(([a], [b]) => compare(a, b));
    const items = entries.map(([key, item]) => {
      const name = typeof key === "string" ? key : dumps(key, style);
      return `${quoted(name)}${style.key}${dumps(item, style, depth + 1)}`;
    });
    return wrap("{", items, "}");
  }
  throw new TemplateError(`Object of type ${typeName(value)} is not JSON serializable`);
}

/** Code points of a string: what Python counts and indexes. */
export function codePoints(text: string): string[] {
  return [...text];
}

/** Length in code points, without an array for plain text. */
export function stringLength(text: string): number {
  let pairs = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code >= 0xd800 && code <= 0xdbff && i + 1 < text.length) {
      const next = text.charCodeAt(i + 1);
      if (next >= 0xdc00 && next <= 0xdfff) pairs++;
    }
  }
  return text.length - pairs;
}

const isNumber = (v: Value): v is boolean | bigint | number =>
  typeof v === "boolean" || typeof v === "bigint" || typeof v === "number";

/** A bool as the integer it is in Python. */
export function asNumber(value: boolean | bigint | number): bigint | number {
  return typeof value === "boolean" ? BigInt(value) : value;
}

/** Python's ==. */
export function equal(a: Value, b: Value): boolean {
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [asNumber(a), asNumber(b)]; // 1 and 1.0 are equal, so not ===
    return x <= y && x >= y;
  }
  if (a instanceof Undefined && b instanceof Undefined) return true;
  if (Array.isArray(a) && Array.isArray(b)) {
    if (a instanceof Tuple !== b instanceof Tuple || a.length !== b.length) return false;
    return a.every((item, i) => equal(item, b[i]!));
  }
  if (a instanceof Map && b instanceof Map) {
    if (a.size !== b.size) return false;
    for (const [key, item] of a) {
      const other = b.get(key);
      if (other === undefined || !equal(item, other)) return false;
    }
    return true;
  }
  return a === b;
}

/** Order of two values as Python's < sees it: negative, 0, positive. */
export function compare(a: Value, b: Value): number {
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [asNumber(a), asNumber(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (typeof a === "string" && typeof b === "string") {
    if (a === b) return 0;
    const [x, y] = [codePoints(a), codePoints(b)];
    for (let i = 0; i < x.length && i < y.length; i++) {
      if (x[i] !== y[i]) return x[i]!.codePointAt(0)! - y[i]!.codePointAt(0)!;
    }
    return x.length - y.length;
  }
  if (Array.isArray(a) && Array.isArray(b)) {
    for (let i = 0; i < a.length && i < b.length; i++) {
      if (!equal(a[i]!, b[i]!)) return compare(a[i]!, b[i]!);
    }
    return a.length - b.length;
  }
  if (a instanceof Undefined) throw undefinedError(a);
  if (b instanceof Undefined) throw undefinedError(b);
  throw new TemplateError(`'<' not supported between ${typeName(a)} and ${typeName(b)}`);
}

/** JSON as JSON.parse gives it, as a template value; whole numbers are integers. */
export function fromJs(value: unknown): Value {
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (typeof value === "bigint") return value;
  if (typeof value === "number") return Number.isSafeInteger(value) ? BigInt(value) : value;
  if (value instanceof Number) return value.valueOf(); // a float even when it is whole
  if (Array.isArray(value)) return value.map(fromJs);
  if (typeof value === "object" && value !== null) {
    return new Map(Object.entries(value).map(([key, item]) => [key, fromJs(item)]));
  }
  throw new TemplateError(`a ${typeof value} is no template value`);
}

/** Most digits an integer may have; enough for any id, and powers cannot fill the memory. */
const MAX_INT_BITS = 4096;

/** Python's + - * / // % ** on numbers. */
export function arithmetic(operator: string, a: Value, b: Value): Value {
  if (!isNumber(a) || !isNumber(b)) {
    if (a instanceof Undefined) throw undefinedError(a);
    if (b instanceof Undefined) throw undefinedError(b);
    throw new TemplateError(
      `unsupported operand type(s) for ${operator}: '${typeName(a)}' and '${typeName(b)}'`,
    );
  }
  const [x, y] = [asNumber(a), asNumber(b)];
  if ((operator === "/" || operator === "//" || operator === "%") && Number(y) === 0) {
    throw new TemplateError("division by zero");
  }
  if (typeof x === "bigint" && typeof y === "bigint") return integerOp(operator, x, y);
  const [p, q] = [Number(x), Number(y)];
  switch (operator) {
    case "+":
      return p + q;
    case "-":
      return p - q;
    case "*":
      return p * q;
    case "/":
      return p / q;
    case "//":
      return Math.floor(p / q);
    case "%":
      return p - Math.floor(p / q) * q;
    default:
      return p ** q;
  }
}

function integerOp(operator: string, x: bigint, y: bigint): Value {
  switch (operator) {
    case "+":
      return x + y;
    case "-":
      return x - y;
    case "*":
      return limited(x * y);
    case "/":
      return Number(x) / Number(y);
    case "//": {
      const quotient = x / y;
      return x % y !== 0n && x < 0n !== y < 0n ? quotient - 1n : quotient;
    }
    case "%": {
      const rest = x % y;
      return rest !== 0n && rest < 0n !== y < 0n ? rest + y : rest;
    }
    default: {
      if (y < 0n) return Number(x) ** Number(y);
      const bits = BigInt(x.toString(2).length) * y;
      if (bits > MAX_INT_BITS) throw new TemplateError("an integer is too large");
      return x ** y;
    }
  }
}

function limited(value: bigint): bigint {
  const bound = 1n << BigInt(MAX_INT_BITS);
  if (value > bound || value < -bound) throw new TemplateError("an integer is too large");
  return value;
}
