// Writing to stdout, where the reader may have left (`| head`) or the disk may be full. The only place
// that knows how either shows. Used by every command; the chat's keys and lines are terminal.ts's.

import { ModelError } from "../errors.ts";

// Without a listener the runtime ends the process with a trace of its own; print() sees the error too.
process.stdout.on("error", () => {});
// Nowhere is left to say that nothing can be said.
process.stderr.on("error", () => {});

/**
 * Writes to stdout and waits until it is written: exiting earlier cuts a pipe short.
 * @returns false when the reader has left and nobody wants more
 * @throws ModelError for any other failure, such as a full disk
 */
export function print(text: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    process.stdout.write(text, (error) => {
      if (!error) resolve(true);
      else if ("code" in error && error.code === "EPIPE") resolve(false);
      else reject(new ModelError(`cannot write to stdout: ${error.message}`));
    });
  });
}
