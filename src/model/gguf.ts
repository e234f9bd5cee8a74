// Reads the header of a GGUF file (versions 2 and 3, little-endian): metadata and tensor table.
// Not the weights: C maps those. The file is hostile input: every count is checked against the bytes
// that are really left before anything is allocated for it. Called by open.ts.
// Layout: github.com/ggml-org/ggml/blob/master/docs/gguf.md

import { closeSync } from "node:fs";
import { resolve } from "node:path";
import { ModelError } from "../errors.ts";
import { GGML_TYPES } from "./dtypes.ts";
import { openFile, readFully, regularFileBytes } from "./file.ts";
import type { TensorInfo, TensorTable } from "./types.ts";

/** The vocabulary of 262 144 tokens makes 10 MB; ten times that is no header. */
const MAX_HEADER_BYTES = 96 * 1024 * 1024;
/** The format's own limit. */
const MAX_KEY_BYTES = 65_535;
/** Chat templates are the longest strings, below 100 KB. */
const MAX_STRING_BYTES = 4 * 1024 * 1024;
/** Four times the largest vocabulary a plan can have. */
const MAX_ARRAY_LENGTH = 16 * 1024 * 1024;
/** Real files have 20 to 80 keys and up to some thousand tensors. */
const MAX_KEYS = 65_536;
const MAX_TENSORS = 65_536;
/** ggml's own limits are 64 bytes and 4 dimensions. */
const MAX_TENSOR_NAME_BYTES = 256;
const MAX_DIMS = 4;
/** Elements of one dimension and of one tensor: keeps byte counts exact in a double. */
const MAX_ELEMENTS = 2 ** 44;
/** Page size; real files say 32. */
const MAX_ALIGNMENT = 65_536;
const DEFAULT_ALIGNMENT = 32;
/** Arrays of arrays are legal, though no model has them. */
const MAX_ARRAY_DEPTH = 4;
/** First read; holds the whole header of a 49 152-token vocabulary. */
const FIRST_READ_BYTES = 2 * 1024 * 1024;

const TYPE_NAMES = [
  "uint8",
  "int8",
  "uint16",
  "int16",
  "uint32",
  "int32",
  "float32",
  "bool",
  "string",
  "array",
  "uint64",
  "int64",
  "float64",
] as const;

/** Type of a metadata value, in the order of its number in the file. */
export type GgufType = (typeof TYPE_NAMES)[number];

const TYPE_BYTES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8] as const;
const TYPE_STRING = 8;
const TYPE_ARRAY = 9;

/** An array of the metadata; its elements are decoded when asked for. */
export interface GgufArray {
  readonly elementType: GgufType;
  readonly length: number;
  /** @throws ModelError when the elements are not strings or one is not UTF-8. */
  strings(): string[];
  /** @throws ModelError when the elements are not numbers of at most 32 bits. */
  numbers(): Float64Array;
}

/** A metadata value; 64-bit integers that a double cannot hold are bigints. */
export interface GgufValue {
  readonly type: GgufType;
  readonly value: number | bigint | boolean | string | GgufArray;
}

/** A parsed header. */
export interface GgufFile extends TensorTable {
  readonly format: "gguf";
  readonly version: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
}

/**
 * Reads the header of a GGUF file.
 * @throws ModelError naming the file and the key or tensor at fault.
 */
export function readGguf(path: string): GgufFile {
  const fileBytes = regularFileBytes(path);
  const reader = new HeaderReader(path, fileBytes);
  try {
    return readHeader(reader, path, fileBytes);
  } finally {
    reader.close();
  }
}

/** The header region, read from the file in growing pieces. */
class HeaderReader {
  readonly path: string;
  readonly fileBytes: number;
  at = 0;
  bytes: Buffer = Buffer.alloc(0);
  view: DataView = new DataView(new ArrayBuffer(0));
  #fd: number;

  constructor(path: string, fileBytes: number) {
    this.path = path;
    this.fileBytes = fileBytes;
    this.#fd = openFile(path);
  }

