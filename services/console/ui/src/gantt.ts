// Who ran where: a lane for each slot of each node, time from left to right. What it shows stands in the tables, too.
import { colour, h, setAttribute } from "./dom";
import { clock, span } from "./format";
import { frozen, go, place, windowOf } from "./place";
import type { ClusterNode, Queue } from "./types";

const AXIS_PX = 22;
const GUTTER_PX = { wide: 120, narrow: 64 };
const NARROW_PX = 600;
const LANE_PX = { least: 6, most: 20, together: 340 };
const LABEL_PX = 10; // lanes of a lower height have no text
const PER_TICK_PX = 90;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
const DRAGGED_PX = 5;
const SHORTEST_S = 1;
const NAMED_NODES = 20;
const MOST_LANES = 4_096; // of one job on one node

interface Bar { job: string; attempt: number; lane: number; lanes: number; beginS: number; endS: number; held: boolean }
interface Lanes { node: string; note: string; count: number; bars: Bar[] }
interface Drawn { x: number; y: number; width: number; height: number; node: string; bar: Bar }

/** Why nothing is started on a node; empty: it can be used. */
export function unusable(node: ClusterNode): string {
  return node.silent ? "silent" : node.drained ? "drained" : node.why === "" ? "" : "not used";
}

/** A job takes the lowest lanes that are free when it starts. A node that is gone has as many as were used. */
export function layOut(queue: Queue): Lanes[] {
  const nodes = new Map<string, Lanes>(queue.nodes.map((node) => [node.node, { node: node.node, note: unusable(node), count: node.slots, bars: [] }]));
  const busyUntilS = new Map<string, number[]>();
  const spans = queue.jobs.flatMap((job) => job.spans.map((one) => ({ job, one })));
  spans.sort((a, b) => a.one.begin_ns - b.one.begin_ns);
  for (const { job, one } of spans) {
    const [beginS, endS] = [one.begin_ns / 1e9, (one.end_ns || queue.time_ns) / 1e9];
    const wanted = new Map<string, number>();
    for (const node of one.nodes) wanted.set(node, (wanted.get(node) ?? 0) + job.slots / one.nodes.length);
    for (const [node, slots] of wanted) {
      const lanes = nodes.get(node) ?? { node, note: "gone", count: 0, bars: [] };
      nodes.set(node, lanes);
      const busy = busyUntilS.get(node) ?? [];
      busyUntilS.set(node, busy);
      const taken: number[] = [];
      for (let lane = 0; taken.length < Math.min(MOST_LANES, Math.round(slots)); lane += 1) if ((busy[lane] ?? 0) <= beginS) taken.push(lane);
      for (const lane of taken) busy[lane] = endS;
      lanes.count = Math.max(lanes.count, busy.length);
      for (const [lane, together] of runs(taken)) lanes.bars.push({ job: job.job, attempt: one.attempt, lane, lanes: together, beginS, endS, held: one.end_ns === 0 });
    }
  }
  return [...nodes.values()];
}

/** Neighbouring numbers together: the first, and how many. */
function runs(ascending: number[]): [number, number][] {
  const found: [number, number][] = [];
  for (const one of ascending) {
    const last = found.at(-1);
    if (last !== undefined && last[0] + last[1] === one) last[1] += 1;
    else found.push([one, 1]);
  }
  return found;
}

/** The same for a name at any time. */
export function hue(name: string): number {
  let sum = 7;
  for (const character of name) sum = (sum * 31 + character.charCodeAt(0)) % 4093;
  return (sum * 137) % 360; // neighbouring sums far apart
}

