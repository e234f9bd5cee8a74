// The output of the C tests is shown while they run, not when they end.
import { expect, test } from "bun:test";
import { relay } from "../../scripts/test.ts";

test("passes a piece on before the next one comes, and keeps characters cut in two", async () => {
  const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>();
  const writer = writable.getWriter();
  const shown: number[] = [];
  let told = () => {};
  const text = relay(readable, (bytes) => {
    shown.push(...bytes);
    told();
  });
  for (const byte of new TextEncoder().encode("5µs")) {
    const passed = new Promise<void>((resolve) => {
      told = resolve;
    });
    await writer.write(Uint8Array.of(byte));
    await passed;
    expect(shown.at(-1)).toBe(byte);
  }
  await writer.close();
  expect(await text).toBe("5µs");
});
