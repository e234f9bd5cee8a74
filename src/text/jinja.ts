// Runs a chat template as Python's sandboxed jinja2 would. @huggingface/jinja parses (this is its
// only importer); its interpreter prints null, true and 1.0 as JavaScript does, lets loops share a
// scope and has no limit, so the tree is evaluated here, on py-values.ts, with a budget of steps:
// a template that loops without end stops after the same work on every machine.
// Called by template.ts.
import { parse } from "@huggingface/jinja";
import {
  contains,
  FILTERS,
  globalFunctions,
  indexOf,
  iterate,
  methodOf,
  type Run,
  TESTS,
} from "./jinja-builtins.ts";
import { lex, type Token } from "./jinja-lexer.ts";
import { formatPercent } from "./py-format.ts";
import {
  type Args,
  arithmetic,
  Callable,
  codePoints,
  compare,
  equal,
  Lazy,
  Namespace,
  str,
  TemplateError,
  Tuple,
  truthy,
  typeName,
  Undefined,
  undefinedError,
  type Value,
} from "./py-values.ts";

/** A parsed template. */
export interface Program {
  readonly body: readonly Node[];
  /** Arguments of tests, which the library's parser does not know; see takeTestArguments. */
  readonly testArguments: readonly (readonly Node[])[];
}

/** The template called raise_exception. */
export class RaisedByTemplate extends TemplateError {}

/** The template did more than its budget allows. */
export class BudgetSpent extends TemplateError {}

/** Nodes inside each other; jinja2 gives up at Python's recursion limit, about here. */
const MAX_DEPTH = 600;

/** Characters that cost as much as one step; long strings are copied faster than nodes run. */
const CHARS_PER_STEP = 8;

// The nodes of the library's parser, as far as they are read here.
type Node = {
  readonly [K in keyof Shapes]: { readonly type: K } & Shapes[K];
}[keyof Shapes];

interface Named {
  readonly value: string;
}
interface Operator {
  readonly operator: { readonly value: string };
}
interface Shapes {
  readonly If: { test: Node; body: Node[]; alternate: Node[] };
  readonly For: { loopvar: Node; iterable: Node; body: Node[]; defaultBlock: Node[] };
  readonly Break: object;
  readonly Continue: object;
  readonly Set: { assignee: Node; value: Node | null; body: Node[] };
  readonly Macro: { name: Named; args: Node[]; body: Node[] };
  readonly CallStatement: { call: Node; callerArgs: Node[] | null; body: Node[] };
  readonly FilterStatement: { filter: Node; body: Node[] };
  readonly Comment: object;
  readonly MemberExpression: { object: Node; property: Node; computed: boolean };
  readonly CallExpression: { callee: Node; args: Node[] };
  readonly Identifier: Named;
  readonly IntegerLiteral: { value: number };
  readonly FloatLiteral: { value: number };
  readonly StringLiteral: Named;
  readonly ArrayLiteral: { value: Node[] };
  readonly TupleLiteral: { value: Node[] };
  readonly ObjectLiteral: { value: Map<Node, Node> };
  readonly BinaryExpression: Operator & { left: Node; right: Node };
  readonly UnaryExpression: Operator & { argument: Node };
  readonly FilterExpression: { operand: Node; filter: Node };
  readonly TestExpression: { operand: Node; negate: boolean; test: Named };
  readonly SelectExpression: { lhs: Node; test: Node };
  readonly Ternary: { condition: Node; trueExpr: Node; falseExpr: Node };
  readonly SliceExpression: { start?: Node; stop?: Node; step?: Node };
  readonly KeywordArgumentExpression: { key: Named; value: Node };
  readonly SpreadExpression: { argument: Node };
  readonly KeywordSpreadExpression: { argument: Node };
}

/** Parses a template. @throws Error with the parser's reason. */
export function parseTemplate(template: string): Program {
  const testArguments: Node[][] = [];
  const body = parseTokens(takeTestArguments(lex(template), testArguments));
  return { body, testArguments };
}

