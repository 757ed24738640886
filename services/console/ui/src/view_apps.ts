// Applications: limit against usage over time, the pool, and every container.
import { BINARY_STEPS, Chart, LINES, figure, plainCores } from "./charts";
import { h, setText } from "./dom";
import { bytes, cores, count } from "./format";
import { APP_CPU_LIMIT, APP_MEMORY_LIMIT, MEMORY, MEMORY_LIMIT, QUOTA, USED, type App, type Model } from "./model";
import type { Values } from "./past";
import { go, place } from "./place";
import { Savings } from "./savings";
import { chosen, ContainerTable } from "./table";

const toCores = (values: Values): Values => values.map((value) => (value === null ? null : value / 1e5));

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
  /** In the window, or near it: others are not drawn. */
  seen = false;
  private readonly facts = h("p", { class: "facts" });
  private readonly cpu = new Chart("CPU, cores", LINES, plainCores);
  private readonly memory = new Chart("Memory", LINES, bytes, BINARY_STEPS);
  private readonly pools = [new Pool("CPU pool"), new Pool("Memory pool")] as const;
  private readonly table: ContainerTable;
  private readonly none: HTMLElement;
  private readonly found = h("p", { class: "note" });
  private readonly savings: Savings;
  private readonly saved = h("p", { class: "note savings", title: "turnbuckle savings" });

  constructor(app: App) {
    this.savings = new Savings(app.name);
    const legend = h("ul", { class: "legend", "aria-hidden": "true" }, ...LINES.map((line) => h("li", { class: `key ${line.colour}` }, line.label)));
    this.table = new ContainerTable(`Containers of ${app.name}`, false);
    this.none = h("p", { class: "note" }, "No container is reported. They belong to it by a label: ", h("code", {}, `docker run --label turnbuckle.app=${app.name} …`));
    this.element = h(
      "section", { class: "card", "aria-label": `Application ${app.name}`, "data-app": app.name },
      h("div", { class: "card-head" }, h("h2", {}, app.name), this.facts, legend),
      h("div", { class: "charts" }, figure("CPU", "cores", this.cpu), figure("Memory", "", this.memory)),
      h("div", { class: "pools" }, this.pools[0].element, this.pools[1].element), this.saved,
      this.table.element, this.none, this.found,
    );
  }

  update(app: App, second: number): void {
    const owner = app.owner ? `owner ${app.owner}` : "no owner at present";
    const number = app.containers.length;
    setText(this.facts, `${app.mode || "?"} · ${app.policy || "?"} · ${number === 0 ? "no containers" : count(number, "container")}${app.hosts > 1 ? ` on ${app.hosts} hosts` : ""} · ${owner}`);
    this.chart(app);
    this.pools[0].update(app.cpuLimitUs, app.now?.[USED] ?? 0, app.cpuHeldUs, 0, (value) => `${cores(value)} cores`);
    this.pools[1].update(app.memoryLimitBytes, app.now?.[MEMORY] ?? 0, app.memoryHeldBytes, app.memoryReservedBytes, bytes);
    setText(this.saved, this.savings.text);
    this.saved.hidden = this.savings.text === "";
    const listed = chosen(app.containers);
    this.table.element.hidden = listed.length === 0;
    this.none.hidden = number > 0;
    this.table.update(listed, second);
    setText(this.found, listed.length < number ? `${listed.length} of ${count(number, "container")} match the search` : "");
  }

  second(redraw: () => void): void {
    this.savings.refresh(redraw);
  }

  chart(app: App): void {
    const { times, columns } = app.past;
    const column = (at: number) => columns[at] ?? [];
    this.cpu.update(times, [USED, QUOTA, APP_CPU_LIMIT].map((at) => toCores(column(at))));
    this.memory.update(times, [MEMORY, MEMORY_LIMIT, APP_MEMORY_LIMIT].map(column));
  }

  restyle(): void {
    for (const chart of [this.cpu, this.memory]) chart.restyle();
  }

  destroy(): void {
    for (const chart of [this.cpu, this.memory]) chart.destroy();
    this.table.destroy();
  }
}

export class AppsView {
  readonly element = h("div", { class: "view" });
  private readonly cards = new Map<string, Card>();
  private readonly empty = h(
    "div", { class: "empty" }, h("h2", {}, "No application yet"),
    h("p", {}, "Announce one: ", h("code", {}, "turnbuckle apply app.yaml"), ", or try ", h("code", {}, "turnbuckle up --demo"), "."),
  );
  private readonly absent = h("div", { class: "empty" }, h("h2", {}, "Nothing matches"), h("p", {}, "No application or container is named like the search. ", h("button", { type: "button", class: "link-button", click: () => go({ app: "", search: "" }) }, "Show all")));
  private readonly sight: IntersectionObserver;

  constructor(redraw: () => void) {
    this.sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = this.cards.get((entry.target as HTMLElement).dataset.app ?? "");
        if (card !== undefined) card.seen = entry.isIntersecting;
      }
      redraw();
    }, { rootMargin: "100px" });
  }

  update(model: Model): void {
    const every = model.shown;
    const apps = every.filter((app) => place().app === "" || place().app === app.name).filter((app) => matches(app));
    for (const [name, card] of this.cards) {
      if (apps.some((app) => app.name === name)) continue;
      this.sight.unobserve(card.element);
      card.destroy();
      card.element.remove();
      this.cards.delete(name);
    }
    apps.forEach((app, at) => {
      const card = this.cards.get(app.name) ?? this.open(app, apps.slice(at + 1));
      if (card.seen) card.update(app, model.second);
    });
    this.say(this.empty, every.length === 0);
    this.say(this.absent, every.length > 0 && apps.length === 0);
  }

  /** A second has passed: histories of those in sight go on. */
  second(model: Model, redraw: () => void): void {
    for (const app of model.shown) {
      const card = this.cards.get(app.name);
      if (!card?.seen) continue;
      app.past.push(model.timeS, app.now ?? [], model.join, redraw);
      card.second(redraw);
    }
  }

  restyle(): void {
    for (const card of this.cards.values()) card.restyle();
  }

  private open(app: App, after: App[]): Card {
    const card = new Card(app);
    this.cards.set(app.name, card);
    const next = after.map((one) => this.cards.get(one.name)).find((one) => one !== undefined);
    this.element.insertBefore(card.element, next?.element ?? null);
    this.sight.observe(card.element);
    return card;
  }

  private say(what: HTMLElement, wanted: boolean): void {
    if (wanted && !what.isConnected) this.element.append(what);
    if (!wanted) what.remove();
  }
}

/** By its own name, or by one of its containers. */
function matches(app: App): boolean {
  const search = place().search.toLowerCase();
  return search === "" || app.name.toLowerCase().includes(search) || chosen(app.containers).length > 0;
}
