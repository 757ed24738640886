// Applications: limit against usage over time, the pool, and every container.
import { BINARY_STEPS, Chart, Spark } from "./charts";
import { h, setAttribute, setText } from "./dom";
import { bytes, cores, count, percent, shortName } from "./format";
import type { App, Container, Model, Series } from "./model";

const SPARK_SAMPLES = 240;
const LISTED = 60;
const toCores = (series: Series): Series => series.map((value) => (value === null ? null : value / 1e5));
const LINES = [
  { label: "used", colour: "used", fill: true },
  { label: "limits in force", colour: "limit", step: true },
  { label: "application's limit", colour: "whole", dash: true },
];

class Row {
  readonly element: HTMLElement;
  private readonly spark = new Spark();
  private readonly cpu = h("td", { class: "number" });
  private readonly throttled = h("td", { class: "number" });
  private readonly memory = h("td", { class: "number" });
  private readonly bar = h("progress", { max: 1, value: 0, "aria-label": "memory used of its limit" });
  private readonly reason = h("td", { class: "reason" });

  constructor(container: Container, open: () => void) {
    const name = h("button", { type: "button", class: "link-button", title: container.key, "aria-expanded": "false", click: open }, shortName(container.key));
    this.element = h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "node" }, container.node), h("td", { class: "trend" }, this.spark.element), this.cpu, this.throttled, this.memory, h("td", { class: "bar" }, this.bar), this.reason);
  }

  update(container: Container, periodUs: number, open: boolean): void {
    this.spark.update(container.used, container.quota, SPARK_SAMPLES);
    setText(this.cpu, `${cores(container.usedUs, periodUs)} / ${cores(container.quotaUs, periodUs)}`);
    setText(this.throttled, percent(container.throttled));
    setAttribute(this.throttled, "class", container.throttled > 0.1 ? "number hot" : "number");
    setText(this.memory, `${bytes(container.memoryBytes)} / ${bytes(container.memoryLimitBytes)}`);
    const share = container.memoryLimitBytes > 0 ? Math.min(1, container.memoryBytes / container.memoryLimitBytes) : 0;
    setAttribute(this.bar, "value", share.toFixed(3));
    setText(this.reason, [container.kills > 0 && `${container.kills} OOM killed`, container.reason].filter(Boolean).join("; "));
    setAttribute(this.element.querySelector("button") as Element, "aria-expanded", String(open));
  }
}

class Pool {
  readonly element: HTMLElement;
  private readonly parts: HTMLElement[];
  private readonly text = h("span", { class: "pool-text" });

  constructor(title: string) {
    this.parts = ["used", "spare", "reserve"].map((part) => h("span", { class: `part ${part}` }));
    this.element = h("div", { class: "pool" }, h("span", { class: "pool-title" }, title), h("span", { class: "pool-bar", "aria-hidden": "true" }, ...this.parts), this.text);
  }

  update(limit: number, used: number, held: number, reserved: number, format: (value: number) => string): void {
    const amounts = [Math.min(used, held), Math.max(0, held - reserved - used), reserved];
    // Widths by the object model: a style attribute would need 'unsafe-inline'.
    amounts.forEach((amount, at) => (this.parts[at]!.style.width = `${limit > 0 ? Math.min(100, (amount / limit) * 100) : 0}%`));
    const free = format(Math.max(0, limit - held));
    setText(this.text, `${free} free of ${format(limit)}${reserved > 0 ? `, ${format(reserved)} in reserve` : ""}`);
  }
}

class Card {
  readonly element: HTMLElement;
  private readonly facts = h("p", { class: "facts" });
  private readonly cpu = new Chart("CPU, cores", LINES, (value) => String(Number(value.toFixed(2))));
  private readonly memory = new Chart("Memory", LINES, bytes, BINARY_STEPS);
  private readonly pools = [new Pool("CPU pool"), new Pool("Memory pool")] as const;
  private readonly body = h("tbody");
  private readonly more = h("p", { class: "note" });
  private readonly table: HTMLElement;
  private readonly none: HTMLElement;
  private readonly rows = new Map<string, Row>();
  private readonly detail = h("div", { class: "detail", hidden: true });
  private open = "";
  private detailCharts: [Chart, Chart] | null = null;

