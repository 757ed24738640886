// Predictions: time against cost of each configuration, and the front on which no other is both faster and cheaper.
import { h, s, setText } from "./dom";
import { clock, dollars, percent, span, spans } from "./format";
import type { Model } from "./model";
import type { Configuration, ConfigurationPrediction, Prediction } from "./types";

const HEIGHT = 360;
const MARGIN = { left: 58, right: 16, top: 26, bottom: 44 };
const NARROWEST = 300;
const MOST_TICKS = { x: 8, y: 7 };
const FEWEST_TICKS = 4;
const PER_TICK = 84; // pixels

const FACTORS = [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9];
const powers = (factors: number[]) => Array.from({ length: 19 }, (_, at) => factors.map((factor) => factor * 10 ** (at - 9))).flat();
const HOUR = 3600;
const LONG = powers([1, 2, 5]).filter((hours) => hours >= 1).map((hours) => hours * HOUR);
const SHORT = powers([1, 2, 5]).filter((seconds) => seconds < 1);
// From coarse to fine: the first with enough of them in sight is taken.
const TIMES = [[...SHORT, ...[1, 2, 5, 10, 20, 30].flatMap((each) => [each, each * 60]), ...LONG], [...SHORT, ...[1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30, 40].flatMap((each) => [each, each * 60]), ...powers([1, 1.5, 2, 3, 4, 6, 8]).filter((hours) => hours >= 1).map((hours) => hours * HOUR)], powers(FACTORS)];
const COSTS = [powers([1, 2, 5]), powers(FACTORS)];

function configurationName(configuration: Configuration): string {
  const batch = configuration.batch_size > 0 ? `, batch ${configuration.batch_size}` : "";
  return `${configuration.workers} x ${configuration.instance_type}${batch}`;
}

function timeTick(seconds: number): string {
  const [size, unit] = seconds < 60 ? [1, "s"] : seconds < HOUR ? [60, "min"] : [HOUR, "h"];
  return `${Number((seconds / size).toPrecision(3))} ${unit}`;
}

class Scale {
  private readonly low: number;
  private readonly high: number;

  /** Logarithmic, from a little below the smallest to a little above the largest. */
  constructor(values: number[], private readonly from: number, private readonly to: number) {
    const positive = values.filter((value) => value > 0);
    this.low = Math.log(Math.min(...positive) / 1.15);
    this.high = Math.log(Math.max(...positive) * 1.15);
  }

  at(value: number): number {
    const share = (Math.log(Math.max(value, 1e-12)) - this.low) / (this.high - this.low || 1);
    return this.from + Math.max(0, Math.min(1, share)) * (this.to - this.from);
  }

  /** Round numbers; evenly thinned where there are many. */
  ticks(candidates: number[][], most: number): number[] {
    let ticks: number[] = [];
    for (const round of candidates) {
      ticks = round.filter((tick) => Math.log(tick) >= this.low && Math.log(tick) <= this.high).sort((one, other) => one - other);
      if (ticks.length >= Math.min(FEWEST_TICKS, most)) break;
    }
    const every = Math.ceil(ticks.length / most);
    return ticks.filter((_, index) => index % every === 0);
  }
}

type Priced = ConfigurationPrediction & { cost_usd: NonNullable<ConfigurationPrediction["cost_usd"]> };

/** Those on the front, fastest first. */
function frontOf(prediction: Prediction): Priced[] {
  const priced = prediction.predictions.filter((one): one is Priced => one.cost_usd !== null);
  return priced.filter((one) => one.pareto).sort((one, other) => one.time_s.median - other.time_s.median);
}

