// Time charts by uPlot, in the page's colours: usage filled, limits as a line above it.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, h, s } from "./dom";
import type { Series } from "./model";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

// Ticks of memory stand at powers of two, so that they read as whole MiB and GiB.
export const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const SHORTEST_S = 30;
const LONGEST_S = 120;
const CUT_PX = 22; // a label nearer to the edge than half its width

export interface ChartLine { label: string; colour: string; fill?: boolean; dash?: boolean; step?: boolean }

export class Chart {
  readonly element: HTMLElement;
  private plot: uPlot | null = null;
  private readonly observer: ResizeObserver;

  constructor(private readonly label: string, private readonly lines: ChartLine[], private readonly format: (value: number) => string, private readonly steps: number[] | null = null, private readonly height = 150) {
    this.element = h("div", { class: "chart", role: "img", "aria-label": label });
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: this.height }));
    this.observer.observe(this.element);
  }

  update(times: number[], series: Series[]): void {
    if (this.element.clientWidth === 0) return; // not shown
    if (this.plot === null) this.plot = new uPlot(this.options(), [[], ...this.lines.map(() => [])] as uPlot.AlignedData, this.element);
    this.plot.setData([times, ...series] as uPlot.AlignedData);
    const last = this.lines.map((line, at) => `${line.label} ${this.format(series[at]?.at(-1) ?? 0)}`).join(", ");
    this.element.setAttribute("aria-label", `${this.label}: ${last}`);
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

  private options(): uPlot.Options {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width: this.element.clientWidth,
      height: this.height,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 4, 0, 0],
      scales: { x: { time: true, range: (_, from, to) => [Math.min(to - SHORTEST_S, Math.max(from, to - LONGEST_S)), to] }, y: { range: (_, __, highest) => [0, Math.max(highest, 1e-9) * 1.08] } },
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
          points: { show: false },
          ...(line.fill ? { fill: colour(`${line.colour}-soft`) } : {}),
          ...(line.dash ? { dash: [6, 5] } : {}),
          ...(line.step && uPlot.paths.stepped !== undefined ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
        })),
      ],
    };
  }
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

  update(used: Series, limit: Series, samples: number): void {
    const [low, high] = [used.slice(-samples), limit.slice(-samples)];
    const top = Math.max(1, ...low.map(Number), ...high.map(Number)) * 1.05;
    const x = (at: number) => (((samples - low.length + at) / Math.max(1, samples - 1)) * SPARK.width).toFixed(1);
    const y = (value: number | null) => (SPARK.height - 1 - ((value ?? 0) / top) * (SPARK.height - 2)).toFixed(1);
    const points = low.map((value, at) => `${x(at)} ${y(value)}`);
    this.line.setAttribute("d", points.length > 0 ? `M${points.join("L")}` : "");
    this.area.setAttribute("d", points.length > 0 ? `M${x(0)} ${SPARK.height}L${points.join("L")}L${x(low.length - 1)} ${SPARK.height}Z` : "");
    this.limit.setAttribute("d", high.some((value) => value !== null) ? `M${high.map((value, at) => `${x(at)} ${y(value)}`).join("L")}` : "");
  }
}