  constructor(app: App) {
    const columns = ["container", "node", "CPU, last minute", "CPU used / limit", "throttled", "memory used / limit", "", "last change"];
    const classes = ["", "node", "trend", "number", "number", "number", "bar", "reason"];
    const head = h("tr", {}, ...columns.map((column, at) => h("th", { scope: "col", class: classes[at] }, column)));
    const legend = h("ul", { class: "legend", "aria-hidden": "true" }, ...LINES.map((line) => h("li", { class: `key ${line.colour}` }, line.label)));
    this.table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Containers of ${app.name}` }, h("table", {}, h("thead", {}, head), this.body));
    this.none = h("p", { class: "note" }, "No container is reported. They belong to it by a label: ", h("code", {}, `docker run --label turnbuckle.app=${app.name} …`));
    this.element = h(
      "section", { class: "card", "aria-label": `Application ${app.name}`, "data-app": app.name },
      h("div", { class: "card-head" }, h("h2", {}, app.name), this.facts, legend),
      h("div", { class: "charts" }, figure("CPU", "cores", this.cpu), figure("Memory", "", this.memory)),
      h("div", { class: "pools" }, this.pools[0].element, this.pools[1].element),
      this.table, this.none, this.more, this.detail,
    );
  }

  update(app: App): void {
    const containers = app.containers;
    const hosts = app.nodes.size;
    const owner = app.owner ? `owner ${app.owner}` : "no owner at present";
    setText(this.facts, `${app.mode || "?"} · ${app.policy || "?"} · ${containers.length === 0 ? "no containers" : count(containers.length, "container")}${hosts > 1 ? ` on ${hosts} hosts` : ""} · ${owner}`);
    this.cpu.update(app.times, [toCores(app.cpu.used), toCores(app.cpu.quota), toCores(app.cpu.limit)]);
    this.memory.update(app.times, [app.memory.used, app.memory.quota, app.memory.limit]);
    const [cpuUsed, memoryUsed] = [app.cpu.used.at(-1) ?? 0, app.memory.used.at(-1) ?? 0];
    this.pools[0].update(app.cpuLimitUs, cpuUsed, app.cpuHeldUs, 0, (value) => `${cores(value)} cores`);
    this.pools[1].update(app.memoryLimitBytes, memoryUsed, app.memoryHeldBytes, app.memoryReservedBytes, bytes);
    this.table.hidden = containers.length === 0;
    this.none.hidden = containers.length > 0;
    this.list(containers.slice(0, LISTED), app.periodUs);
    setText(this.more, containers.length > LISTED ? `and ${containers.length - LISTED} more` : "");
    this.showDetail(app);
  }

  restyle(): void {
    for (const chart of [this.cpu, this.memory, ...(this.detailCharts ?? [])]) chart.restyle();
  }

  destroy(): void {
    for (const chart of [this.cpu, this.memory, ...(this.detailCharts ?? [])]) chart.destroy();
  }

  private list(containers: Container[], periodUs: number): void {
    const here = new Set(containers.map((container) => container.key));
    for (const [key, row] of this.rows) {
      if (here.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    containers.forEach((container, at) => {
      let row = this.rows.get(container.key);
      if (row === undefined) {
        row = new Row(container, () => (this.open = this.open === container.key ? "" : container.key));
        this.rows.set(container.key, row);
      }
      if (this.body.children[at] !== row.element) this.body.insertBefore(row.element, this.body.children[at] ?? null);
      row.update(container, periodUs, this.open === container.key);
    });
  }

  /** The container that was opened, as large as its application. */
  private showDetail(app: App): void {
    const container = app.find(this.open);
    if (container === undefined) {
      this.detailCharts?.forEach((chart) => chart.destroy());
      this.detailCharts = null;
      this.detail.hidden = true;
      return;
    }
    if (this.detailCharts === null || this.detail.dataset.container !== container.key) {
      this.detailCharts?.forEach((chart) => chart.destroy());
      const lines = [LINES[0]!, { ...LINES[1]!, label: "limit" }];
      this.detailCharts = [new Chart(`CPU of ${container.key}`, lines, (value) => String(Number(value.toFixed(2)))), new Chart(`Memory of ${container.key}`, lines, bytes, BINARY_STEPS)];
      this.detail.replaceChildren(h("h3", {}, container.key), h("div", { class: "charts" }, figure("CPU", "cores", this.detailCharts[0]), figure("Memory", "", this.detailCharts[1])));
      this.detail.dataset.container = container.key;
      this.detail.hidden = false;
    }
    const times = app.times.slice(-container.used.length);
    this.detailCharts[0].update(times, [toCores(container.used), toCores(container.quota)]);
    this.detailCharts[1].update(times, [container.memory, container.memoryLimit]);
  }
}

function figure(title: string, unit: string, chart: Chart): HTMLElement {
  return h("figure", {}, h("figcaption", {}, title, unit && h("span", { class: "unit" }, ` ${unit}`)), chart.element);
}

export class AppsView {
  readonly element = h("div", { class: "view" });
  private readonly cards = new Map<string, Card>();
  private readonly empty = h(
    "div", { class: "empty" }, h("h2", {}, "No application yet"),
    h("p", {}, "Announce one: ", h("code", {}, "turnbuckle apply app.yaml"), ", or try ", h("code", {}, "turnbuckle up --demo"), "."),
  );

  update(model: Model): void {
    const apps = model.shown;
    for (const [name, card] of this.cards) {
      if (apps.some((app) => app.name === name)) continue;
      card.destroy();
      card.element.remove();
      this.cards.delete(name);
    }
    for (const app of apps) {
      let card = this.cards.get(app.name);
      if (card === undefined) {
        card = new Card(app);
        this.cards.set(app.name, card);
        const after = apps[apps.indexOf(app) + 1];
        this.element.insertBefore(card.element, (after && this.cards.get(after.name)?.element) ?? null);
      }
      card.update(app);
    }
    if (apps.length === 0 && !this.empty.isConnected) this.element.append(this.empty);
    if (apps.length > 0) this.empty.remove();
  }

  restyle(): void {
    for (const card of this.cards.values()) card.restyle();
  }
}