// The parser's tree is plain objects of the shapes above; its own types are not exported.
function parseTokens(tokens: readonly Token[]): Node[] {
  return parse(markGroups(tokens) as Parameters<typeof parse>[0]).body as unknown as Node[];
}

/** A unary sign before a parenthesis that does nothing but show that it was there. */
const GROUP: Token = { value: "+", type: "UnaryOperator" };

// Words a parenthesis can follow without being a call.
const BEFORE_GROUP = new Set(["in", "not", "and", "or", "if", "elif", "else"]);

// The parser forgets parentheses, but (a == b) != c is not a == b != c.
function markGroups(tokens: readonly Token[]): Token[] {
  const out: Token[] = [];
  tokens.forEach((token, i) => {
    if (token.type === "OpenParen") {
      const before = tokens[i - 1];
      const isCall =
        before !== undefined &&
        (["CloseParen", "CloseSquareBracket", "StringLiteral"].includes(before.type) ||
          (before.type === "Identifier" && !BEFORE_GROUP.has(before.value)));
      if (!isCall) out.push(GROUP);
    }
    out.push(token);
  });
  return out;
}

// "x is divisibleby(3)": the parser takes only a name after "is". The arguments are cut out, parsed
// as those of a call, and the name becomes "divisibleby#0", their number in the table.
function takeTestArguments(tokens: readonly Token[], table: Node[][]): Token[] {
  const out: Token[] = [];
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i]!;
    out.push(token);
    if (token.type !== "Identifier" || token.value !== "is" || tokens[i - 1]?.type === "Dot")
      continue;
    if (tokens[i + 1]?.value === "not") out.push(tokens[++i]!);
    const name = tokens[++i];
    if (name?.type !== "Identifier") throw new Error("a test has no name");
    const end = argumentsEnd(tokens, i + 1);
    if (end === i + 1) {
      out.push(name);
      continue;
    }
    const inner = takeTestArguments(tokens.slice(i + 1, end), table);
    const paren = inner[0]?.type === "OpenParen";
    const call: Token[] = [
      { value: "{{", type: "OpenExpression" },
      { value: "test", type: "Identifier" },
      ...(paren ? [] : [{ value: "(", type: "OpenParen" } as const]),
      ...inner,
      ...(paren ? [] : [{ value: ")", type: "CloseParen" } as const]),
      { value: "}}", type: "CloseExpression" },
    ];
    const [node] = parseTokens(call);
    if (node?.type !== "CallExpression") throw new Error(`the test ${name.value} cannot be read`);
    out.push({ value: `${name.value}#${table.length}`, type: "Identifier" });
    table.push(node.args);
    i = end - 1;
  }
  return out;
}

const OPENERS = new Set(["OpenParen", "OpenSquareBracket", "OpenCurlyBracket"]);
const CLOSERS = new Set(["CloseParen", "CloseSquareBracket", "CloseCurlyBracket"]);
const NO_ARGUMENT = new Set(["else", "or", "and", "is", "if", "in", "not"]);

// Where the argument of a test that starts at `from` ends: a bracketed group or one primary with
// its attributes; `from` itself when there is none.
function argumentsEnd(tokens: readonly Token[], from: number): number {
  const first = tokens[from];
  if (!first) return from;
  let at = from;
  if (OPENERS.has(first.type)) {
    for (let depth = 0; at < tokens.length; at++) {
      if (OPENERS.has(tokens[at]!.type)) depth++;
      else if (CLOSERS.has(tokens[at]!.type) && --depth === 0) break;
    }
    at++;
    if (first.type === "OpenParen") return at;
  } else if (first.type === "StringLiteral" || first.type === "NumericLiteral") {
    at++;
  } else if (first.type === "Identifier" && !NO_ARGUMENT.has(first.value)) {
    at++;
  } else {
    return from;
  }
  while (tokens[at]?.type === "Dot" && tokens[at + 1]?.type === "Identifier") at += 2;
  if (OPENERS.has(tokens[at]?.type ?? "")) {
    throw new Error("a test with an argument that is called or indexed is not supported");
  }
  return at;
}

