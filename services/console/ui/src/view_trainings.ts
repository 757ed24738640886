// Trainings by a plan: what each device does and holds, and what steps take beside what the plan predicts.
import { Chart, figure, type ChartLine } from "./charts";
import { h, s, setAttribute, setText } from "./dom";
import { bytes, count, duration, percent } from "./format";
import type { Model } from "./model";
import { Past } from "./past";
import type { PlannedDevice, Training } from "./types";

const LINES: ChartLine[] = [
  { label: "measured", colour: "used", spanGaps: true }, // steps may take longer than a second
  { label: "planned", colour: "limit", dash: true, spanGaps: true },
];
const BAR = 100;
const MARK = 1.5;

/** Measured memory of what may be used; a mark where the plan expects it. */
class MemoryBar {
  private readonly measured = s("rect", { height: 10 });
  readonly element: SVGElement;

  constructor(private readonly device: PlannedDevice) {
    const planned = Math.min(BAR - MARK, this.part(device.planned_bytes));
    this.element = s("svg", { class: "memory-bar", viewBox: `0 0 ${BAR} 10`, preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: "whole", width: BAR, height: 10 }), this.measured, s("rect", { class: "planned", x: planned, width: MARK, height: 10 }));
  }

  update(measuredBytes: number): void {
    setAttribute(this.measured, "width", String(this.part(measuredBytes)));
    setAttribute(this.measured, "class", measuredBytes > this.device.allowed_bytes ? "beyond" : "measured");
  }

  private part(size: number): number {
    return this.device.allowed_bytes > 0 ? Math.min(BAR, (BAR * size) / this.device.allowed_bytes) : 0;
  }
}

/** A device of the plan. */
class DeviceRow {
  readonly element: HTMLElement;
  private readonly memory = h("td", { class: "number" });
  private readonly bar: MemoryBar;

  constructor(device: PlannedDevice, batch: number) {
    this.bar = new MemoryBar(device);
    const share = (value: number, max: number, of: string) => h("progress", { max, value, "aria-label": of });
    const pieces = device.samples === 0 ? "not used" : `${device.samples} in ${device.microbatches} ${device.microbatches === 1 ? "micro-batch" : "micro-batches"}`;
    this.element = h(
      "tr", {}, h("th", { scope: "row" }, String(device.rank)),
      h("td", { class: "number" }, pieces), h("td", {}, share(device.samples, batch, "samples of the batch")),
      h("td", { class: "number" }, percent(device.state_share)), h("td", {}, share(device.state_share, 1, "part of the state")),
      this.memory, h("td", {}, this.bar.element),
    );
  }

  update(device: PlannedDevice): void {
    const measured = device.memory_bytes > 0 ? bytes(device.memory_bytes) : "not known yet";
    setText(this.memory, `${measured} / ${bytes(device.planned_bytes)} / ${bytes(device.allowed_bytes)}`);
    setAttribute(this.memory, "class", device.memory_bytes > device.allowed_bytes ? "number hot" : "number");
    this.bar.update(device.memory_bytes);
  }
}

/** One training on one node. */
class TrainingCard {
  readonly element: HTMLElement;
  readonly past: Past;
  private readonly facts = h("p", { class: "facts" });
  private readonly drift = h("p", { class: "trouble drift" });
  private readonly end = h("p", { class: "note end" });
  private readonly body = h("tbody");
  private readonly table: HTMLElement;
  private readonly chart: Chart;
  private rows: DeviceRow[] = [];
  private planned = "";

