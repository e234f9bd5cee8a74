// The errors of caldrix. Each names the thing at fault, what was wanted and what came. ApiError
// becomes an HTTP answer, ModelError one line on stderr and exit code 1, NativeError either, UsageError
// a line and exit code 2.

/** A request that cannot be served; becomes an HTTP error body in api/errors.ts. */
export class ApiError extends Error {
  readonly status: number;
  readonly param: string | null;
  readonly code: string | null;
  constructor(status: number, message: string, param: string | null, code: string | null = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

/** A model, file or download that cannot be used; the message names the file and the field. */
export class ModelError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "ModelError";
  }
}

/** A refusal of the C library: its code (csrc/caldrix.h) and message. */
export class NativeError extends Error {
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.name = "NativeError";
    this.code = code;
  }
}

/** Wrong use of the command line; exit code 2. */
export class UsageError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "UsageError";
  }
}