interface Scope {
  readonly names: Map<string, Value>;
  readonly parent: Scope | null;
}

const child = (parent: Scope): Scope => ({ names: new Map(), parent });

type Signal = "break" | "continue" | null;

interface Output {
  text: string;
}

/**
 * Renders a template.
 * @param budget steps it may take
 * @throws TemplateError, RaisedByTemplate, BudgetSpent
 */
export function runTemplate(
  program: Program,
  variables: ReadonlyMap<string, Value>,
  budget: number,
): string {
  let left = budget;
  let depth = 0;
  const spend = (chars: number): void => {
    left -= 1 + chars / CHARS_PER_STEP;
    if (left < 0) throw new BudgetSpent("the template takes too many steps or makes too much text");
  };
  // A small template can make a list that holds itself many times over; count before walking it.
  const weigh = (value: Value): void => {
    spend(typeof value === "string" ? value.length : 0);
    if (Array.isArray(value)) {
      for (const item of value) weigh(item);
    } else if (value instanceof Map) {
      for (const [key, item] of value) {
        weigh(key);
        weigh(item);
      }
    } else if (value instanceof Lazy) {
      for (const item of value.items) weigh(item);
    }
  };
  // Counts one walk over a value without its parts: most filters and tests do at least that.
  const glance = (value: Value): void => {
    if (typeof value === "string") spend(value.length);
    else if (Array.isArray(value)) spend(value.length * CHARS_PER_STEP);
    else if (value instanceof Map) spend(value.size * CHARS_PER_STEP);
    else if (value instanceof Lazy) spend(value.items.length * CHARS_PER_STEP);
  };
  const text = (value: Value): string => {
    weigh(value);
    return str(value);
  };
  const run: Run = { spend, text, weigh, item: (object, key) => getItem(object, key) };

  const attribute = (object: Value, name: string): Value | undefined => {
    if (object instanceof Callable) return object.attribute(name);
    if (object instanceof Namespace) return object.values.get(name);
    return methodOf(object, name, run);
  };
  const missing = (object: Value, name: Value): Undefined =>
    new Undefined(`'${typeName(object)} object' has no attribute '${str(name)}'`);
  const stored = (object: Value, key: Value): Value | undefined => {
    if (object instanceof Map) return object.get(key);
    if (typeof key !== "bigint" && typeof key !== "boolean") return undefined;
    if (Array.isArray(object)) return object.at(indexOf(key));
    if (typeof object === "string") {
      spend(object.length);
      return codePoints(object).at(indexOf(key));
    }
    if (object instanceof Lazy && object.sized) return object.items.at(indexOf(key));
    return undefined;
  };
  // jinja2: a.b is the attribute, else the item; a["b"] the item, else the attribute.
  const getAttribute = (object: Value, name: string): Value => {
    if (object instanceof Undefined) throw undefinedError(object);
    const found = attribute(object, name);
    if (found !== undefined) return found;
    return stored(object, name) ?? (has(object, name) ? null : missing(object, name));
  };
  const getItem = (object: Value, key: Value): Value => {
    if (object instanceof Undefined) throw undefinedError(object);
    const found = stored(object, key);
    if (found !== undefined) return found;
    return (typeof key === "string" ? attribute(object, key) : undefined) ?? missing(object, key);
  };
  const has = (object: Value, name: string): boolean => object instanceof Map && object.has(name);

  const lookup = (name: string, scope: Scope): Value => {
    for (let s: Scope | null = scope; s; s = s.parent) {
      const value = s.names.get(name);
      if (value !== undefined) return value;
    }
    return new Undefined(`'${name}'`);
  };

  const evaluate = (node: Node, scope: Scope): Value => {
    spend(0);
    if (++depth > MAX_DEPTH) throw new TemplateError("the template is nested too deeply");
    const value = evaluateNode(node, scope);
    depth--;
    return value;
  };

  const evaluateNode = (node: Node, scope: Scope): Value => {
    switch (node.type) {
      case "Identifier":
        return CONSTANTS.has(node.value) ? CONSTANTS.get(node.value)! : lookup(node.value, scope);
      case "StringLiteral":
        return node.value;
      case "IntegerLiteral":
        return BigInt(node.value);
      case "FloatLiteral":
        return node.value;
      case "ArrayLiteral":
        return node.value.map((item) => evaluate(item, scope));
      case "TupleLiteral": {
        const tuple = new Tuple(node.value.length);
        for (let i = 0; i < node.value.length; i++) tuple[i] = evaluate(node.value[i]!, scope);
        return tuple;
      }
      case "ObjectLiteral": {
        const dict = new Map<Value, Value>();
        for (const [key, value] of node.value)
          dict.set(evaluate(key, scope), evaluate(value, scope));
        return dict;
      }
      case "MemberExpression":
        return evaluateMember(node, scope);
      case "CallExpression":
        return call(evaluate(node.callee, scope), evaluateArgs(node.args, scope));
      case "UnaryExpression": {
        const value = evaluate(node.argument, scope);
        if (node.operator === GROUP) return value;
        if (node.operator.value === "not") return !truthy(value);
        return typeof value === "number" && node.operator.value === "-"
          ? -value
          : arithmetic(node.operator.value, 0n, value);
      }
      case "BinaryExpression":
        return evaluateBinary(node, scope);
      case "FilterExpression":
        return applyFilter(evaluate(node.operand, scope), node.filter, scope);
      case "TestExpression":
        return evaluateTest(node, scope);
      case "Ternary":
        return evaluate(
          truthy(evaluate(node.condition, scope)) ? node.trueExpr : node.falseExpr,
          scope,
        );
      case "SelectExpression":
        return truthy(evaluate(node.test, scope))
          ? evaluate(node.lhs, scope)
          : new Undefined("the inline if-expression without else");
      default:
        throw new TemplateError(`${node.type} cannot stand here`);
    }
  };

  const evaluateMember = (
    node: Extract<Node, { type: "MemberExpression" }>,
    scope: Scope,
  ): Value => {
    const object = evaluate(node.object, scope);
    const { property } = node;
    if (property.type === "SliceExpression") return slice(object, property, scope);
    if (node.computed) return getItem(object, evaluate(property, scope));
    if (property.type === "Identifier") return getAttribute(object, property.value);
    return getItem(object, evaluate(property, scope));
  };

  const slice = (
    object: Value,
    range: Extract<Node, { type: "SliceExpression" }>,
    scope: Scope,
  ): Value => {
    const part = (node: Node | undefined): number | null => {
      const value = node ? evaluate(node, scope) : null;
      return value === null ? null : indexOf(value);
    };
    const [start, stop, step] = [part(range.start), part(range.stop), part(range.step) ?? 1];
    if (step === 0) throw new TemplateError("slice step cannot be zero");
    if (object instanceof Undefined) throw undefinedError(object);
    if (typeof object !== "string" && !Array.isArray(object)) return missing(object, "slice");
    const items = typeof object === "string" ? codePoints(object) : object;
    spend(items.length);
    const size = items.length;
    const clamp = (at: number | null, ifNone: number): number => {
      if (at === null) return ifNone;
      const from = at < 0 ? at + size : at;
      return step > 0 ? Math.min(Math.max(from, 0), size) : Math.min(Math.max(from, -1), size - 1);
    };
    const first = clamp(start, step > 0 ? 0 : size - 1);
    const last = clamp(stop, step > 0 ? size : -1);
    const picked: Value[] = [];
    for (let i = first; step > 0 ? i < last : i > last; i += step) picked.push(items[i]!);
    if (typeof object === "string") return picked.join("");
    return object instanceof Tuple ? Tuple.from(picked) : picked;
  };

  const evaluateArgs = (nodes: readonly Node[], scope: Scope): Args => {
    const list: Value[] = [];
    const named = new Map<string, Value>();
    for (const node of nodes) {
      if (node.type === "KeywordArgumentExpression") {
        named.set(node.key.value, evaluate(node.value, scope));
      } else if (node.type === "SpreadExpression") {
        const spread = iterate(evaluate(node.argument, scope));
        spend(spread.length * CHARS_PER_STEP);
        for (const item of spread) list.push(item);
      } else if (node.type === "KeywordSpreadExpression") {
        const dict = evaluate(node.argument, scope);
        if (!(dict instanceof Map)) throw new TemplateError("argument after ** must be a mapping");
        for (const [key, value] of dict) named.set(str(key), value);
      } else {
        list.push(evaluate(node, scope));
      }
    }
    return { list, named };
  };

  const call = (callee: Value, args: Args): Value => {
    if (callee instanceof Callable) return callee.call(args);
    if (callee instanceof Undefined) throw undefinedError(callee);
    throw new TemplateError(`'${typeName(callee)}' object is not callable`);
  };

  const evaluateBinary = (
    node: Extract<Node, { type: "BinaryExpression" }>,
    scope: Scope,
  ): Value => {
    const operator = node.operator.value;
    if (isComparison(operator) && node.left.type === "BinaryExpression") {
      if (isComparison(node.left.operator.value)) {
        // Python means a < b and b < c; no published template does.
        throw new TemplateError("a chain of comparisons is not supported");
      }
    }
    const left = evaluate(node.left, scope);
    if (operator === "and") return truthy(left) ? evaluate(node.right, scope) : left;
    if (operator === "or") return truthy(left) ? left : evaluate(node.right, scope);
    return operate(operator, left, evaluate(node.right, scope));
  };

  const operate = (operator: string, left: Value, right: Value): Value => {
    const weighed = (): void => {
      weigh(left);
      weigh(right);
    };
    switch (operator) {
      case "==":
        weighed();
        return equal(left, right);
      case "!=":
        weighed();
        return !equal(left, right);
      case "<":
        weighed();
        return compare(left, right) < 0;
      case "<=":
        weighed();
        return compare(left, right) <= 0;
      case ">":
        weighed();
        return compare(left, right) > 0;
      case ">=":
        weighed();
        return compare(left, right) >= 0;
      case "in":
        return contains(right, left, run);
      case "not in":
        return !contains(right, left, run);
      case "~":
        return text(left) + text(right);
      case "+":
        if (typeof left === "string" && typeof right === "string") {
          spend(left.length + right.length);
          return left + right;
        }
        if (Array.isArray(left) && Array.isArray(right) && typeName(left) === typeName(right)) {
          spend(8 * (left.length + right.length));
          const joined = [...left, ...right];
          return left instanceof Tuple ? Tuple.from(joined) : joined;
        }
        return arithmetic(operator, left, right);
      case "*":
        return repeat(left, right) ?? repeat(right, left) ?? arithmetic(operator, left, right);
      case "%":
        if (typeof left !== "string") return arithmetic(operator, left, right);
        weigh(right);
        if (right instanceof Map) return formatPercent(left, right, spend);
        return formatPercent(left, right instanceof Tuple ? right : [right], spend);
      default:
        return arithmetic(operator, left, right);
    }
  };

  const repeat = (what: Value, times: Value): Value | undefined => {
    if (typeof what !== "string" && !Array.isArray(what)) return undefined;
    if (typeof times !== "bigint" && typeof times !== "boolean") return undefined;
    const count = Math.max(0, indexOf(times));
    spend(count * what.length * (typeof what === "string" ? 1 : 8));
    if (typeof what === "string") return what.repeat(count);
    const items: Value[] = [];
    for (let i = 0; i < count; i++) for (const item of what) items.push(item);
    return what instanceof Tuple ? Tuple.from(items) : items;
  };

  const applyFilter = (input: Value, filter: Node, scope: Scope): Value => {
    const named = filter.type === "CallExpression" ? filter.callee : filter;
    if (named.type !== "Identifier") throw new TemplateError("a filter has no name");
    const apply = FILTERS.get(named.value);
    if (!apply) throw new TemplateError(`no filter named '${named.value}'`);
    const args = evaluateArgs(filter.type === "CallExpression" ? filter.args : [], scope);
    glance(input);
    return apply(input, args, run);
  };

  const evaluateTest = (node: Extract<Node, { type: "TestExpression" }>, scope: Scope): boolean => {
    const [name = "", number] = node.test.value.split("#");
    const test = TESTS.get(name);
    if (!test) throw new TemplateError(`no test named '${name}'`);
    const operand = evaluate(node.operand, scope);
    glance(operand);
    const nodes = number === undefined ? [] : program.testArguments[Number(number)]!;
    return test(operand, evaluateArgs(nodes, scope).list, run) !== node.negate;
  };

  const execAll = (nodes: readonly Node[], scope: Scope, out: Output): Signal => {
    for (const node of nodes) {
      const signal = exec(node, scope, out);
      if (signal) return signal;
    }
    return null;
  };

  const captured = (nodes: readonly Node[], scope: Scope): string => {
    const out = { text: "" };
    execAll(nodes, scope, out);
    return out.text;
  };

  const write = (out: Output, value: Value): void => {
    out.text += text(value);
  };

  const exec = (node: Node, scope: Scope, out: Output): Signal => {
    spend(0);
    if (++depth > MAX_DEPTH) throw new TemplateError("the template is nested too deeply");
    const signal = execNode(node, scope, out);
    depth--;
    return signal;
  };

  const execNode = (node: Node, scope: Scope, out: Output): Signal => {
    switch (node.type) {
      case "If":
        return execAll(truthy(evaluate(node.test, scope)) ? node.body : node.alternate, scope, out);
      case "For":
        return execFor(node, scope, out);
      case "Break":
        return "break";
      case "Continue":
        return "continue";
      case "Set":
        execSet(node, scope);
        return null;
      case "Macro":
        scope.names.set(node.name.value, macro(node.name.value, node.args, node.body, scope));
        return null;
      case "CallStatement": {
        if (node.call.type !== "CallExpression") throw new TemplateError("call needs a call");
        const caller = macro("caller", node.callerArgs ?? [], node.body, scope);
        const args = evaluateArgs(node.call.args, scope);
        const named = new Map(args.named).set("caller", caller);
        write(out, call(evaluate(node.call.callee, scope), { list: args.list, named }));
        return null;
      }
      case "FilterStatement":
        write(out, applyFilter(captured(node.body, child(scope)), node.filter, scope));
        return null;
      case "Comment":
        return null;
      default:
        write(out, evaluate(node, scope));
        return null;
    }
  };

  const execSet = (node: Extract<Node, { type: "Set" }>, scope: Scope): void => {
    const value = node.value ? evaluate(node.value, scope) : captured(node.body, child(scope));
    assign(node.assignee, value, scope);
  };

  const assign = (target: Node, value: Value, scope: Scope): void => {
    if (target.type === "Identifier") {
      scope.names.set(target.value, value);
    } else if (target.type === "TupleLiteral") {
      const items = iterate(value);
      if (items.length !== target.value.length) {
        throw new TemplateError(`${items.length} values for ${target.value.length} names`);
      }
      for (let i = 0; i < items.length; i++) assign(target.value[i]!, items[i]!, scope);
    } else if (target.type === "MemberExpression" && target.property.type === "Identifier") {
      const object = evaluate(target.object, scope);
      if (!(object instanceof Namespace)) {
        throw new TemplateError("cannot assign attribute on non-namespace object");
      }
      object.values.set(target.property.value, value);
    } else {
      throw new TemplateError(`cannot assign to ${target.type}`);
    }
  };

  const execFor = (node: Extract<Node, { type: "For" }>, scope: Scope, out: Output): Signal => {
    const filtered = node.iterable.type === "SelectExpression" ? node.iterable : null;
    let items = iterate(evaluate(filtered ? filtered.lhs : node.iterable, scope));
    if (filtered) {
      items = items.filter((item) => {
        spend(CHARS_PER_STEP);
        const inner = child(scope);
        assign(node.loopvar, item, inner);
        return truthy(evaluate(filtered.test, inner));
      });
    }
    spend(items.length * CHARS_PER_STEP);
    if (items.length === 0) return execAll(node.defaultBlock, child(scope), out);
    let last: readonly Value[] | null = null;
    const changed = new Callable("changed", ({ list }) => {
      for (const value of list) weigh(value);
      const same = last?.length === list.length && last.every((v, k) => equal(v, list[k]!));
      last = list;
      return !same;
    });
    for (let i = 0; i < items.length; i++) {
      const inner = child(scope);
      inner.names.set("loop", loopObject(items, i, changed));
      assign(node.loopvar, items[i]!, inner);
      if (execAll(node.body, inner, out) === "break") break;
    }
    return null;
  };

  // A macro sees the names around its definition, not those around the call.
  const macro = (
    name: string,
    parameters: readonly Node[],
    body: readonly Node[],
    scope: Scope,
  ): Callable =>
    new Callable(
      name,
      (args) => {
        const inner = child(scope);
        const named = new Map(args.named);
        const caller = named.get("caller");
        if (caller !== undefined) {
          inner.names.set("caller", caller);
          named.delete("caller");
        }
        const unset: [string, Node][] = [];
        parameters.forEach((parameter, i) => {
          const key = parameter.type === "KeywordArgumentExpression" ? parameter.key.value : null;
          const own = key ?? (parameter.type === "Identifier" ? parameter.value : "");
          const value = i < args.list.length ? args.list[i] : named.get(own);
          named.delete(own);
          inner.names.set(own, value ?? new Undefined(`parameter '${own}'`));
          if (value === undefined && parameter.type === "KeywordArgumentExpression") {
            unset.push([own, parameter.value]);
          }
        });
        for (const [own, node] of unset) inner.names.set(own, evaluate(node, inner));
        inner.names.set("varargs", Tuple.from(args.list.slice(parameters.length)));
        inner.names.set("kwargs", new Map<Value, Value>(named));
        return captured(body, inner);
      },
      (attribute) => (attribute === "name" ? name : undefined),
    );

  const globals: Scope = { names: globalFunctions(run), parent: null };
  const top: Scope = { names: new Map(variables), parent: globals };
  const out = { text: "" };
  execAll(program.body, top, out);
  return out.text;
}