export class Gantt {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { role: "img" }) as HTMLCanvasElement;
  private readonly sized = h("div");
  private queue: Queue | null = null;
  private nodes: Lanes[] = [];
  private named = new Set<string>(); // jobs that have a bar
  private drawn: Drawn[] = [];
  private matches: (job: string) => boolean = () => true;
  private draggedFrom: number | null = null;
  private width = 0;

  constructor() {
    this.sized.append(this.canvas);
    this.element = h("div", { class: "gantt", tabindex: 0, role: "region", "aria-label": "Slots over time" }, this.sized);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerdown", (event) => (this.draggedFrom = event.offsetX));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointerleave", () => this.cancel());
    this.canvas.addEventListener("dblclick", () => frozen() && go({ fromS: 0, toS: 0 }));
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry?.contentRect.width ?? 0);
      this.draw();
    }).observe(this.element);
  }

  /** Jobs that do not match are drawn faintly. */
  update(queue: Queue, matches: (job: string) => boolean): void {
    if (queue !== this.queue) {
      this.nodes = layOut(queue);
      this.named = new Set(this.nodes.flatMap((node) => node.bars.map((bar) => bar.job)));
    }
    this.queue = queue;
    this.matches = matches;
    this.draw();
    setAttribute(this.canvas, "aria-label", this.label(queue));
  }

  /** Colours or size have changed. */
  draw(): void {
    const context = this.canvas.getContext("2d");
    if (this.queue === null || context === null || this.width === 0) return;
    const lane = this.lanePx;
    const whole = AXIS_PX + this.nodes.reduce((sum, node) => sum + Math.max(1, node.count) * lane + 2, 0);
    this.sized.style.height = `${whole}px`; // by the object model: a style attribute would need 'unsafe-inline'
    const height = Math.min(whole, this.element.clientHeight || whole);
    this.size(context, height);
    const [ink, muted, line] = [colour("ink"), colour("muted"), colour("line")];
    const scheme = getComputedStyle(this.element).colorScheme;
    const dark = scheme === "dark" || (scheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    context.clearRect(0, 0, this.width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawAxis(context, height, { muted, line });
    context.save();
    context.beginPath();
    context.rect(0, AXIS_PX, this.width, height - AXIS_PX);
    context.clip();
    this.drawn = [];
    let y = AXIS_PX - this.element.scrollTop;
    for (const node of this.nodes) {
      const tall = Math.max(1, node.count) * lane;
      if (y + tall > AXIS_PX && y < height) this.drawNode(context, node, y, { ink, muted, line, dark });
      y += tall + 2;
    }
    context.restore();
  }

  private get lanePx(): number {
    const count = this.nodes.reduce((sum, node) => sum + Math.max(1, node.count), 0);
    return Math.max(LANE_PX.least, Math.min(LANE_PX.most, Math.floor(LANE_PX.together / Math.max(1, count))));
  }

  private get gutter(): number {
    return this.width < NARROW_PX ? GUTTER_PX.narrow : GUTTER_PX.wide;
  }

  private get shown(): [number, number] {
    return windowOf((this.queue?.time_ns ?? 0) / 1e9);
  }

  private at(timeS: number): number {
    const [fromS, toS] = this.shown;
    return this.gutter + ((timeS - fromS) / (toS - fromS)) * (this.width - this.gutter);
  }

  private timeAt(x: number): number {
    const [fromS, toS] = this.shown;
    return fromS + (Math.max(0, x - this.gutter) / (this.width - this.gutter)) * (toS - fromS);
  }

  private size(context: CanvasRenderingContext2D, height: number): void {
    const [across, down] = [Math.round(this.width * devicePixelRatio), Math.round(height * devicePixelRatio)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      [this.canvas.width, this.canvas.height] = [across, down];
      [this.canvas.style.width, this.canvas.style.height] = [`${this.width}px`, `${height}px`];
    }
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }

  private drawAxis(context: CanvasRenderingContext2D, height: number, { muted, line }: { muted: string; line: string }): void {
    const [fromS, toS] = this.shown;
    const most = Math.max(1, Math.floor((this.width - this.gutter) / PER_TICK_PX));
    const step = STEPS_S.find((one) => (toS - fromS) / one <= most) ?? (toS - fromS);
    for (let tick = Math.ceil(fromS / step) * step; tick <= toS; tick += step) {
      const x = Math.round(this.at(tick));
      context.fillStyle = line;
      context.fillRect(x, AXIS_PX, 1, height);
      context.fillStyle = muted;
      if (x < this.width - PER_TICK_PX / 3) context.fillText(clock(tick * 1e9), x + 2, AXIS_PX / 2);
    }
  }

  private drawNode(context: CanvasRenderingContext2D, node: Lanes, top: number, { ink, muted, line, dark }: { ink: string; muted: string; line: string; dark: boolean }): void {
    const lane = this.lanePx;
    const tall = Math.max(1, node.count) * lane;
    context.fillStyle = line;
    context.fillRect(0, top + tall, this.width, 1);
    if (tall >= LABEL_PX) {
      context.fillStyle = node.note === "" ? ink : muted;
      context.fillText(node.note === "" ? node.node : `${node.node} (${node.note})`, 0, top + tall / 2, this.gutter - 6);
    }
    const chosen = this.named.has(place().job) ? place().job : "";
    for (const bar of node.bars) {
      const [from, to] = [Math.max(this.gutter, this.at(bar.beginS)), Math.min(this.width, this.at(bar.endS))];
      if (to < this.gutter || from > this.width || to < from) continue;
      const box = { x: from, y: top + bar.lane * lane, width: Math.max(1, to - from), height: bar.lanes * lane - 1 };
      this.drawn.push({ ...box, node: node.node, bar });
      context.globalAlpha = this.matches(bar.job) && (chosen === "" || chosen === bar.job) ? 1 : 0.3;
      context.fillStyle = `hsl(${hue(bar.job)} 60% ${dark ? 30 : 78}%)`;
      context.fillRect(box.x, box.y, box.width, box.height);
      if (box.height >= LABEL_PX && box.width > 24) this.name(context, bar.job, box, ink);
      context.globalAlpha = 1;
    }
  }

  private name(context: CanvasRenderingContext2D, text: string, box: { x: number; y: number; width: number; height: number }, ink: string): void {
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width - 3, box.height);
    context.clip();
    context.fillStyle = ink;
    context.fillText(text, box.x + 4, box.y + box.height / 2);
    context.restore();
  }

  private under(event: PointerEvent): Drawn | undefined {
    const { offsetX: x, offsetY: y } = event;
    return this.drawn.find((one) => x >= one.x && x <= one.x + one.width && y >= one.y && y <= one.y + one.height);
  }

  private move(event: PointerEvent): void {
    const found = this.under(event);
    this.canvas.style.cursor = found === undefined ? "default" : "pointer";
    setAttribute(this.canvas, "title", found === undefined ? "" : described(found));
    if (this.draggedFrom === null) return;
    this.draw();
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    context.fillStyle = colour("used-soft");
    context.fillRect(Math.min(this.draggedFrom, event.offsetX), AXIS_PX, Math.abs(event.offsetX - this.draggedFrom), this.element.clientHeight);
  }

  private release(event: PointerEvent): void {
    const from = this.draggedFrom;
    this.cancel();
    if (from === null) return;
    const [fromS, toS] = [from, event.offsetX].sort((one, other) => one - other).map((x) => this.timeAt(x)) as [number, number];
    if (Math.abs(event.offsetX - from) > DRAGGED_PX) {
      if (toS - fromS >= SHORTEST_S) go({ fromS, toS });
      return;
    }
    const found = this.under(event);
    if (found !== undefined) go({ job: found.bar.job });
  }

  private cancel(): void {
    if (this.draggedFrom === null) return;
    this.draggedFrom = null;
    this.draw();
  }

  private label(queue: Queue): string {
    const now = this.nodes.slice(0, NAMED_NODES).map((node) => {
      const held = [...new Set(node.bars.filter((bar) => bar.held).map((bar) => bar.job))];
      return `${node.node} ${node.note === "" ? "" : `(${node.note}) `}${held.join(" ") || "free"}`;
    });
    const more = this.nodes.length > NAMED_NODES ? `; and ${this.nodes.length - NAMED_NODES} more nodes` : "";
    return `Slots over time. At ${clock(queue.time_ns)}: ${now.join("; ")}${more}`;
  }
}

function described({ bar, node }: Drawn): string {
  const until = bar.held ? "now" : clock(bar.endS * 1e9);
  return `${bar.job}, attempt ${bar.attempt}, on ${node}: ${clock(bar.beginS * 1e9)} – ${until}, ${span(bar.endS - bar.beginS)}`;
}
