// The last hour of an application, container or training: asked for once, and continued by the stream.
import { doubles, floats } from "./decode";
import { ask } from "./feed";

const AGAIN_POINTS = 900; // then it is asked for anew: older seconds have become means of ten
const GAP_S = 5; // so has what came while it was out of sight

export type Values = (number | null)[];

export class Past {
  readonly times: number[] = [];
  columns: Values[];
  sinceS = 0; // when the console began to listen
  private asked = -1;
  private added = 0;

  constructor(private readonly query: Record<string, string>, width: number, private readonly path = "/history") {
    this.columns = Array.from({ length: width }, () => []);
  }

  /** Continue by this second; `join` counts how often the stream was found: what came in between is asked for. */
  push(timeS: number, values: (number | null)[], join: number, loaded: () => void): void {
    const missed = timeS - (this.times.at(-1) ?? timeS) > GAP_S;
    if (this.asked !== join || this.added > AGAIN_POINTS || missed) void this.load(join, loaded);
    if (timeS <= (this.times.at(-1) ?? 0)) return;
    this.times.push(timeS);
    this.columns.forEach((column, at) => column.push(values[at] ?? null));
    this.added += 1;
  }

  private async load(join: number, loaded: () => void): Promise<void> {
    this.asked = join;
    this.added = 0;
    try {
      const answer = await ask(this.path, this.query);
      const times = doubles(answer.times_s);
      const width = (answer.columns as string[]).length;
      const values = floats(answer.values, width, times.length);
      const newer = this.times.findIndex((time) => time > (times.at(-1) ?? 0));
      const tail = newer < 0 ? this.times.length : newer;
      const rest = this.columns.map((column) => column.slice(tail));
      this.times.splice(0, tail, ...times);
      this.columns = rest.map((column, at) => [...known(values.subarray(at * times.length, (at + 1) * times.length)), ...column]);
      this.sinceS = Number(answer.since_s);
      loaded();
    } catch {
      this.asked = -1; // the stream says what is wrong; the next second asks again
    }
  }
}

function known(values: Float32Array): Values {
  return Array.from(values, (value) => (Number.isNaN(value) ? null : value));
}
