// Writes small GGUF files for tests of the header parser: only what a test needs, no checks, so that it
// can write wrong ones too.

/** A metadata value as its type number and its encoded bytes. */
export interface RawValue {
  readonly type: number;
  readonly bytes: Uint8Array;
}

export interface RawTensor {
  readonly name: string;
  /** Fastest first, as in the file. */
  readonly dims: readonly (number | bigint)[];
  readonly type: number;
  readonly offset: number | bigint;
}

export interface RawGguf {
  readonly version?: number;
  readonly keys: readonly (readonly [string, RawValue])[];
  readonly tensors?: readonly RawTensor[];
  readonly data?: Uint8Array;
  readonly alignment?: number;
}

/** Bytes of little-endian numbers. */
export function u32(...values: readonly number[]): Uint8Array {
  return new Uint8Array(Uint32Array.from(values).buffer);
}

export function u64(...values: readonly (number | bigint)[]): Uint8Array {
  return new Uint8Array(
    BigUint64Array.from(values.map((v) => BigInt.asUintN(64, BigInt(v)))).buffer,
  );
}

/** A length-prefixed string. */
export function text(value: string | Uint8Array): Uint8Array {
  const bytes = typeof value === "string" ? new TextEncoder().encode(value) : value;
  return join(u64(bytes.length), bytes);
}

export function join(...parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

export const string = (value: string): RawValue => ({ type: 8, bytes: text(value) });
export const uint32 = (value: number): RawValue => ({ type: 4, bytes: u32(value) });
export const strings = (values: readonly (string | Uint8Array)[]): RawValue => ({
  type: 9,
  bytes: join(u32(8), u64(values.length), ...values.map(text)),
});

/** The file: header, padding, data. */
export function ggufBytes(file: RawGguf): Uint8Array {
  const tensors = file.tensors ?? [];
  const header = join(
    new TextEncoder().encode("GGUF"),
    u32(file.version ?? 3),
    u64(tensors.length, file.keys.length),
    ...file.keys.map(([key, value]) => join(text(key), u32(value.type), value.bytes)),
    ...tensors.map((t) =>
      join(text(t.name), u32(t.dims.length), u64(...t.dims), u32(t.type), u64(t.offset)),
    ),
  );
  const alignment = file.alignment ?? 32;
  const padding = new Uint8Array((alignment - (header.length % alignment)) % alignment);
  return join(header, padding, file.data ?? new Uint8Array());
}
