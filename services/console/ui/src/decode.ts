// Messages of the console and the bus as the page uses them: msgpack maps.
import { decode as unpack } from "@msgpack/msgpack";

export type Plain = Record<string, unknown>;
export interface Message extends Plain {
  type: string;
}

/** A message; throws where the bytes are none. Integers beyond 2^53 (times in ns) lose their last digits. */
export function decode(data: Uint8Array): Message {
  const fields = unpack(data);
  if (!isPlain(fields) || typeof fields.type !== "string") throw new Error("no message");
  return fields as Message;
}

function isPlain(value: unknown): value is Plain {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

/** Numbers of `count` rows or points in each of `columns`, one column after another; throws where there are others. */
export function floats(data: unknown, columns: number, count: number): Float32Array {
  if (!(data instanceof Uint8Array) || data.byteLength !== columns * count * Float32Array.BYTES_PER_ELEMENT) {
    throw new Error(`not ${columns} columns of ${count} numbers`);
  }
  return new Float32Array(data.slice().buffer);
}

export function doubles(data: unknown): Float64Array {
  if (!(data instanceof Uint8Array) || data.byteLength % Float64Array.BYTES_PER_ELEMENT !== 0) throw new Error("no numbers");
  return new Float64Array(data.slice().buffer);
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
