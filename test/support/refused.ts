// What a call is refused with, for tests of the model files.

import { expect } from "bun:test";
import { ModelError } from "../../src/errors.ts";

/** The message of the ModelError a call throws; another error or none fails the test. */
export function refused(run: () => unknown): string {
  try {
    run();
  } catch (e) {
    expect(e).toBeInstanceOf(ModelError);
    return (e as Error).message;
  }
  throw new Error("was accepted");
}
