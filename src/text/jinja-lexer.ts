// Cuts a chat template into the tokens @huggingface/jinja's parser takes, by the rules of Python's
// jinja2 with trim_blocks and lstrip_blocks. The library's own lexer rewrites the source with
// regexes (inside strings too, in quadratic time) and knows neither raw blocks nor "+%}".
// Called by jinja.ts.

/** A token as the library's parser expects it. */
export interface Token {
  readonly value: string;
  readonly type: TokenType;
}

type TokenType =
  | "Text"
  | "NumericLiteral"
  | "StringLiteral"
  | "Identifier"
  | "Equals"
  | "OpenParen"
  | "CloseParen"
  | "OpenStatement"
  | "CloseStatement"
  | "OpenExpression"
  | "CloseExpression"
  | "OpenSquareBracket"
  | "CloseSquareBracket"
  | "OpenCurlyBracket"
  | "CloseCurlyBracket"
  | "Comma"
  | "Dot"
  | "Colon"
  | "Pipe"
  | "UnaryOperator"
  | "AdditiveBinaryOperator"
  | "MultiplicativeBinaryOperator"
  | "ExponentiationBinaryOperator"
  | "ComparisonBinaryOperator";

/** White space of Python's str.isspace, which is not JavaScript's. */
export const PYTHON_SPACE =
  "\\t\\n\\x0b\\x0c\\r\\x1c-\\x1f \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

const TRAILING_SPACE = new RegExp(`[${PYTHON_SPACE}]+$`);
const SPACE_AT = new RegExp(`[${PYTHON_SPACE}]*`, "y");
const ONLY_SPACE = new RegExp(`^[${PYTHON_SPACE}]+$`);
const RAW_TAG = new RegExp(
  `\\{%([-+]?)[${PYTHON_SPACE}]*raw[${PYTHON_SPACE}]*(?:-%\\}[${PYTHON_SPACE}]*|%\\})`,
  "y",
);
const RAW_END = new RegExp(
  `\\{%([-+]?)[${PYTHON_SPACE}]*endraw[${PYTHON_SPACE}]*(?:\\+%\\}|-%\\}[${PYTHON_SPACE}]*|%\\}\\n?)`,
  "g",
);
const COMMENT_END = new RegExp(`\\+#\\}|-#\\}[${PYTHON_SPACE}]*|#\\}\\n?`, "g");
const BLOCK_END = new RegExp(`\\+%\\}|-%\\}[${PYTHON_SPACE}]*|%\\}\\n?`, "y");
const VARIABLE_END = new RegExp(`-\\}\\}[${PYTHON_SPACE}]*|\\}\\}`, "y");
const NUMBER =
  /(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)/y;
const NAME = /[\p{L}\p{N}_]+/uy;
const STRING = /'((?:[^'\\]|\\[\s\S])*)'|"((?:[^"\\]|\\[\s\S])*)"/y;

// Longest first.
const OPERATORS: readonly (readonly [string, TokenType])[] = [
  ["<=", "ComparisonBinaryOperator"],
  [">=", "ComparisonBinaryOperator"],
  ["==", "ComparisonBinaryOperator"],
  ["!=", "ComparisonBinaryOperator"],
  ["**", "ExponentiationBinaryOperator"],
  ["//", "MultiplicativeBinaryOperator"],
  ["<", "ComparisonBinaryOperator"],
  [">", "ComparisonBinaryOperator"],
  ["*", "MultiplicativeBinaryOperator"],
  ["/", "MultiplicativeBinaryOperator"],
  ["%", "MultiplicativeBinaryOperator"],
  ["+", "AdditiveBinaryOperator"],
  ["-", "AdditiveBinaryOperator"],
  ["~", "AdditiveBinaryOperator"],
  ["=", "Equals"],
  ["(", "OpenParen"],
  [")", "CloseParen"],
  ["[", "OpenSquareBracket"],
  ["]", "CloseSquareBracket"],
  ["{", "OpenCurlyBracket"],
  ["}", "CloseCurlyBracket"],
  [",", "Comma"],
  [".", "Dot"],
  [":", "Colon"],
  ["|", "Pipe"],
];

