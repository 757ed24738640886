// Time charts by uPlot, in the page's colours: usage filled, limits as a line above it.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, h, s, setAttribute } from "./dom";
import { TREND_S } from "./model";
import type { Values } from "./past";
import { frozen, go, windowOf } from "./place";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

// Ticks of memory stand at powers of two, so that they read as whole MiB and GiB.
export const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const SHORTEST_S = 30;
const CUT_PX = 22; // a label nearer to the edge than half its width

/** Something that happened, as a line from top to bottom. */
export interface Mark { timeNs: number; level: "plain" | "good" | "warn" | "bad" }
export interface ChartLine { label: string; colour: string; fill?: boolean; dash?: boolean; step?: boolean; spanGaps?: boolean }

export const LINES: ChartLine[] = [
  { label: "used", colour: "used", fill: true },
  { label: "limits in force", colour: "limit", step: true },
  { label: "application's limit", colour: "whole", dash: true },
];
export const plainCores = (value: number): string => String(Number(value.toFixed(2)));

export class Chart {
  readonly element: HTMLElement;
  private plot: uPlot | null = null;
  private width = 0;
  private shown: [number, number] = [0, 0];
  private marks: Mark[] = [];
  private readonly observer: ResizeObserver;

  constructor(private readonly label: string, private readonly lines: ChartLine[], private readonly format: (value: number) => string, private readonly steps: number[] | null = null, private readonly height = 150) {
    this.element = h("div", { class: "chart", role: "img", "aria-label": label });
    this.element.addEventListener("dblclick", () => frozen() && go({ fromS: 0, toS: 0 }));
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry?.contentRect.width ?? 0);
      if (this.width > 0) this.plot?.setSize({ width: this.width, height: this.height });
    });
    this.observer.observe(this.element);
  }

  update(times: number[], series: Values[], marks: Mark[] = []): void {
    this.marks = marks;
    this.width ||= this.element.clientWidth;
    if (this.width === 0 || times.length === 0) return; // not shown, or nothing is known yet: there is no window
    const [from, to] = windowOf(times.at(-1)!);
    this.shown = [Math.min(to - SHORTEST_S, Math.max(from, times[0] ?? from)), to];
    if (this.plot === null) this.plot = new uPlot(this.options(), [[], ...this.lines.map(() => [])] as uPlot.AlignedData, this.element);
    this.plot.setData([times, ...series] as uPlot.AlignedData);
    const last = this.lines.map((line, at) => `${line.label} ${this.format(series[at]?.at(-1) ?? 0)}`).join(", ");
    setAttribute(this.element, "aria-label", `${this.label}: ${last}`);
  }

  /** Colours have changed. */
  restyle(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  destroy(): void {
    this.observer.disconnect();
    this.plot?.destroy();
  }

  private drawMarks(plot: uPlot, colours: Record<Mark["level"], string>): void {
    const { ctx, bbox } = plot;
    for (const { timeNs, level } of this.marks) {
      const x = Math.round(plot.valToPos(timeNs / 1e9, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.fillStyle = colours[level];
      ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height);
    }
  }

  /** What was dragged over becomes the window of all charts. */
  private zoom(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width === 0) return;
    const [fromS, toS] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (toS - fromS >= 1) go({ fromS, toS });
  }

  private options(): uPlot.Options {
    const marked = { plain: colour("muted"), good: colour("good"), warn: colour("warn"), bad: colour("bad") };
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width: this.width,
      height: this.height,
      legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      hooks: { setSelect: [(plot) => this.zoom(plot)], draw: [(plot) => this.drawMarks(plot, marked)] },
      padding: [8, 4, 0, 0],
      scales: { x: { time: true, range: () => this.shown }, y: { range: (_, __, highest) => [0, Math.max(highest, 1e-9) * 1.08] } },
      axes: [
        { ...axis, space: 90, size: 24, values: (plot, splits) => splits.map((split) => (plot.valToPos(split, "x") > plot.over.clientWidth - CUT_PX ? "" : CLOCK.format(split * 1e3))) },
        { ...axis, space: 32, size: 62, ...(this.steps === null ? {} : { incrs: this.steps }), values: (_, splits) => splits.map((split) => this.format(split)) },
      ],
      series: [
        {},
        ...this.lines.map((line) => ({
          label: line.label,
          stroke: colour(line.colour),
          width: line.dash ? 1.5 : 2,
          spanGaps: line.spanGaps ?? false,
          points: { show: false },
          ...(line.fill ? { fill: colour(`${line.colour}-soft`) } : {}),
          ...(line.dash ? { dash: [6, 5] } : {}),
          ...(line.step && uPlot.paths.stepped !== undefined ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
        })),
      ],
    };
  }
}

export function figure(title: string, unit: string, chart: Chart): HTMLElement {
  return h("figure", {}, h("figcaption", {}, title, unit && h("span", { class: "unit" }, ` ${unit}`)), chart.element);
}

const SPARK = { width: 120, height: 28 };

/** A row's last minute: usage as an area, the limit as a line. */
export class Spark {
  readonly element: SVGElement;
  private readonly area = s("path", { class: "used-area" });
  private readonly line = s("path", { class: "used" });
  private readonly limit = s("path", { class: "limit" });

  constructor() {
    this.element = s("svg", { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line, this.limit);
  }

  /** Rings, of which `newest` is the last place. */
  update(used: Float32Array, limit: Float32Array, newest: number): void {
    let top = 1;
    for (let at = 0; at < TREND_S; at += 1) top = Math.max(top, used[at]! > 0 ? used[at]! : 0, limit[at]! > 0 ? limit[at]! : 0);
    const scale = (SPARK.height - 2) / (top * 1.05);
    const path = (ring: Float32Array, low: number) => {
      let [drawn, open] = ["", false];
      for (let at = 0; at < TREND_S; at += 1) {
        const value = ring[(newest + 1 + at) % TREND_S]!;
        if (value >= low) drawn += `${open ? "L" : "M"}${((at / (TREND_S - 1)) * SPARK.width).toFixed(1)} ${(SPARK.height - 1 - value * scale).toFixed(1)}`;
        open = value >= low; // NaN, and no limit, are gaps
      }
      return drawn;
    };
    const line = path(used, 0);
    this.line.setAttribute("d", line);
    const first = /^M([\d.]+)/.exec(line)?.[1];
    const last = /([\d.]+) [\d.-]+$/.exec(line)?.[1];
    this.area.setAttribute("d", first === undefined || last === undefined ? "" : `${line.replaceAll("M", "L").replace("L", `M${first} ${SPARK.height}L`)}L${last} ${SPARK.height}Z`);
    this.limit.setAttribute("d", path(limit, 0));
  }
}
