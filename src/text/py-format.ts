// Python's ways to format: the % operator, str.format without format specs, and round().
// Used by jinja.ts and jinja-builtins.ts.
import {
  type Args,
  asNumber,
  floatText,
  repr,
  str,
  TemplateError,
  typeName,
  type Value,
} from "./py-values.ts";

/** Widest field a template may ask for; a format must not be able to fill the memory. */
const MAX_WIDTH = 10_000;

/** `text % values`; one value that is no tuple counts as a tuple of one, a Map gives names. */
export function formatPercent(
  text: string,
  values: readonly Value[] | ReadonlyMap<Value, Value>,
  spend: (chars: number) => void,
): string {
  let next = 0;
  const take = (name: string | undefined): Value => {
    if (name !== undefined) {
      const value = values instanceof Map ? values.get(name) : undefined;
      if (value === undefined)
        throw new TemplateError(`the format names '${name}', which is missing`);
      return value;
    }
    if (!Array.isArray(values) || next >= values.length) {
      throw new TemplateError("not enough arguments for format string");
    }
    return values[next++] as Value;
  };
  const out = text.replace(
    /%(?:\(([^)]*)\))?([-+ 0#]*)(\d+)?(?:\.(\d+))?([a-zA-Z%])?/g,
    (
      whole: string,
      name?: string,
      flags = "",
      width?: string,
      precision?: string,
      kind?: string,
    ) => {
      if (kind === "%") return "%";
      if (kind === undefined)
        throw new TemplateError(`the format ${JSON.stringify(whole)} is incomplete`);
      const wide = Number(width ?? 0);
      if (wide > MAX_WIDTH || Number(precision ?? 0) > 100) {
        throw new TemplateError(`the format ${JSON.stringify(whole)} is too wide`);
      }
      const body = formatOne(
        kind,
        take(name),
        flags,
        precision === undefined ? null : Number(precision),
      );
      spend(body.length + wide);
      if (flags.includes("-")) return body.padEnd(wide);
      if (flags.includes("0") && kind !== "s" && kind !== "r") {
        const sign = /^[-+ ]/.test(body) ? body[0]! : "";
        return sign + body.slice(sign.length).padStart(wide - sign.length, "0");
      }
      return body.padStart(wide);
    },
  );
  if (Array.isArray(values) && next < values.length) {
    throw new TemplateError("not all arguments converted during string formatting");
  }
  return out;
}

function formatOne(kind: string, value: Value, flags: string, precision: number | null): string {
  if (kind === "s" || kind === "r") {
    const body = kind === "s" ? str(value) : repr(value);
    return precision === null ? body : [...body].slice(0, precision).join("");
  }
  if (typeof value !== "bigint" && typeof value !== "number" && typeof value !== "boolean") {
    throw new TemplateError(`%${kind} format: a number is required, not ${typeName(value)}`);
  }
  const number = asNumber(value);
  const signed = (body: string): string => {
    if (body.startsWith("-")) return body;
    return flags.includes("+") ? `+${body}` : flags.includes(" ") ? ` ${body}` : body;
  };
  const whole = (): bigint => (typeof number === "bigint" ? number : BigInt(Math.trunc(number)));
  switch (kind) {
    case "d":
    case "i":
      return signed(whole().toString());
    case "x":
      return signed(whole().toString(16));
    case "X":
      return signed(whole().toString(16).toUpperCase());
    case "f":
      return signed(fixed(Number(number), precision ?? 6));
    default:
      throw new TemplateError(`the format %${kind} is not supported`);
  }
}

// Digits after the point with ties to even, as in C; toFixed rounds exact ties up.
function fixed(value: number, places: number): string {
  if (!Number.isFinite(value)) return floatText(value);
  const up = value.toFixed(places);
  if (Math.abs(value) >= 1e21)
    return BigInt(value).toString() + (places > 0 ? `.${"0".repeat(places)}` : "");
  const exact = value.toFixed(Math.min(100, places + 30));
  const cut = exact.length - Math.min(100 - places, 30);
  const isTie = /^50*$/.test(exact.slice(cut));
  if (!isTie || (Number(up.at(-1)) & 1) === 0) return up;
  return exact.slice(0, cut).replace(/\.$/, "");
}

/** jinja2's round filter. */
export function roundTo(input: Value, places: number, method: string): Value {
  if (typeof input !== "bigint" && typeof input !== "number" && typeof input !== "boolean") {
    throw new TemplateError(`round: a number is required, not ${typeName(input)}`);
  }
  if (places < 0 || places > 20)
    throw new TemplateError(`round to ${places} places is not supported`);
  const number = asNumber(input);
  if (method === "common") {
    return typeof number === "bigint" ? number : Number(fixed(number, places));
  }
  if (method !== "ceil" && method !== "floor") {
    throw new TemplateError("method must be common, ceil or floor");
  }
  const scale = 10 ** places;
  const scaled = Number(number) * scale;
  return (method === "ceil" ? Math.ceil(scaled) : Math.floor(scaled)) / scale;
}

/** str.format with {}, {0} and {name}; format specs are refused. */
export function formatFields(text: string, args: Args, spend: (chars: number) => void): string {
  let next = 0;
  return text.replace(/\{\{|\}\}|\{([^{}]*)\}|[{}]/g, (whole: string, field?: string) => {
    if (whole === "{{") return "{";
    if (whole === "}}") return "}";
    if (field === undefined) throw new TemplateError("a brace in a format is not closed");
    if (!/^\w*$/.test(field)) {
      throw new TemplateError(`the format field ${JSON.stringify(whole)} is not supported`);
    }
    const value = /^\d*$/.test(field)
      ? args.list[field === "" ? next++ : Number(field)]
      : args.named.get(field);
    if (value === undefined) throw new TemplateError(`the format field ${whole} has no value`);
    const body = str(value);
    spend(body.length);
    return body;
  });
}
