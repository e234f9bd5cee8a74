import { describe, expect, test } from "bun:test";
import {
  describeJson,
  integerOf,
  isJsonNumber,
  isJsonObject,
  type JsonValue,
  numberText,
  parseJson,
  pathText,
} from "../../src/decide/json.ts";
import { ApiError } from "../../src/errors.ts";

const encoder = new TextEncoder();

function parse(text: string): JsonValue {
  return parseJson(encoder.encode(text)).value;
}

/** The value as JSON.parse would give it. */
function plain(value: JsonValue): unknown {
  if (isJsonNumber(value)) return Number(numberText(value));
  if (isJsonObject(value)) {
    return Object.fromEntries([...value].map(([key, item]) => [key, plain(item)]));
  }
  return Array.isArray(value) ? value.map(plain) : value;
}

function refusalOf(body: string | Uint8Array): ApiError {
  try {
    parseJson(typeof body === "string" ? encoder.encode(body) : body);
  } catch (error) {
    if (error instanceof ApiError) return error;
  }
  throw new Error("the body was taken");
}

describe("values", () => {
  const texts = [
    "null",
    " true ",
    "\t[false]\r\n",
    '"a\\"b\\\\c\\/d\\b\\f\\n\\r\\t\\u0041\\ud83d\\ude00é日本🙂"',
    '"\\u0000"',
    '""',
    "[]",
    "{}",
    "[1,[2,[3]],{}]",
    "[1, 2,  3,\n4 ,5,6.5,7,-8,123456789012345,1234567890123456789,9]",
    '{"a":{"b":[1,{"c":null}]},"d":""}',
    "[0,-0,-1,1.5,-2.25e3,1E5,1e-5,0.1,123456789012345,1234567890123456]",
  ];
  for (const text of texts) {
    test(`reads ${text.trim().slice(0, 30)} as JSON.parse does`, () => {
      expect(plain(parse(text))).toEqual(JSON.parse(text));
    });
  }

  test("keeps the spelling of every number", () => {
    const spellings = [
      "1.50",
      "1e-05",
      "1E5",
      "-0",
      "-0.0",
      "0",
      "7",
      "123456789012345678901234567890",
    ];
    const value = parse(`[${spellings.join(",")}]`);
    expect(Array.isArray(value) && value.map((x) => isJsonNumber(x) && numberText(x))).toEqual(
      spellings,
    );
  });

  test("keeps the order of keys that JavaScript would sort, and takes __proto__ as a name", () => {
    const value = parse('{"b":1,"10":2,"2":3,"__proto__":4}');
    expect(isJsonObject(value) && [...value.keys()]).toEqual(["b", "10", "2", "__proto__"]);
  });

  test("skips a byte order mark", () => {
    expect(parse("\ufeff[1]")).toEqual([1]);
  });

  test("agrees with JSON.parse on random documents", () => {
    let state = 12345;
    const random = (below: number): number => {
      state = (Math.imul(state, 1103515245) + 12345) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    const make = (depth: number): unknown => {
      const kind = random(depth > 3 ? 5 : 7);
      if (kind === 0) return null;
      if (kind === 1) return random(2) === 0;
      if (kind === 2) return random(1000) - 500;
      if (kind === 3) return (random(1e6) - 5e5) / 1024;
      if (kind === 4)
        return String.fromCodePoint(...Array.from({ length: random(5) }, () => random(0xd800)));
      const items = Array.from({ length: random(4) }, () => make(depth + 1));
      return kind === 5 ? items : Object.fromEntries(items.map((item, i) => [`k${i}`, item]));
    };
    for (let i = 0; i < 300; i++) {
      const text = JSON.stringify(make(0), null, random(3));
      expect(plain(parse(text))).toEqual(JSON.parse(text));
    }
  });
});

describe("refusals", () => {
  const bodies = [
    "",
    " ",
    "{",
    "[1,]",
    '{"a":1,}',
    '{"a" 1}',
    "{a:1}",
    "{'a':1}",
    "[1 2]",
    "nul",
    "NaN",
    "Infinity",
    "-",
    "01",
    "-01",
    "[01,2]",
    "[1,,2]",
    "[1,2,",
    "[,1]",
    "1.",
    ".5",
    "1e",
    "1e+",
    "+1",
    "0x10",
    '"abc',
    '"a\nb"',
    '"a\\x"',
    '"\\u12g4"',
    '"\\constructor"',
    "[1]x",
    "{}{}",
    "// c\n1",
  ];
  for (const body of bodies) {
    test(`refuses ${JSON.stringify(body)} as invalid JSON`, () => {
      const error = refusalOf(body);
      expect(error.status).toBe(400);
      expect(error.param).toBeNull();
      expect(error.message).toStartWith("the request body is not valid JSON: expected ");
    });
  }

  test("refuses bytes that are not UTF-8", () => {
    const bad = Uint8Array.of(0x22, 0xff, 0xfe, 0x22);
    expect(refusalOf(bad).message).toBe("the request body is not valid UTF-8");
  });

  for (const body of [
    '"\\ud800"',
    '"\\udc00"',
    '"\\ud800\\u0041"',
    '"\\ud800x"',
    '"\\ud83d\\ud83d"',
  ]) {
    test(`refuses the lone surrogate escape in ${body}`, () => {
      expect(refusalOf(body).message).toBe("the request body has an escape of a lone surrogate");
    });
  }

  test("takes 64 levels and refuses 65", () => {
    parse("[".repeat(64) + "]".repeat(64));
    const error = refusalOf("[".repeat(65) + "]".repeat(65));
    expect(error.message).toBe("the request body is nested deeper than 64 levels");
    expect(refusalOf('{"a":'.repeat(100_000)).message).toBe(error.message);
  });
});

describe("duplicates", () => {
  const cases: [string, string[]][] = [
    ['{"a":1,"b":2}', []],
    ['{"a":1,"a":2}', ["a"]],
    ['{"a":{"b":1,"b":2,"c":3,"c":4},"d":[{"e":1,"e":1}]}', ["a.b", "d[0].e"]],
    ['{"a":[0,{"k":{"x":1,"x":1}}]}', ["a[1].k.x"]],
    ['{"a":{"k":1},"b":{"k":1}}', []],
    ['{"a":1,"\\u0061":2}', ["a"]],
  ];
  for (const [text, paths] of cases) {
    test(`finds ${paths.join(", ") || "none"} in ${text}`, () => {
      expect(parseJson(encoder.encode(text)).duplicates.map(pathText)).toEqual(paths);
    });
  }
});

describe("integers", () => {
  const cases: [string, bigint | null][] = [
    ["1", 1n],
    ["1.0", 1n],
    ["1e0", 1n],
    ["10e-1", 1n],
    ["0.5e1", 5n],
    ["1.5", null],
    ["1e-1", null],
    ["-1.00", -1n],
    ["-0", 0n],
    ["0e-5", 0n],
    ["18446744073709551615", 2n ** 64n - 1n],
    ["9007199254740993", 2n ** 53n + 1n],
    ["1e20", 10n ** 20n],
    ["1e-999999999", null],
  ];
  for (const [text, wanted] of cases) {
    test(`reads ${text} as ${wanted}`, () => {
      const value = parse(text);
      expect(isJsonNumber(value) && integerOf(value)).toBe(wanted as bigint);
    });
  }

  test("takes a megabyte of digits without slowing down", () => {
    const zeros = "0".repeat(1 << 20);
    const values = [`1.${zeros}`, `1.${zeros}1`, `1${zeros}1.0`].map(parse);
    const began = performance.now();
    const integers = values.map((value) => isJsonNumber(value) && integerOf(value));
    expect(performance.now() - began).toBeLessThan(1000);
    expect(integers.slice(0, 2)).toEqual([1n, null]);
  });

  test("stops counting at absurd sizes instead of making them", () => {
    const value = parse("1e999999999");
    expect(isJsonNumber(value) && integerOf(value)! > 2n ** 64n).toBe(true);
  });
});

test("describes values without quoting text", () => {
  const described = ["null", "true", '"secret"', "1.50", "[]", "{}"].map((text) =>
    describeJson(parse(text)),
  );
  expect(described).toEqual(["null", "true", "a string", "1.50", "an array", "an object"]);
});
