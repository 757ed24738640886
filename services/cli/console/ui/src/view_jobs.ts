// Predictions: time against cost of each configuration, and the front on which no other is both faster and cheaper.
import { h, s, setText } from "./dom";
import { clock, dollars, percent, span } from "./format";
import type { Model } from "./model";
import type { Configuration, ConfigurationPrediction, Prediction } from "./types";

const PICTURE = { width: 760, height: 360, left: 62, right: 20, top: 16, bottom: 46 };

const FACTORS = [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9];

function configurationName(configuration: Configuration): string {
  const batch = configuration.batch_size > 0 ? `, batch ${configuration.batch_size}` : "";
  return `${configuration.workers} x ${configuration.instance_type}${batch}`;
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
    return this.from + Math.max(-0.02, Math.min(1.02, share)) * (this.to - this.from);
  }

  /** Round numbers; evenly thinned where there are many. */
  ticks(most: number): number[] {
    const ticks: number[] = [];
    for (let power = Math.floor(this.low / Math.LN10); power <= Math.ceil(this.high / Math.LN10); power += 1) {
      for (const factor of FACTORS) {
        const tick = factor * 10 ** power;
        if (Math.log(tick) >= this.low && Math.log(tick) <= this.high) ticks.push(tick);
      }
    }
    const every = Math.ceil(ticks.length / most);
    return ticks.filter((_, index) => index % every === 0);
  }
}

function paretoPlot(prediction: Prediction): SVGElement {
  const priced = prediction.predictions.filter((one): one is ConfigurationPrediction & { cost_usd: NonNullable<ConfigurationPrediction["cost_usd"]> } => one.cost_usd !== null);
  const { width, height, left, right, top, bottom } = PICTURE;
  const x = new Scale(priced.map((one) => one.time_s.median), left, width - right);
  const y = new Scale(priced.map((one) => one.cost_usd.median), height - bottom, top);
  const parts: SVGElement[] = [];
  for (const tick of x.ticks(8)) {
    parts.push(s("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: top, y2: height - bottom }), s("text", { class: "tick", x: x.at(tick), y: height - bottom + 18, "text-anchor": "middle" }, span(tick)));
  }
  for (const tick of y.ticks(7)) {
    parts.push(s("line", { class: "grid", x1: left, x2: width - right, y1: y.at(tick), y2: y.at(tick) }), s("text", { class: "tick", x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, dollars(tick)));
  }
  parts.push(s("text", { class: "axis", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "time (log)"), s("text", { class: "axis", x: left, y: 10 }, "cost (log)"));
  const front = priced.filter((one) => one.pareto).sort((one, other) => one.time_s.median - other.time_s.median);
  if (front.length > 1) parts.push(s("path", { class: "front", d: `M${front.map((one) => `${x.at(one.time_s.median)} ${y.at(one.cost_usd.median)}`).join("L")}` }));
  for (const one of priced) {
    const [cx, cy] = [x.at(one.time_s.median), y.at(one.cost_usd.median)];
    const title = s("title", {}, `${configurationName(one.configuration)}: ${span(one.time_s.median)}, ${dollars(one.cost_usd.median)}${one.known ? "" : "; not known"}`);
    parts.push(s("line", { class: "interval", x1: x.at(one.time_s.low), x2: x.at(one.time_s.high), y1: cy, y2: cy }), s("line", { class: "interval", x1: cx, x2: cx, y1: y.at(one.cost_usd.low), y2: y.at(one.cost_usd.high) }));
    parts.push(s("circle", { class: `dot ${one.pareto ? "pareto" : ""} ${one.known ? "" : "unknown"}`, cx, cy, r: one.pareto ? 6 : 4.5 }, title));
  }
  const label = `Time against cost of ${priced.length} configurations of ${prediction.job}; on the front: ${front.map((one) => configurationName(one.configuration)).join("; ") || "none"}`;
  return s("svg", { class: "pareto-plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}

function row(one: ConfigurationPrediction): HTMLElement {
  const range = (low: string, high: string) => h("span", { class: "range" }, `${low} – ${high}`);
  const time = h("td", { class: "number" }, span(one.time_s.median), range(span(one.time_s.low), span(one.time_s.high)));
  const cost = one.cost_usd === null
    ? h("td", { class: "number" }, "no price")
    : h("td", { class: "number" }, dollars(one.cost_usd.median), range(dollars(one.cost_usd.low), dollars(one.cost_usd.high)));
  const badges = [one.pareto && h("span", { class: "badge good" }, "front"), !one.known && h("span", { class: "badge warn", title: one.why_unknown }, "not known")];
  return h("tr", {}, h("th", { scope: "row" }, configurationName(one.configuration)), time, cost, h("td", { class: "number" }, percent(one.feasible)), h("td", {}, ...badges), h("td", { class: "reason" }, one.known ? one.reasons.join("; ") : one.why_unknown));
}

export class JobsView {
  readonly element = h("div", { class: "view" });
  private chosen = "";
  private drawn = "";

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

  private card(prediction: Prediction): HTMLElement {
    const priced = prediction.predictions.some((one) => one.cost_usd !== null);
    const facts = h("p", { class: "facts" });
    const prices = prediction.prices_as_of === null ? "" : ` · prices of ${prediction.prices_as_of}`;
    setText(facts, `${prediction.task.task} · best ${prediction.predictions.length} of ${prediction.considered} configurations · ${percent(prediction.level)} intervals · model ${prediction.model.model} ${prediction.model.version}${prices}`);
    const columns = ["configuration", "time", "cost", "will fit", "", "why"].map((column, at) => h("th", { scope: "col", class: at > 0 && at < 4 ? "number" : "" }, column));
    return h(
      "section", { class: "card", "aria-label": `Prediction for ${prediction.job}`, "data-job": prediction.job },
      h("div", { class: "card-head" }, h("h2", {}, prediction.job), facts),
      priced ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Time against cost" }, paretoPlot(prediction)) : h("p", { class: "note" }, "The catalogue has no prices for these configurations."),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Configurations of ${prediction.job}` }, h("table", {}, h("thead", {}, h("tr", {}, ...columns)), h("tbody", {}, ...prediction.predictions.map(row)))),
    );
  }
}
