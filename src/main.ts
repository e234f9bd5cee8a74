// From argv to a command and its exit code: 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C
// in a running prompt. The only place that ends the process.

import { helpText, type Invocation, parseCommandLine } from "./cli/flags.ts";
import { debug, list, pull } from "./cli/models.ts";
import { print } from "./cli/output.ts";
import { run } from "./cli/run.ts";
import { serve } from "./cli/serve.ts";
import { EngineError } from "./engine/types.ts";
import { ApiError, ModelError, NativeError, UsageError } from "./errors.ts";
import { BUILD, VERSION } from "./version.ts";

async function main(argv: readonly string[]): Promise<number> {
  const call = parseCommandLine(argv, process.env);
  switch (call.kind) {
    case "help":
      await print(helpText(call.command));
      return 0;
    case "version":
      await print(`caldrix ${VERSION} (${BUILD})\n`);
      return 0;
    case "command":
      return command(call);
    default:
      return call satisfies never;
  }
}

function command(call: Extract<Invocation, { kind: "command" }>): Promise<number> {
  switch (call.command) {
    case "serve":
      return serve(call.args, call.flags);
    case "run":
      return run(call.args, call.flags);
    case "pull":
      return pull(call.args);
    case "list":
      return list();
    case "debug":
      return debug(call.args);
    default:
      return call.command satisfies never;
  }
}

/** What is printed about an error: one line for those that name their cause, all of it for a bug. */
function words(error: unknown): string {
  if (error instanceof UsageError) return `${error.message}\nSee caldrix --help.`;
  const kinds = [ModelError, NativeError, EngineError, ApiError];
  if (kinds.some((kind) => error instanceof kind)) return (error as Error).message;
  return error instanceof Error ? `bug: ${error.stack ?? error.message}` : `bug: ${error}`;
}

let code = 1;
try {
  code = await main(process.argv.slice(2));
} catch (error) {
  process.stderr.write(`caldrix: ${words(error)}\n`);
  code = error instanceof UsageError ? 2 : 1;
}
process.exit(code);