  close(): void {
    closeSync(this.#fd);
  }

  /** Makes n bytes from `at` readable; `what` goes into the message. */
  need(n: number, what: string): void {
    const end = this.at + n;
    if (end <= this.bytes.length) return;
    if (end > this.fileBytes) {
      throw new ModelError(
        `${this.path}: truncated: ${what} needs ${n} bytes at byte ${this.at}, past the end of the file (${this.fileBytes} bytes)`,
      );
    }
    if (end > MAX_HEADER_BYTES) {
      throw new ModelError(
        `${this.path}: ${what}: the header is longer than ${MAX_HEADER_BYTES} bytes`,
      );
    }
    this.#grow(Math.max(end, this.bytes.length * 2, FIRST_READ_BYTES), what);
  }

  #grow(wanted: number, what: string): void {
    const grown = Buffer.allocUnsafeSlow(Math.min(wanted, this.fileBytes, MAX_HEADER_BYTES));
    this.bytes.copy(grown);
    const have = this.bytes.length;
    readFully(this.#fd, this.path, grown.subarray(have), have, what);
    this.bytes = grown;
    this.view = new DataView(grown.buffer, grown.byteOffset, grown.length);
  }

  u32(what: string): number {
    this.need(4, what);
    const v = this.view.getUint32(this.at, true);
    this.at += 4;
    return v;
  }

  u64(what: string): bigint {
    this.need(8, what);
    const v = this.view.getBigUint64(this.at, true);
    this.at += 8;
    return v;
  }

  /** A 64-bit count of at most `limit`. */
  count(limit: number, what: string): number {
    const v = this.u64(what);
    if (v > BigInt(limit)) {
      throw new ModelError(`${this.path}: ${what} is ${v}, more than the limit of ${limit}`);
    }
    return Number(v);
  }

  /** A string that must be UTF-8. */
  string(limit: number, what: string): string {
    const n = this.count(limit, `length of ${what}`);
    this.need(n, what);
    const at = this.at;
    this.at += n;
    try {
      return STRICT_UTF8.decode(this.bytes.subarray(at, this.at));
    } catch {
      return notUtf8(`${this.path}: ${what}`);
    }
  }

  remaining(): number {
    return this.fileBytes - this.at;
  }
}

function readHeader(r: HeaderReader, path: string, fileBytes: number): GgufFile {
  if (fileBytes < 4) {
    throw new ModelError(`${path}: not a GGUF file: ${fileBytes} bytes, too short for its magic`);
  }
  r.need(4, "magic");
  if (r.bytes.toString("latin1", 0, 4) !== "GGUF") {
    throw new ModelError(`${path}: not a GGUF file: the magic is not "GGUF"`);
  }
  r.at = 4;
  const version = r.u32("version");
  if (version !== 2 && version !== 3) {
    const swapped = version === 0x02000000 || version === 0x03000000;
    throw new ModelError(
      `${path}: GGUF version ${version}${swapped ? " (big-endian byte order)" : ""}, wanted 2 or 3 in little-endian order`,
    );
  }
  const nTensors = r.count(MAX_TENSORS, "tensor count");
  const nKeys = r.count(MAX_KEYS, "metadata key count");
  // A tensor takes at least 24 bytes (empty name, no dimensions), a key at least 13.
  checkRoom(r, nTensors * 24 + nKeys * 13, "tensor count and metadata key count");

  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < nKeys; i++) {
    const key = r.string(MAX_KEY_BYTES, `metadata key ${i}`);
    if (metadata.has(key)) throw new ModelError(`${path}: metadata key ${key} occurs twice`);
    metadata.set(key, readValue(r, key));
  }
  const alignment = readAlignment(metadata, path);
  const infos: RawInfo[] = [];
  for (let i = 0; i < nTensors; i++) infos.push(readTensorInfo(r, i));
  const dataAt = Math.ceil(r.at / alignment) * alignment;
  if (nTensors > 0 && dataAt > fileBytes) {
    throw new ModelError(
      `${path}: truncated: tensor data starts at byte ${dataAt}, past the end of the file (${fileBytes} bytes)`,
    );
  }
  return {
    format: "gguf",
    where: path,
    version,
    metadata,
    files: [{ path: resolve(path), bytes: fileBytes }],
    tensors: placeTensors(path, infos, dataAt, alignment, fileBytes),
  };
}

function checkRoom(r: HeaderReader, bytes: number, what: string): void {
  if (bytes > r.remaining()) {
    throw new ModelError(
      `${r.path}: truncated: ${what} needs at least ${bytes} bytes at byte ${r.at}, past the end of the file (${r.fileBytes} bytes)`,
    );
  }
}

function readType(r: HeaderReader, key: string): number {
  const type = r.u32(`type of ${key}`);
  if (type >= TYPE_NAMES.length) {
    throw new ModelError(`${r.path}: ${key}: unknown value type ${type}`);
  }
  return type;
}

function readValue(r: HeaderReader, key: string): GgufValue {
  const type = readType(r, key);
  const name = TYPE_NAMES[type]!;
  if (type === TYPE_STRING) return { type: name, value: r.string(MAX_STRING_BYTES, key) };
  if (type === TYPE_ARRAY) return { type: name, value: readArray(r, key, 1) };
  r.need(TYPE_BYTES[type]!, key);
  const at = r.at;
  r.at += TYPE_BYTES[type]!;
  if (name === "bool") {
    const byte = r.view.getUint8(at);
    if (byte > 1) throw new ModelError(`${r.path}: ${key}: a bool of value ${byte}`);
    return { type: name, value: byte === 1 };
  }
  return { type: name, value: scalar(r.view, name, at) };
}