const COMPARISONS = new Set(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]);
const isComparison = (operator: string): boolean => COMPARISONS.has(operator);

const CONSTANTS: ReadonlyMap<string, Value> = new Map<string, Value>([
  ["none", null],
  ["None", null],
  ["true", true],
  ["True", true],
  ["false", false],
  ["False", false],
]);

// The loop variable; its parts are made when asked for, as most loops ask for one or none.
function loopObject(items: readonly Value[], i: number, changed: Callable): Callable {
  const n = items.length;
  const attribute = (name: string): Value | undefined => {
    switch (name) {
      case "index":
        return BigInt(i + 1);
      case "index0":
        return BigInt(i);
      case "revindex":
        return BigInt(n - i);
      case "revindex0":
        return BigInt(n - i - 1);
      case "first":
        return i === 0;
      case "last":
        return i === n - 1;
      case "length":
        return BigInt(n);
      case "previtem":
        return i > 0 ? items[i - 1]! : new Undefined("there is no previous item");
      case "nextitem":
        return i + 1 < n ? items[i + 1]! : new Undefined("there is no next item");
      case "cycle":
        return new Callable("cycle", ({ list }) => {
          if (list.length === 0) throw new TemplateError("no items for cycling given");
          return list[i % list.length]!;
        });
      case "changed":
        return changed;
      default:
        return undefined;
    }
  };
  return new Callable("loop", recursiveLoop, attribute);
}

function recursiveLoop(): never {
  throw new TemplateError("recursive loops are not supported");
}
