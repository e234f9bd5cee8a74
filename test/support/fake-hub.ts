// A Hugging Face hub and its content network on two local ports, for tests of fetching. It records
// every request, and can cut a download short.

import { createHash } from "node:crypto";

const CUT_DELAY_MS = 20;

export interface HubRequest {
  readonly host: "hub" | "cdn";
  readonly method: string;
  readonly path: string;
  readonly authorization: string | null;
  readonly range: string | null;
}

export interface FakeHubOptions {
  /** Files of the one repository; those named in `lfs` lie on the content network. */
  readonly files: Readonly<Record<string, Uint8Array>>;
  readonly lfs?: readonly string[];
  /** Announced instead of the true sha256 of LFS files. */
  readonly sha256?: string;
  /** Closes the connection after so many bytes of an LFS file, this many times. */
  readonly cutAfter?: number;
  readonly cuts?: number;
  readonly ignoreRange?: boolean;
  readonly status?: number;
}

export interface FakeHub {
  readonly endpoint: string;
  readonly requests: HubRequest[];
  stop(): void;
}

/** Starts the two servers. */
export function fakeHub(options: FakeHubOptions): FakeHub {
  const requests: HubRequest[] = [];
  let cuts = options.cuts ?? 0;
  const note = (host: "hub" | "cdn", request: Request) => {
    const { pathname } = new URL(request.url);
    requests.push({
      host,
      method: request.method,
      path: pathname,
      authorization: request.headers.get("authorization"),
      range: request.headers.get("range"),
    });
    return decodeURIComponent(pathname.split("/").at(-1) ?? "");
  };

  const cdn = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch(request) {
      const bytes = options.files[note("cdn", request)]!;
      const range = options.ignoreRange ? null : request.headers.get("range");
      const from = Number(range?.match(/^bytes=(\d+)-$/)?.[1] ?? 0);
      const body = bytes.subarray(from);
      const headers = new Headers({ "accept-ranges": "bytes" });
      if (range) headers.set("content-range", `bytes ${from}-${bytes.length - 1}/${bytes.length}`);
      const status = range ? 206 : 200;
      return new Response(body, { status, headers });
    },
  });

  // Announces the whole of a file, sends a part of it and closes.
  const cutter = Bun.listen({
    port: 0,
    hostname: "127.0.0.1",
    socket: {
      data(socket, data) {
        const path = /^GET (\S+)/.exec(`${data}`)?.[1] ?? "";
        const range = /\nrange: (\S+)/i.exec(`${data}`)?.[1] ?? null;
        requests.push({ host: "cdn", method: "GET", path, authorization: null, range });
        const bytes = options.files[path.split("/").at(-1) ?? ""]!;
        const from = options.ignoreRange ? 0 : Number(range?.match(/\d+/)?.[0] ?? 0);
        const head = from > 0 ? `206 X\r\ncontent-range: bytes ${from}-` : "200 OK";
        socket.write(`HTTP/1.1 ${head}\r\ncontent-length: ${bytes.length - from}\r\n\r\n`);
        socket.write(bytes.subarray(from, from + (options.cutAfter ?? 0)));
        // Later than the bytes: a client that finds both at once may drop the bytes.
        setTimeout(() => socket.end(), CUT_DELAY_MS);
      },
    },
  });

  const hub = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch(request) {
      const name = note("hub", request);
      if (options.status !== undefined) return new Response(null, { status: options.status });
      const bytes = options.files[name];
      if (!bytes) return new Response(null, { status: 404 });
      if (options.lfs?.includes(name)) {
        // Only a GET gets as far as the content network.
        const port = request.method === "GET" && cuts-- > 0 ? cutter.port : cdn.port;
        const sha256 = options.sha256 ?? createHash("sha256").update(bytes).digest("hex");
        return new Response(null, {
          status: 302,
          headers: {
            location: `http://127.0.0.1:${port}/blob/${name}`,
            "x-linked-etag": `"${sha256}"`,
            "x-linked-size": `${bytes.length}`,
          },
        });
      }
      const blob = createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
      return new Response(bytes, { headers: { etag: `W/"${blob}"` } });
    },
  });
  return {
    endpoint: `http://127.0.0.1:${hub.port}`,
    requests,
    stop() {
      void hub.stop(true);
      void cdn.stop(true);
      cutter.stop(true);
    },
  };
}
