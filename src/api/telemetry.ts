// What a server counts: /metrics as Prometheus text and the last requests for /debug/requests.
// Counts, times and settings only, never text. Fed by server.ts and generate.ts; holds no clock of
// its own, so times arrive as milliseconds of performance.now().

import type { SamplingParams } from "../engine/types.ts";

/** Records kept for /debug/requests: a screenful or two, a few tens of kilobytes. */
const MAX_RECORDS = 64;

/** Seconds; from a short prompt on a fast machine to a long one on a slow one. */
const SECONDS_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
/** Seconds a token; 1000 tokens a second to one in two seconds. */
const TOKEN_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2];

/** One generation as it goes; generate.ts fills it in, telemetry reads it. */
export interface Trace {
  readonly id: string;
  readonly route: string;
  readonly created: number;
  readonly stream: boolean;
  readonly sampling: SamplingParams;
  readonly maxTokens: number | null;
  readonly promptTokens: number;
  readonly admittedMs: number;
  startedMs: number | null;
  firstTokenMs: number | null;
  lastTokenMs: number | null;
  cachedTokens: number;
  completionTokens: number;
  finishReason: "stop" | "length" | null;
}

export interface Telemetry {
  /** Counts an answer. `route` must come from the route table, or be "other". */
  answered(route: string, status: number): void;
  begin(trace: Trace): void;
  /** @param status 200, or the status the failure has or would have had */
  end(trace: Trace, status: number, endMs: number): void;
  metrics(gauges: { readonly waiting: number; readonly running: number }): string;
  recent(): string;
}

/**
 * Makes the telemetry of one server.
 * @param capacity tokens the engine's rows can hold together
 * @param compat "vllm" adds the three gauges that existing routers read
 */
export function createTelemetry(capacity: number, compat: "none" | "vllm"): Telemetry {
  const answers = new Map<string, Map<number, number>>();
  const live = new Set<Trace>();
  const records: string[] = [];
  let promptTokens = 0;
  let generatedTokens = 0;
  let cachedTokens = 0;
  const queue = histogram(SECONDS_BUCKETS);
  const firstToken = histogram(SECONDS_BUCKETS);
  const perToken = histogram(TOKEN_BUCKETS);
  const endToEnd = histogram(SECONDS_BUCKETS);

  /** Share of the rows' positions that running requests hold. */
  function kvUse(): number {
    let held = 0;
    for (const trace of live) {
      if (trace.startedMs !== null) held += trace.promptTokens + trace.completionTokens;
    }
    return Math.min(1, held / capacity);
  }

  return {
    answered(route, status) {
      const byStatus = answers.get(route) ?? new Map<number, number>();
      answers.set(route, byStatus);
      byStatus.set(status, (byStatus.get(status) ?? 0) + 1);
    },
    begin(trace) {
      live.add(trace);
    },
    end(trace, status, endMs) {
      live.delete(trace);
      if (trace.startedMs !== null) promptTokens += trace.promptTokens;
      generatedTokens += trace.completionTokens;
      cachedTokens += trace.cachedTokens;
      observe(trace, endMs, { queue, firstToken, perToken, endToEnd });
      records.unshift(recordText(trace, status, endMs));
      records.length = Math.min(records.length, MAX_RECORDS);
    },
    metrics(gauges) {
      const lines: string[] = [];
      header(lines, "caldrix_http_requests_total", "counter", "Answers by route and status.");
      for (const [route, byStatus] of answers) {
        for (const [status, count] of byStatus) {
          lines.push(`caldrix_http_requests_total{route="${route}",status="${status}"} ${count}`);
        }
      }
      const use = kvUse();
      const { waiting, running } = gauges;
      sample(lines, "caldrix_requests_waiting", "gauge", "Requests in the queue.", waiting);
      sample(lines, "caldrix_requests_running", "gauge", "Requests in the engine.", running);
      sample(lines, "caldrix_kv_usage_ratio", "gauge", "KV positions in use, 0 to 1.", use);
      sample(lines, "caldrix_prompt_tokens_total", "counter", "Prompt tokens.", promptTokens);
      sample(lines, "caldrix_generated_tokens_total", "counter", "Tokens made.", generatedTokens);
      sample(
        lines,
        "caldrix_cached_prompt_tokens_total",
        "counter",
        "Prompt tokens taken from rows kept before.",
        cachedTokens,
      );
      distribution(lines, "caldrix_queue_time_seconds", "Wait for the engine.", queue);
      distribution(lines, "caldrix_time_to_first_token_seconds", "To the first token.", firstToken);
      distribution(lines, "caldrix_time_per_output_token_seconds", "After the first.", perToken);
      distribution(lines, "caldrix_end_to_end_seconds", "Whole generations.", endToEnd);
      if (compat === "vllm") {
        sample(
          lines,
          "vllm:num_requests_waiting",
          "gauge",
          "As caldrix_requests_waiting.",
          waiting,
        );
        sample(
          lines,
          "vllm:num_requests_running",
          "gauge",
          "As caldrix_requests_running.",
          running,
        );
        sample(lines, "vllm:kv_cache_usage_perc", "gauge", "As caldrix_kv_usage_ratio.", use);
      }
      return `${lines.join("\n")}\n`;
    },
    recent: () => `{"requests":[${records.join(",")}]}`,
  };
}