function scalar(view: DataView, type: GgufType, at: number): number | bigint {
  switch (type) {
    case "uint8":
    case "bool":
      return view.getUint8(at);
    case "int8":
      return view.getInt8(at);
    case "uint16":
      return view.getUint16(at, true);
    case "int16":
      return view.getInt16(at, true);
    case "uint32":
      return view.getUint32(at, true);
    case "int32":
      return view.getInt32(at, true);
    case "float32":
      return view.getFloat32(at, true);
    case "float64":
      return view.getFloat64(at, true);
    case "uint64":
      return exact(view.getBigUint64(at, true));
    case "int64":
      return exact(view.getBigInt64(at, true));
    case "string":
    case "array":
      throw new Error(`${type} is not a scalar`);
    default:
      return type satisfies never;
  }
}

function exact(v: bigint): number | bigint {
  const n = Number(v);
  return Number.isSafeInteger(n) ? n : v;
}

function readArray(r: HeaderReader, key: string, depth: number): GgufArray {
  const type = readType(r, `elements of array ${key}`);
  const length = r.count(MAX_ARRAY_LENGTH, `length of array ${key}`);
  const elementType = TYPE_NAMES[type]!;
  const where = `${r.path}: ${key}`;
  if (type === TYPE_STRING) {
    const starts = readStringStarts(r, key, length);
    return {
      elementType,
      length,
      strings: () => decodeStrings(r.bytes, r.view, starts, where),
      numbers: () => wrongElements(where, elementType, "numbers"),
    };
  }
  if (type === TYPE_ARRAY) {
    if (depth === MAX_ARRAY_DEPTH) {
      throw new ModelError(`${where}: arrays nested more than ${MAX_ARRAY_DEPTH} deep`);
    }
    checkRoom(r, length * 12, `array ${key}`);
    for (let i = 0; i < length; i++) readArray(r, key, depth + 1);
    return {
      elementType,
      length,
      strings: () => wrongElements(where, elementType, "strings"),
      numbers: () => wrongElements(where, elementType, "numbers"),
    };
  }
  const size = TYPE_BYTES[type]!;
  r.need(length * size, `array ${key}`);
  const at = r.at;
  r.at += length * size;
  return {
    elementType,
    length,
    strings: () => wrongElements(where, elementType, "strings"),
    numbers: () => {
      if (size > 4 || elementType === "bool") return wrongElements(where, elementType, "numbers");
      const out = new Float64Array(length);
      for (let i = 0; i < length; i++) {
        out[i] = scalar(r.view, elementType, at + i * size) as number; // 8-byte types left above
      }
      return out;
    },
  };
}

function wrongElements(where: string, came: GgufType, wanted: string): never {
  throw new ModelError(`${where}: wanted an array of ${wanted}, got elements of type ${came}`);
}

/** Walks over the strings of an array; the starts are enough, as each length stands before it. */
function readStringStarts(r: HeaderReader, key: string, length: number): Uint32Array {
  checkRoom(r, length * 8, `array ${key}`);
  const starts = new Uint32Array(length);
  for (let i = 0; i < length; i++) {
    if (r.at + 8 > r.bytes.length) r.need(8, `string ${i} of array ${key}`);
    const bytes = r.view.getUint32(r.at, true);
    if (r.view.getUint32(r.at + 4, true) !== 0 || bytes > MAX_STRING_BYTES) {
      throw new ModelError(
        `${r.path}: ${key}: length of string ${i} is ${r.view.getBigUint64(r.at, true)} bytes, more than the limit of ${MAX_STRING_BYTES}`,
      );
    }
    r.at += 8;
    if (r.at + bytes > r.bytes.length) r.need(bytes, `string ${i} of array ${key}`);
    starts[i] = r.at;
    r.at += bytes;
  }
  return starts;
}

/**
 * Strings of an array, decoded in one go and cut afterwards: one by one it takes five times as long.
 * The whole is valid UTF-8 and no string begins inside a character, so each of them is valid.
 */
function decodeStrings(
  bytes: Buffer,
  view: DataView,
  starts: Uint32Array,
  where: string,
): string[] {
  const out = new Array<string>(starts.length);
  if (starts.length === 0) return out;
  const last = starts.at(-1)!;
  const joined = new Uint8Array(last + view.getUint32(last - 8, true) - starts[0]!);
  const ends = new Uint32Array(starts.length); // in UTF-16 units
  let at = 0;
  let units = 0;
  for (let i = 0; i < starts.length; i++) {
    const start = starts[i]!;
    const end = start + view.getUint32(start - 8, true);
    if (start < end && (bytes[start]! & 0xc0) === 0x80) notUtf8(`${where}[${i}]`);
    for (let j = start; j < end; j++) {
      const byte = bytes[j]!;
      joined[at++] = byte;
      if ((byte & 0xc0) !== 0x80) units += byte >= 0xf0 ? 2 : 1;
    }
    ends[i] = units;
  }
  let all: string;
  try {
    all = STRICT_UTF8.decode(joined.subarray(0, at));
  } catch {
    return notUtf8(where);
  }
  let from = 0;
  for (let i = 0; i < ends.length; i++) {
    out[i] = all.slice(from, ends[i]);
    from = ends[i]!;
  }
  return out;
}

