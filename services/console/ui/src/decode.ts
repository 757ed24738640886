// Messages of the bus as the page uses them: msgpack maps whose byte columns become arrays of numbers.
// The counterpart of schemas/codec.py and schemas/message.py; tests/system/test_console.py compares the two.
import { decode as unpack } from "@msgpack/msgpack";

export type Plain = Record<string, unknown>;
export interface Message extends Plain {
  type: string;
}
export interface Table extends Message {
  keys: string[];
  columns: Record<string, number[]>;
}

type ElementType = "i8" | "i4" | "u2" | "u1" | "f8";
const ITEM_BYTES: Record<ElementType, number> = { i8: 8, i4: 4, u2: 2, u1: 1, f8: 8 };
const COLUMNS: Record<string, Record<string, ElementType>> = {
  "turnbuckle.cfs.v1.CfsBatch": {
    periods: "u2", quota_us: "i8", used_us: "i4", unused_us: "i4", throttled: "u2", throttled_us: "i4",
    memory_usage_bytes: "i8", memory_reclaimable_bytes: "i8", memory_limit_bytes: "i8", limit_update_seq: "i8",
    oom_kills: "i4", flags: "u1",
  },
  "turnbuckle.limits.v1.LimitDecisions": {
    quota_from_us: "i8", quota_to_us: "i8", quota_reason: "u1", quota_measured: "f8", quota_threshold: "f8",
    limit_from_bytes: "i8", limit_to_bytes: "i8", limit_reason: "u1", limit_measured: "f8", limit_threshold: "f8",
  },
};

/** A message; throws where the bytes are none. Integers beyond 2^53 (times in ns) lose their last digits. */
export function decode(data: Uint8Array): Message {
  const fields = unpack(data);
  if (!isPlain(fields) || typeof fields.type !== "string") throw new Error("no message");
  const message = fields as Message;
  const types = COLUMNS[message.type];
  return types === undefined ? message : asTable(message, types);
}

function isPlain(value: unknown): value is Plain {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

function asTable(message: Message, types: Record<string, ElementType>): Table {
  const names = message.containers;
  const keys = typeof names === "string" && names !== "" ? names.split("\n") : [];
  const columns: Record<string, number[]> = {};
  for (const [name, type] of Object.entries(types)) columns[name] = column(message[name], type, keys.length, name);
  return { ...message, keys, columns };
}

function column(data: unknown, type: ElementType, rows: number, name: string): number[] {
  if (!(data instanceof Uint8Array) || data.byteLength !== rows * ITEM_BYTES[type]) {
    throw new Error(`column ${name} does not hold ${rows} rows`);
  }
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const read: Record<ElementType, (at: number) => number> = {
    i8: (at) => Number(view.getBigInt64(at, true)),
    i4: (at) => view.getInt32(at, true),
    u2: (at) => view.getUint16(at, true),
    u1: (at) => view.getUint8(at),
    f8: (at) => view.getFloat64(at, true),
  };
  return Array.from({ length: rows }, (_, row) => read[type](row * ITEM_BYTES[type]));
}

/** Cuts a stream of bytes into frames: four bytes of length, big-endian, then so much. */
export class Frames {
  private waiting = new Uint8Array(0);

  push(chunk: Uint8Array): Uint8Array[] {
    const data = new Uint8Array(this.waiting.length + chunk.length);
    data.set(this.waiting);
    data.set(chunk, this.waiting.length);
    const view = new DataView(data.buffer);
    const frames: Uint8Array[] = [];
    let at = 0;
    while (at + 4 <= data.length) {
      const end = at + 4 + view.getUint32(at);
      if (end > data.length) break;
      frames.push(data.subarray(at + 4, end));
      at = end;
    }
    this.waiting = data.slice(at);
    return frames;
  }
}

const REASONS: Record<number, string> = {
  0: "no reason recorded",
  1: "admitted: requested {measured}, {threshold} were free",
  2: "throttled: demand about {measured}, quota was {threshold}",
  3: "{measured} unused, headroom is {threshold}",
  4: "demand with headroom rose to {measured}, quota was {threshold}",
  5: "scarce: the containers demand {measured}, {threshold} are available",
  6: "over limit: the containers hold {measured}, they may hold {threshold}",
  7: "usage {measured} came within {threshold} of the limit",
  8: "limit was {measured} above usage, {threshold} are kept",
  9: "the kernel held {measured}, the limit update was {threshold}",
};

/** schemas.reasons.sentence: why a limit was changed. */
export function sentence(resource: "cpu" | "memory", reason: number, measured: number, threshold: number): string {
  const text = REASONS[reason] ?? `reason ${reason}, measured {measured}, threshold {threshold}`;
  return text.replace("{measured}", quantity(resource, measured)).replace("{threshold}", quantity(resource, threshold));
}

function quantity(resource: "cpu" | "memory", value: number): string {
  if (value < 0) return "unlimited";
  return resource === "cpu" ? `${(value / 1e5).toFixed(2)} cores` : `${(value / 2 ** 20).toFixed(1)} MiB`;
}