interface Histogram {
  readonly bounds: readonly number[];
  readonly counts: number[];
  sum: number;
}

function histogram(bounds: readonly number[]): Histogram {
  return { bounds, counts: new Array<number>(bounds.length + 1).fill(0), sum: 0 };
}

function add(to: Histogram, seconds: number): void {
  const at = to.bounds.findIndex((bound) => seconds <= bound);
  to.counts[at < 0 ? to.bounds.length : at]!++;
  to.sum += seconds;
}

function observe(
  trace: Trace,
  endMs: number,
  to: Readonly<Record<"queue" | "firstToken" | "perToken" | "endToEnd", Histogram>>,
): void {
  const { admittedMs, startedMs, firstTokenMs, lastTokenMs, completionTokens } = trace;
  if (startedMs !== null) add(to.queue, (startedMs - admittedMs) / 1000);
  if (firstTokenMs !== null && lastTokenMs !== null) {
    add(to.firstToken, (firstTokenMs - admittedMs) / 1000);
    const later = completionTokens - 1;
    if (later > 0) add(to.perToken, (lastTokenMs - firstTokenMs) / 1000 / later);
  }
  add(to.endToEnd, (endMs - admittedMs) / 1000);
}

/** JSON text at once: the seed is a bigint, and the ring then holds strings of a known size. */
function recordText(trace: Trace, status: number, endMs: number): string {
  const { sampling, admittedMs } = trace;
  const ms = (from: number, to: number | null): number | null =>
    to === null ? null : Math.round((to - from) * 1000) / 1000;
  const settings = JSON.stringify({
    max_tokens: trace.maxTokens,
    min_p: sampling.minP,
    repetition_penalty: sampling.repetitionPenalty,
    temperature: sampling.temperature,
    top_k: sampling.topK,
    top_p: sampling.topP,
  });
  // A greedy reply draws nothing, so it has no seed to tell.
  const seed = sampling.temperature > 0 ? `,"seed":${sampling.seed}` : "";
  const rest = JSON.stringify({
    status,
    stream: trace.stream,
    time_to_first_token_ms: ms(admittedMs, trace.firstTokenMs),
    total_ms: ms(admittedMs, endMs),
  });
  const start = JSON.stringify({
    cached_tokens: trace.cachedTokens,
    completion_tokens: trace.completionTokens,
    created: trace.created,
    finish_reason: trace.finishReason,
    id: trace.id,
    prompt_tokens: trace.promptTokens,
    queue_ms: ms(admittedMs, trace.startedMs),
    route: trace.route,
  });
  return `${start.slice(0, -1)}${seed},"settings":${settings},${rest.slice(1)}`;
}

function header(lines: string[], name: string, type: string, help: string): void {
  lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`);
}

function sample(lines: string[], name: string, type: string, help: string, value: number): void {
  header(lines, name, type, help);
  lines.push(`${name} ${value}`);
}

function distribution(lines: string[], name: string, help: string, of: Histogram): void {
  header(lines, name, "histogram", help);
  let total = 0;
  of.counts.forEach((count, i) => {
    total += count;
    const bound = of.bounds[i] ?? "+Inf";
    lines.push(`${name}_bucket{le="${bound}"} ${total}`);
  });
  lines.push(`${name}_sum ${of.sum}`, `${name}_count ${total}`);
}
