// `caldrix serve`: load, listen, say how to call it, drain when told to stop.

import { STRICT_CONTEXT } from "../api/prompt.ts";
import { type RunningServer, startServer } from "../api/server.ts";
import { ModelError, UsageError } from "../errors.ts";
import type { LoadedModel } from "../model/types.ts";
import type { FlagValues } from "./flags.ts";
import { type Loaded, loadUnlessStopped, samplingOf } from "./load.ts";
import { print } from "./output.ts";
import { megabytes } from "./progress.ts";
import { chooseModel, unknownModel } from "./resolve.ts";
import { watchSignals } from "./signals.ts";

/** The contracts' ports. */
const PORT = 8425;
const STRICT_PORT = 8080;
/** The second contract's upper bound. */
const STRICT_DEADLINE_SECONDS = 300;

/** Serves until a signal; returns the exit code. */
export async function serve(args: readonly string[], flags: FlagValues): Promise<number> {
  requireStrict(flags);
  const choice = chooseModel(args[0]);
  if (!choice) throw unknownModel(args[0] ?? "");
  const loading = new AbortController();
  const drain = Promise.withResolvers<void>();
  const leave = Promise.withResolvers<number>();
  const unwatch = watchSignals((_signal, count) => {
    loading.abort();
    drain.resolve();
    // Requests are cut off: not the clean end that code 0 stands for.
    if (count > 1) leave.resolve(1);
  });
  try {
    return await Promise.race([leave.promise, work()]);
  } finally {
    unwatch();
  }

  async function work(): Promise<number> {
    const loaded = await loadUnlessStopped(choice!, flags, flags["max-batch"], loading.signal);
    if (loaded === null) return 0;
    const servedName = flags["served-name"] ?? loaded.model.name;
    const server = listen(loaded, servedName, flags);
    const url = flags.host === "localhost" ? `http://localhost:${server.port}` : server.url;
    process.stderr.write(`caldrix: ${facts(loaded)}\n`);
    // A server whose greeting nobody can read still serves.
    await print(greeting(loaded.model, servedName, url)).catch((error: Error) => {
      process.stderr.write(`caldrix: ${error.message}\n`);
    });
    await drain.promise;
    process.stderr.write("caldrix: finishing running requests (a second signal ends at once)\n");
    await server.drain(flags["drain-timeout"] * 1000);
    await loaded.engine.close();
    return 0;
  }
}

function listen({ model, engine }: Loaded, servedName: string, flags: FlagValues): RunningServer {
  const { host, strict } = flags;
  const port = flags.port ?? (strict ? STRICT_PORT : PORT);
  try {
    return startServer({
      model,
      engine,
      servedName,
      // The runtime would take ::1 when 127.0.0.1 is taken: two servers on one port.
      host: host === "localhost" ? "127.0.0.1" : host,
      port,
      queueDepth: flags["queue-depth"],
      defaults: samplingOf(flags),
      deadlineMs: deadlineOf(flags),
      corsOrigins: flags["cors-origin"],
      allowedHosts: flags["allowed-host"],
      metricsCompat: flags["metrics-compat"] ?? "none",
      strict,
      maxSessions: flags["max-sessions"],
      log: (line) => process.stderr.write(`caldrix: ${line}\n`),
    });
  } catch (error) {
    throw new ModelError(listenRefusal(error, host, port));
  }
}

function deadlineOf({ deadline, strict }: FlagValues): number | null {
  const seconds = deadline ?? (strict ? STRICT_DEADLINE_SECONDS : null);
  return seconds === null ? null : seconds * 1000;
}

/** What the second contract fixes. @throws UsageError naming the flag that asks for more */
function requireStrict({ strict, deadline, context }: FlagValues): void {
  if (!strict) return;
  if (deadline !== null && deadline > STRICT_DEADLINE_SECONDS) {
    throw new UsageError(
      `--deadline: with --strict at most ${STRICT_DEADLINE_SECONDS}, got ${deadline}`,
    );
  }
  if (context !== null && context > STRICT_CONTEXT) {
    throw new UsageError(`--context: with --strict at most ${STRICT_CONTEXT}, got ${context}`);
  }
}

function listenRefusal(error: unknown, host: string, port: number): string {
  const code = error instanceof Error && "code" in error ? error.code : "";
  if (code === "EADDRINUSE") {
    return `port ${port} on ${host} is in use; stop what listens there or choose another with --port`;
  }
  if (code === "EACCES") return `listening on port ${port} is not allowed; choose one from 1024 up`;
  const reason = error instanceof Error ? error.message : String(error);
  return `cannot listen on ${host}, port ${port}: ${reason}`;
}

/** What runs, for whoever reads the log later. */
export function facts({ model, engine }: Pick<Loaded, "model" | "engine">): string {
  const { machine, opened, context, maxRows } = engine;
  const rows = maxRows === 1 ? "1 request at a time" : `${maxRows} requests at a time`;
  const weights = megabytes(opened.weightBytes);
  return `${model.arch}, ${weights} of weights, context ${context}, ${rows}, ${machine.isa} kernels, ${machine.cores} cores`;
}

/** What is served and where, and a request to paste. */
export function greeting(model: LoadedModel, servedName: string, url: string): string {
  // Nobody calls 0.0.0.0: it stands for every address of this machine.
  const base = url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:");
  const name = JSON.stringify(servedName);
  const [path, body] = model.template
    ? [
        "chat/completions",
        `{"model": ${name}, "messages": [{"role": "user", "content": "What is the capital of Japan?"}], "max_tokens": 64}`,
      ]
    : ["completions", `{"model": ${name}, "prompt": "The capital of Japan is", "max_tokens": 32}`];
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  return `caldrix serves ${servedName} on ${base}\n
curl ${base}/v1/${path} \\
  -H "Content-Type: application/json" \\
  -d ${quoted}\n\n`;
}