function notUtf8(where: string): never {
  throw new ModelError(`${where}: not valid UTF-8`);
}

const STRICT_UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function readAlignment(metadata: ReadonlyMap<string, GgufValue>, path: string): number {
  const entry = metadata.get("general.alignment");
  if (entry === undefined) return DEFAULT_ALIGNMENT;
  const n = entry.value;
  if (
    typeof n !== "number" ||
    !(n >= 1 && n <= MAX_ALIGNMENT) ||
    2 ** Math.round(Math.log2(n)) !== n
  ) {
    throw new ModelError(
      `${path}: general.alignment is ${String(n)}, wanted a power of two up to ${MAX_ALIGNMENT}`,
    );
  }
  return n;
}

/** A tensor entry before its offset is checked against the file. */
interface RawInfo {
  readonly name: string;
  readonly type: number;
  readonly shape: readonly number[];
  readonly offset: bigint;
}

function readTensorInfo(r: HeaderReader, index: number): RawInfo {
  const name = r.string(MAX_TENSOR_NAME_BYTES, `name of tensor ${index}`);
  const nDims = r.u32(`dimensions of tensor ${name}`);
  if (nDims < 1 || nDims > MAX_DIMS) {
    throw new ModelError(
      `${r.path}: tensor ${name} has ${nDims} dimensions, wanted 1 to ${MAX_DIMS}`,
    );
  }
  const shape: number[] = [];
  let elements = 1;
  for (let d = 0; d < nDims; d++) {
    const n = r.u64(`dimensions of tensor ${name}`);
    if (n < 1n || n > BigInt(MAX_ELEMENTS) || elements * Number(n) > MAX_ELEMENTS) {
      throw new ModelError(
        `${r.path}: tensor ${name}: dimension ${d} is ${n}; the size must be 1 to ${MAX_ELEMENTS} elements`,
      );
    }
    elements *= Number(n);
    shape.unshift(Number(n)); // the file lists the fastest dimension first
  }
  const type = r.u32(`type of tensor ${name}`);
  return { name, type, shape, offset: r.u64(`offset of tensor ${name}`) };
}

function placeTensors(
  path: string,
  infos: readonly RawInfo[],
  dataAt: number,
  alignment: number,
  fileBytes: number,
): ReadonlyMap<string, TensorInfo> {
  const tensors = new Map<string, TensorInfo>();
  for (const info of infos) {
    const where = `${path}: tensor ${info.name}`;
    if (tensors.has(info.name)) throw new ModelError(`${where} occurs twice`);
    const type = GGML_TYPES.get(info.type);
    if (type === undefined) throw new ModelError(`${where}: unknown type ${info.type}`);
    const cols = info.shape.at(-1)!;
    if (cols % type.block !== 0) {
      throw new ModelError(
        `${where}: rows of ${cols} elements are no multiple of the ${type.name} block of ${type.block}`,
      );
    }
    const bytes = (info.shape.reduce((a, b) => a * b, 1) / type.block) * type.bytes;
    if (info.offset % BigInt(alignment) !== 0n) {
      throw new ModelError(
        `${where}: offset ${info.offset} is no multiple of the alignment ${alignment}`,
      );
    }
    if (info.offset + BigInt(dataAt) + BigInt(bytes) > BigInt(fileBytes)) {
      throw new ModelError(
        `${where}: offset ${info.offset} plus ${bytes} bytes lies past the end of the file (${fileBytes} bytes)`,
      );
    }
    tensors.set(info.name, {
      name: info.name,
      file: 0,
      dtype: type.usable ? type.id : null,
      dtypeName: type.name,
      shape: info.shape,
      offset: dataAt + Number(info.offset),
      bytes,
    });
  }
  refuseOverlap(path, [...tensors.values()]);
  return tensors;
}

function refuseOverlap(path: string, tensors: TensorInfo[]): void {
  tensors.sort((a, b) => a.offset - b.offset);
  for (let i = 1; i < tensors.length; i++) {
    const a = tensors[i - 1]!;
    const b = tensors[i]!;
    if (a.offset + a.bytes > b.offset) {
      throw new ModelError(`${path}: tensors ${a.name} and ${b.name} overlap`);
    }
  }
}