/** Cuts a template into tokens. @throws Error where jinja2 would report a syntax error. */
export function lex(template: string): Token[] {
  const source = template.replace(/\r\n?/g, "\n").replace(/\n$/, "");
  const tokens: Token[] = [];
  let at = 0;
  let lineStarting = true;

  // Text before a tag, stripped as the tag's sign says.
  const pushText = (end: number, sign: string, isVariable: boolean): void => {
    let text = source.slice(at, end);
    if (sign === "-") {
      text = text.replace(TRAILING_SPACE, "");
    } else if (sign !== "+" && !isVariable) {
      const line = text.lastIndexOf("\n") + 1;
      if ((line > 0 || lineStarting) && ONLY_SPACE.test(text.slice(line)))
        text = text.slice(0, line);
    }
    if (text !== "") tokens.push({ value: text, type: "Text" });
  };
  const passed = (end: number): void => {
    lineStarting = source[end - 1] === "\n";
    at = end;
  };
  const signAt = (index: number): string => {
    const char = source[index];
    return char === "-" || char === "+" ? char : "";
  };

  for (;;) {
    const open = nextTag(source, at);
    if (open < 0) {
      if (at < source.length) tokens.push({ value: source.slice(at), type: "Text" });
      return tokens;
    }
    const kind = source[open + 1];
    const raw = kind === "%" ? matchAt(RAW_TAG, source, open) : null;
    if (raw) {
      pushText(open, raw[1]!, false);
      passed(open + raw[0].length);
      RAW_END.lastIndex = at;
      const end = RAW_END.exec(source);
      if (!end) throw new Error("a raw block is not closed");
      pushText(end.index, end[1]!, false);
      passed(end.index + end[0].length);
      continue;
    }
    const sign = signAt(open + 2);
    pushText(open, sign, kind === "{");
    passed(open + 2 + sign.length);
    if (kind === "#") {
      COMMENT_END.lastIndex = at;
      const end = COMMENT_END.exec(source);
      if (!end) throw new Error("a comment is not closed");
      passed(end.index + end[0].length);
      continue;
    }
    const first = tokens.length;
    at = lexTag(source, at, kind === "%", tokens);
    lineStarting = source[at - 1] === "\n";
    // transformers' own tag around what the assistant generates; it prints its body unchanged.
    const word = tokens[first + 1]?.value;
    const isMark = word === "generation" || word === "endgeneration";
    if (kind === "%" && isMark && tokens.length === first + 3) tokens.length = first;
  }
}

function nextTag(source: string, from: number): number {
  for (let at = source.indexOf("{", from); at >= 0; at = source.indexOf("{", at + 1)) {
    const next = source[at + 1];
    if (next === "{" || next === "%" || next === "#") return at;
  }
  return -1;
}

function matchAt(pattern: RegExp, source: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at;
  return pattern.exec(source);
}

// The inside of one tag; returns where it ends.
function lexTag(source: string, from: number, isBlock: boolean, tokens: Token[]): number {
  tokens.push(
    isBlock ? { value: "{%", type: "OpenStatement" } : { value: "{{", type: "OpenExpression" },
  );
  const closers: string[] = [];
  let at = from;
  for (;;) {
    at += matchAt(SPACE_AT, source, at)![0].length;
    if (at >= source.length) throw new Error("a tag is not closed");
    if (closers.length === 0) {
      const end = matchAt(isBlock ? BLOCK_END : VARIABLE_END, source, at);
      if (end) {
        tokens.push(
          isBlock
            ? { value: "%}", type: "CloseStatement" }
            : { value: "}}", type: "CloseExpression" },
        );
        return at + end[0].length;
      }
    }
    const text = matchAt(STRING, source, at);
    if (text) {
      tokens.push({ value: readEscapes(text[1] ?? text[2] ?? ""), type: "StringLiteral" });
      at += text[0].length;
      continue;
    }
    const number = matchAt(NUMBER, source, at);
    if (number) {
      // "a.0.b": after a dot digits are an index, not a fraction.
      const literal = tokens.at(-1)?.type === "Dot" ? /^\d+/.exec(number[0])![0] : number[0];
      tokens.push({ value: plainNumber(literal), type: "NumericLiteral" });
      at += literal.length;
      continue;
    }
    const name = matchAt(NAME, source, at);
    if (name) {
      tokens.push({ value: name[0], type: "Identifier" });
      at += name[0].length;
      continue;
    }
    const operator = OPERATORS.find(([sequence]) => source.startsWith(sequence, at));
    if (!operator) throw new Error(`unexpected character ${JSON.stringify(source[at])}`);
    const [sequence, type] = operator;
    if (type === "OpenParen") closers.push(")");
    else if (type === "OpenSquareBracket") closers.push("]");
    else if (type === "OpenCurlyBracket") closers.push("}");
    else if (sequence === ")" || sequence === "]" || sequence === "}") {
      if (closers.pop() !== sequence) throw new Error(`unexpected ${JSON.stringify(sequence)}`);
    }
    tokens.push({ value: sequence, type });
    at += sequence.length;
  }
}

// The parser takes plain decimals; a "." makes a float.
function plainNumber(literal: string): string {
  const digits = literal.replaceAll("_", "");
  const value = Number(digits);
  if (/^0[xob]/i.test(digits) || /^\d+$/.test(digits)) {
    if (!Number.isSafeInteger(value)) throw new Error(`the number ${literal} is too large`);
    return String(value);
  }
  if (!/[eE]/.test(digits)) return digits;
  const plain = value.toLocaleString("en-US", { useGrouping: false, maximumFractionDigits: 20 });
  if (Number(plain) !== value) throw new Error(`the number ${literal} is not supported`);
  return plain.includes(".") ? plain : `${plain}.0`;
}

const ESCAPES: Readonly<Record<string, string>> = {
  "\\": "\\",
  "'": "'",
  '"': '"',
  "\n": "",
  a: "\x07",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
  v: "\v",
};

// Python's escapes; an unknown one keeps its backslash.
function readEscapes(text: string): string {
  return text.replace(
    /\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|([\s\S]))/g,
    (whole: string, x?: string, u?: string, long?: string, octal?: string, char?: string) => {
      if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
      const hex = x ?? u ?? long;
      if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
      if (char === "x" || char === "u" || char === "U" || char === "N") {
        throw new Error(`the escape \\${char} in a string cannot be read`);
      }
      return ESCAPES[char!] ?? whole;
    },
  );
}
