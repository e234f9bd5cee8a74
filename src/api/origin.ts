// Who may talk to the server from a browser: the Host check that stops DNS rebinding, and CORS.
// Pure functions over a request's headers. Called by server.ts.

import { ApiError } from "../errors.ts";

/** Seconds a browser may remember a preflight; two hours is the most that Chrome keeps. */
const PREFLIGHT_SECONDS = 7_200;

const EXPOSED_HEADERS = "x-request-id, retry-after, x-should-retry";

/** True when a host name or address can only be reached from this machine. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase().replace(/^\[|\]$/g, "");
  return name === "localhost" || name === "::1" || /^127(?:\.\d{1,3}){3}$/.test(name);
}

/**
 * Refuses a Host that a loopback server cannot have: a page of another site that pointed its own
 * name at 127.0.0.1. Only HTTP/1.0 comes without a Host, and no browser speaks that.
 * @throws ApiError 403
 */
export function requireHost(request: Request, allowedHosts: readonly string[]): void {
  const host = request.headers.get("host");
  if (host === null) return;
  const name = (/^(\[[^\]]*\]|[^:]*)(?::\d*)?$/.exec(host)?.[1] ?? "").toLowerCase();
  if (isLoopback(name)) return;
  const same = (allowed: string): boolean => [name, host.toLowerCase()].includes(allowed);
  if (name !== "" && allowedHosts.some((allowed) => same(allowed.toLowerCase()))) return;
  throw new ApiError(403, "this Host is not served; --allowed-host adds one", null);
}

/**
 * Refuses a page of another origin, which a browser lets open a WebSocket without asking.
 * @throws ApiError 403
 */
export function requireSameOrigin(request: Request, origins: readonly string[]): void {
  const origin = request.headers.get("origin");
  if (origin === null || origins.includes("*") || origins.includes(origin)) return;
  const host = URL.parse(origin)?.host ?? "";
  if (host !== "" && host === request.headers.get("host")?.toLowerCase()) return;
  throw originRefused();
}

/** The CORS headers of any answer; none when CORS is off or the origin is not allowed. */
export function corsHeaders(
  request: Request,
  origins: readonly string[],
): readonly (readonly [string, string])[] {
  if (origins.length === 0) return [];
  const origin = request.headers.get("origin");
  const any = origins.includes("*");
  // The answer depends on who asks, so caches must keep them apart.
  const vary: [string, string][] = any ? [] : [["vary", "Origin"]];
  if (origin === null || !(any || origins.includes(origin))) return vary;
  return [
    ["access-control-allow-origin", any ? "*" : origin],
    ["access-control-expose-headers", EXPOSED_HEADERS],
    ...vary,
  ];
}

/**
 * The answer to a CORS preflight, or null when the request is none or CORS is off; corsHeaders()
 * adds the rest. @throws ApiError 403 for an origin that is not allowed
 */
export function preflight(
  request: Request,
  origins: readonly string[],
  methods: readonly string[],
): Response | null {
  const origin = request.headers.get("origin");
  if (origins.length === 0 || origin === null) return null;
  if (request.headers.get("access-control-request-method") === null) return null;
  if (!origins.includes("*") && !origins.includes(origin)) {
    throw originRefused();
  }
  const asked = request.headers.get("access-control-request-headers");
  return new Response(null, {
    status: 204,
    headers: {
      "access-control-allow-methods": methods.join(", "),
      "access-control-allow-headers": asked ?? "content-type, authorization",
      "access-control-max-age": String(PREFLIGHT_SECONDS),
    },
  });
}

function originRefused(): ApiError {
  return new ApiError(403, "this origin is not allowed; --cors-origin adds one", null);
}
