/** Decode a message: msgpack, with byte columns as arrays of numbers. Needs no package. */

import { COLUMNS, NESTED, TYPES } from "./messages.js";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const WIDTHS = { "<i8": 8, "<i4": 4, "<u2": 2, "|u1": 1, "<f8": 8 };

/** An exact number, or a bigint where a number would not be exact. */
const exact = (value) =>
  value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;

const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/**
 * An id as one token of a subject: `.` becomes `/`, unusual characters `=XX` per UTF-8 byte; undefined: `*`.
 * @param {string} [identifier]
 */
export function token(identifier) {
  if (identifier === undefined || identifier === null) return "*";
  if (!identifier) throw new Error("an id in a subject must not be empty");
  const escaped = (byte) => "=" + byte.toString(16).toUpperCase().padStart(2, "0");
  return [...identifier]
    .map((one) => (/^[A-Za-z0-9_-]$/.test(one) ? one : one === "." ? "/" : [...new TextEncoder().encode(one)].map(escaped).join("")))
    .join("");
}

/**
 * msgpack (without extension types) as plain values; binary as Uint8Array.
 * https://github.com/msgpack/msgpack/blob/master/spec.md
 * @param {Uint8Array} bytes
 */
export function unpack(bytes) {
  const view = viewOf(bytes);
  let at = 0;
  const take = (length) => {
    if (at + length > bytes.length) throw new Error("the message ends too early");
    at += length;
    return at - length;
  };
  const size = (width) => (width === 1 ? view.getUint8(take(1)) : width === 2 ? view.getUint16(take(2)) : view.getUint32(take(4)));
  const binary = (length) => bytes.subarray(take(length), at);
  const text = (length) => utf8.decode(binary(length));
  const list = (length) => Array.from({ length }, value);
  const map = (length) => Object.fromEntries(Array.from({ length }, () => [value(), value()]));
  function value() {
    const code = view.getUint8(take(1));
    if (code < 0x80) return code;
    if (code >= 0xe0) return code - 0x100;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return list(code & 0x0f);
    if (code < 0xc0) return text(code & 0x1f);
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return binary(size(1 << (code - 0xc4)));
      case 0xca: return view.getFloat32(take(4));
      case 0xcb: return view.getFloat64(take(8));
      case 0xcc: case 0xcd: case 0xce: return size(1 << (code - 0xcc));
      case 0xcf: return exact(view.getBigUint64(take(8)));
      case 0xd0: return view.getInt8(take(1));
      case 0xd1: return view.getInt16(take(2));
      case 0xd2: return view.getInt32(take(4));
      case 0xd3: return exact(view.getBigInt64(take(8)));
      case 0xd9: case 0xda: case 0xdb: return text(size(1 << (code - 0xd9)));
      case 0xdc: case 0xdd: return list(size(code === 0xdc ? 2 : 4));
      case 0xde: case 0xdf: return map(size(code === 0xde ? 2 : 4));
      default: throw new Error(`msgpack type 0x${code.toString(16)} is not used by these messages`);
    }
  }
  const result = value();
  if (at !== bytes.length) throw new Error("bytes follow the message");
  return result;
}

/**
 * The message in `bytes`, one of the types of messages.js; its field `type` says which.
 * @param {Uint8Array} bytes
 * @returns {Object} columns are arrays of numbers
 */
export function decode(bytes) {
  const message = unpack(bytes);
  const name = message?.type;
  if (!Object.hasOwn(TYPES, name)) throw new Error(`no message type ${name}`);
  return withArrays(TYPES[name], message);
}

function withArrays(record, fields) {
  const result = { ...fields };
  for (const [name, code] of Object.entries(COLUMNS[record] ?? {})) {
    if (!(name in fields)) continue;
    result[name] = numbers(fields[name], code);
    if ("containers" in fields && result[name].length !== keys(fields).length)
      throw new Error(`${record}: column ${name} has not one number per container`);
  }
  for (const [name, inner] of Object.entries(NESTED[record] ?? {}))
    if (name in fields) result[name] = fields[name].map((one) => withArrays(inner, one));
  return result;
}

function numbers(bytes, code) {
  const view = viewOf(bytes);
  const read = {
    "<i8": (at) => exact(view.getBigInt64(at, true)),
    "<i4": (at) => view.getInt32(at, true),
    "<u2": (at) => view.getUint16(at, true),
    "|u1": (at) => view.getUint8(at),
    "<f8": (at) => view.getFloat64(at, true),
  }[code];
  if (bytes.length % WIDTHS[code]) throw new Error(`a column of ${bytes.length} bytes holds no whole number of ${code}`);
  return Array.from({ length: bytes.length / WIDTHS[code] }, (_, index) => read(index * WIDTHS[code]));
}

const keys = (fields) => (fields.containers ? fields.containers.split("\n") : []);

/** The table of a decoded message, an object per container: `container` and each column's number. */
export function rows(message) {
  const columns = Object.keys(COLUMNS[TYPES[message.type]]).filter((name) => name in message);
  return keys(message).map((container, index) => ({
    container,
    ...Object.fromEntries(columns.map((name) => [name, message[name][index]])),
  }));
}