  constructor(job: string, node: string) {
    this.past = new Past({ job, node }, LINES.length, "/steps");
    this.chart = new Chart(`Step time of ${job}`, LINES, duration);
    const columns = ["rank", "samples", "", "state", "", "memory measured / planned / may use", ""].map((name, at) => h("th", { scope: "col", class: at === 1 || at === 3 || at === 5 ? "number" : "" }, name));
    this.table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Devices of ${job}` }, h("table", { class: "devices" }, h("thead", {}, h("tr", {}, ...columns)), this.body));
    const legend = h("ul", { class: "legend", "aria-hidden": "true" }, h("li", { class: "key used" }, "measured"), h("li", { class: "key limit" }, "planned"));
    this.element = h(
      "section", { class: "card", "aria-label": `Training ${job} on ${node}` },
      h("div", { class: "card-head" }, h("h2", {}, job), this.facts, legend), this.drift, this.end, figure("Step", "time", this.chart), this.table,
    );
  }

  update(now: Training): void {
    setText(this.facts, factsOf(now));
    setText(this.drift, now.drift);
    this.drift.hidden = now.drift === "";
    setText(this.end, now.end === "" ? "" : `Ended: ${now.end}`);
    this.table.hidden = now.devices.length === 0;
    const planned = JSON.stringify(now.devices.map(({ memory_bytes: _, ...device }) => device));
    if (planned !== this.planned) {
      this.planned = planned;
      this.rows = now.devices.map((device) => new DeviceRow(device, now.batch));
      this.body.replaceChildren(...this.rows.map((row) => row.element));
    }
    now.devices.forEach((device, at) => this.rows[at]!.update(device));
    this.chart.update(this.past.times, this.past.columns);
  }

  restyle(): void {
    this.chart.restyle();
  }

  destroy(): void {
    this.chart.destroy();
  }
}

function factsOf(now: Training): string {
  const [predicted, low, high] = now.predicted_us;
  const measured = now.step_us > 0 ? `${duration(now.step_us)} a step` : "no step yet";
  return [
    `on ${now.node}`, ...(now.generation > 0 ? [`attempt ${now.generation}`] : []), now.total > 0 ? `step ${now.step} of ${now.total}` : `step ${now.step}`,
    predicted > 0 ? `${measured}, planned ${duration(predicted)} (${duration(low)} – ${duration(high)})` : `${measured}; its plan is not known`,
    ...(now.batch > 0 ? [`${count(now.batch, "sample")} on ${count(now.devices.length, "device")}, engine ${now.engine}`] : []),
  ].join(" · ");
}

export class TrainingsView {
  readonly element = h("div", { class: "view" });
  private readonly cards = new Map<string, TrainingCard>();
  private readonly empty = h("div", { class: "empty" }, h("h2", {}, "Nothing trains"), h("p", {}, "What ", h("code", {}, "turnbuckle train"), " says is shown here, if it is a job of the scheduler or has a bus."));
  private drawn = "nothing yet";

  /** Of the first: from when on there is anything to show. */
  get past(): Past | undefined {
    return this.cards.values().next().value?.past;
  }

  update(model: Model): void {
    const ids = [...model.trainings.keys()].sort();
    if (ids.join("\n\n") !== this.drawn) this.arrange(model, ids);
    for (const id of ids) this.cards.get(id)!.update(model.trainings.get(id)!.now);
  }

  /** A second has passed. */
  second(model: Model, redraw: () => void): void {
    for (const [id, training] of model.trainings) {
      const { step_us: stepUs, predicted_us: [predicted] } = training.now;
      this.cards.get(id)?.past.push(model.timeS, training.fresh ? [stepUs || null, predicted || null] : [], model.join, redraw);
      training.fresh = false;
    }
  }

  restyle(): void {
    for (const card of this.cards.values()) card.restyle();
  }

  private arrange(model: Model, ids: string[]): void {
    this.drawn = ids.join("\n\n");
    for (const [id, card] of this.cards) {
      if (model.trainings.has(id)) continue;
      card.destroy();
      this.cards.delete(id);
    }
    for (const id of ids) {
      const { job, node } = model.trainings.get(id)!.now;
      if (!this.cards.has(id)) this.cards.set(id, new TrainingCard(job, node));
    }
    this.element.replaceChildren(...(ids.length === 0 ? [this.empty] : ids.map((id) => this.cards.get(id)!.element)));
  }
}
