import { describe, expect, test } from "bun:test";
import { createAdmission } from "../../src/api/admission.ts";
import { readBody } from "../../src/api/body.ts";
import { ClientGone, errorResponse, toApiError } from "../../src/api/errors.ts";
import { EngineError } from "../../src/engine/types.ts";
import { ApiError } from "../../src/errors.ts";

describe("error answers", () => {
  const cases: [number, string, Record<string, string | null>][] = [
    [400, "invalid_request_error", { "retry-after": null, connection: null }],
    [404, "invalid_request_error", {}],
    [408, "invalid_request_error", { connection: "close" }],
    [413, "invalid_request_error", { connection: "close" }],
    [429, "rate_limit_error", { "retry-after": "1", "x-should-retry": null }],
    [500, "server_error", { "x-should-retry": "false", "retry-after": null }],
    [503, "server_error", { "retry-after": "5", "x-should-retry": null }],
    [504, "server_error", { "x-should-retry": null }],
  ];
  for (const [status, type, headers] of cases) {
    test(`a ${status} has the type ${type} and its headers`, async () => {
      const response = errorResponse(new ApiError(status, "m", "p", "some_code"), false);
      expect(response.status).toBe(status);
      expect(await response.text()).toBe(
        `{"error":{"code":null,"message":"m","param":"p","type":"${type}"}}`,
      );
      for (const [name, value] of Object.entries(headers)) {
        expect(response.headers.get(name)).toBe(value);
      }
    });
  }

  test("anything thrown becomes one error; causes go to the log without text", () => {
    const lines: string[] = [];
    const of = (error: unknown) => toApiError(error, "id1", (line) => lines.push(line));
    const refused = new ApiError(400, "m", null);
    expect(of(refused)).toBe(refused);
    expect(of(new ClientGone()).status).toBe(499);
    expect(lines).toEqual([]);
    expect(of(new EngineError("op 3", false))).toMatchObject({
      status: 500,
      message: "the engine failed during the request",
    });
    expect(of(new EngineError("closed", true))).toMatchObject({
      status: 503,
      message: "the engine is unavailable",
    });
    expect(of(new TypeError("prompt text"))).toMatchObject({
      status: 500,
      message: "internal error",
    });
    expect(of("prompt text").message).toBe("internal error");
    expect(lines).toHaveLength(4);
    expect(lines.join("\n")).not.toContain("prompt text");
    expect(lines.every((line) => line.startsWith("request id1: "))).toBe(true);
  });
});

describe("admission", () => {
  test("counts waiting beyond the rows, and frees each place once", () => {
    const admission = createAdmission(2, 1);
    const first = admission.enter();
    const second = admission.enter();
    first.started();
    first.started();
    admission.enter();
    expect(admission.counts()).toEqual({ waiting: 2, running: 1 });
    expect(() => admission.enter()).toThrow("the request queue is full");
    second.leave();
    second.leave();
    second.started();
    expect(admission.counts()).toEqual({ waiting: 1, running: 1 });
    first.leave();
    expect(admission.counts()).toEqual({ waiting: 1, running: 0 });
  });

  test("a depth of 0 lets nothing wait", () => {
    const admission = createAdmission(1, 0);
    const only = admission.enter();
    expect(() => admission.enter()).toThrow(ApiError);
    only.leave();
    admission.enter();
  });
});

describe("readBody", () => {
  const never = new AbortController().signal;

  function request(body: ReadableStream<Uint8Array>): Request {
    return new Request("http://localhost/", { method: "POST", body });
  }

  test("gives up on a body that stalls", async () => {
    const stalled = new ReadableStream<Uint8Array>({ start: (c) => c.enqueue(Uint8Array.of(1)) });
    await expect(readBody(request(stalled), 10, never, 5)).rejects.toMatchObject({ status: 408 });
  });

  test("stops at once with the given error", async () => {
    const stop = new AbortController();
    const reading = readBody(request(new ReadableStream()), 10, stop.signal);
    stop.abort(new ApiError(503, "draining", null));
    await expect(reading).rejects.toMatchObject({ status: 503, message: "draining" });
  });

  test("counts pieces, however small", async () => {
    const pieces = (count: number) =>
      new ReadableStream<Uint8Array>({
        pull(controller) {
          if (count-- > 0) controller.enqueue(Uint8Array.of(count));
          else controller.close();
        },
      });
    expect(await readBody(request(pieces(3)), 3, never)).toEqual(Buffer.from([2, 1, 0]));
    await expect(readBody(request(pieces(4)), 3, never)).rejects.toMatchObject({ status: 413 });
  });
});