/** As wide as there is room, so that its text has the page's size. */
function paretoPlot(prediction: Prediction, width: number): SVGElement {
  const priced = prediction.predictions.filter((one): one is Priced => one.cost_usd !== null);
  const front = frontOf(prediction);
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
  const x = new Scale(priced.map((one) => one.time_s.median), left, right);
  const y = new Scale(priced.map((one) => one.cost_usd.median), bottom, top);
  const parts: SVGElement[] = [];
  for (const tick of x.ticks(TIMES, Math.min(MOST_TICKS.x, Math.floor((right - left) / PER_TICK)))) {
    parts.push(s("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: top, y2: bottom }), s("text", { class: "tick", x: x.at(tick), y: bottom + 18, "text-anchor": "middle" }, timeTick(tick)));
  }
  for (const tick of y.ticks(COSTS, MOST_TICKS.y)) {
    parts.push(s("line", { class: "grid", x1: left, x2: right, y1: y.at(tick), y2: y.at(tick) }), s("text", { class: "tick", x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, `$${Number(tick.toPrecision(3))}`));
  }
  parts.push(s("text", { class: "axis", x: right, y: HEIGHT - 6, "text-anchor": "end" }, "time, logarithmic →"), s("text", { class: "axis", x: 0, y: 12 }, "↑ cost, logarithmic"));
  for (const one of priced) {
    const [cx, cy] = [x.at(one.time_s.median), y.at(one.cost_usd.median)];
    parts.push(s("line", { class: "interval", x1: x.at(one.time_s.low), x2: x.at(one.time_s.high), y1: cy, y2: cy }), s("line", { class: "interval", x1: cx, x2: cx, y1: y.at(one.cost_usd.low), y2: y.at(one.cost_usd.high) }));
  }
  if (front.length > 1) parts.push(s("path", { class: "front", d: `M${front.map((one) => `${x.at(one.time_s.median)} ${y.at(one.cost_usd.median)}`).join("L")}` }));
  const above = [...priced].sort((one, other) => Number(one.pareto) - Number(other.pareto));
  for (const one of above) {
    const [cx, cy] = [x.at(one.time_s.median), y.at(one.cost_usd.median)];
    const title = s("title", {}, `${configurationName(one.configuration)}: ${span(one.time_s.median)}, ${dollars(one.cost_usd.median)}${one.known ? "" : "; not known"}`);
    parts.push(s("circle", { class: `dot ${one.pareto ? "pareto" : ""} ${one.known ? "" : "unknown"}`, cx, cy, r: one.pareto ? 9 : 4.5 }, title));
    if (one.pareto) parts.push(s("text", { class: "number-of", x: cx, y: cy + 4 }, String(front.indexOf(one) + 1)));
  }
  const label = `Time against cost of ${priced.length} configurations of ${prediction.job}; on the front: ${front.map((one) => configurationName(one.configuration)).join("; ") || "none"}`;
  return s("svg", { class: "pareto-plot", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, ...parts);
}

function row(one: ConfigurationPrediction, place: number): HTMLElement {
  const range = (text: string) => h("span", { class: "range" }, text);
  const time = h("td", { class: "number" }, span(one.time_s.median), range(spans(one.time_s.low, one.time_s.high)));
  const cost = one.cost_usd === null
    ? h("td", { class: "number" }, "no price")
    : h("td", { class: "number" }, dollars(one.cost_usd.median), range(`${dollars(one.cost_usd.low)} – ${dollars(one.cost_usd.high)}`));
  const badges = [one.pareto && h("span", { class: "badge front" }, place > 0 ? `front ${place}` : "front"), !one.known && h("span", { class: "badge warn", title: one.why_unknown }, "not known")];
  return h("tr", {}, h("th", { scope: "row", class: "name" }, configurationName(one.configuration)), time, cost, h("td", { class: "number" }, percent(one.feasible)), h("td", {}, ...badges), h("td", { class: "reason" }, one.known ? one.reasons.join("; ") : one.why_unknown));
}

export class PredictionsView {
  readonly element = h("div", { class: "view" });
  private chosen = "";
  private drawn = "";
  private readonly plot = h("div", { class: "plot" });
  private shownPlot: [Prediction, number] | null = null;

  constructor() {
    new ResizeObserver(() => this.drawPlot()).observe(this.plot);
  }

  update(model: Model): void {
    const predictions = [...model.predictions.values()].sort((one, other) => other.time_ns - one.time_ns);
    const shown = predictions.find((one) => one.job === this.chosen) ?? predictions[0];
    const now = `${shown?.job} ${predictions.map((one) => one.time_ns).join(" ")}`;
    if (now === this.drawn) return;
    this.drawn = now;
    if (shown === undefined) {
      this.element.replaceChildren(h(
        "div", { class: "empty" }, h("h2", {}, "No prediction yet"),
        h("p", {}, "Ask what a training job will take: ", h("code", {}, "turnbuckle advise job.yaml"), "."),
      ));
      return;
    }
    const choices = predictions.map((one) => h("option", { value: one.job, selected: one === shown }, `${one.job} · ${clock(one.time_ns)}`));
    const choose = h("select", { id: "job", change: (event: Event) => {
      this.chosen = (event.currentTarget as HTMLSelectElement).value;
      this.update(model);
      document.getElementById("job")?.focus();
    } }, ...choices);
    this.element.replaceChildren(h("div", { class: "choose" }, h("label", { for: "job" }, "Job"), choose), this.card(shown));
  }

  private drawPlot(prediction: Prediction | undefined = this.shownPlot?.[0]): void {
    const width = Math.max(NARROWEST, Math.floor(this.plot.clientWidth));
    if (prediction === undefined || (this.shownPlot?.[0] === prediction && this.shownPlot[1] === width)) return;
    this.shownPlot = [prediction, width];
    this.plot.replaceChildren(paretoPlot(prediction, width));
  }

  private card(prediction: Prediction): HTMLElement {
    const front = frontOf(prediction);
    const unknown = prediction.predictions.some((one) => !one.known);
    const keys = [["pareto", "on the front: none is both faster and cheaper"], ["dot", "others"], ...(unknown ? [["unknown", "not known"]] : []), ["interval", `${percent(prediction.level)} intervals`]];
    const legend = h("ul", { class: "legend", "aria-hidden": "true" }, ...keys.map(([kind, label]) => h("li", { class: `key plot-${kind}` }, label)));
    const priced = prediction.predictions.some((one) => one.cost_usd !== null);
    const facts = h("p", { class: "facts" });
    const prices = prediction.prices_as_of === null ? "" : ` · prices of ${prediction.prices_as_of}`;
    setText(facts, `${prediction.task.task} · best ${prediction.predictions.length} of ${prediction.considered} configurations · model ${prediction.model.model} ${prediction.model.version}${prices}`);
    const columns = ["configuration", "time", "cost", "will fit", "", "why"].map((column, at) => h("th", { scope: "col", class: at > 0 && at < 4 ? "number" : "" }, column));
    if (priced) this.drawPlot(prediction);
    return h(
      "section", { class: "card", "aria-label": `Prediction for ${prediction.job}`, "data-job": prediction.job },
      h("div", { class: "card-head" }, h("h2", {}, prediction.job), facts),
      priced ? h("figure", {}, legend, this.plot) : h("p", { class: "note" }, "The catalogue has no prices for these configurations."),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Configurations of ${prediction.job}` }, h("table", {}, h("thead", {}, h("tr", {}, ...columns)), h("tbody", {}, ...prediction.predictions.map((one) => row(one, front.indexOf(one as Priced) + 1))))),
    );
  }
}
