// The feed: what happened to memory, containers, routes and rules, newest first.
import { h, setText } from "./dom";
import { clock } from "./format";
import type { Event, EventKind, Model } from "./model";

const KINDS: [EventKind, string][] = [["memory", "Memory"], ["container", "Containers"], ["route", "Routes"], ["rules", "Rules"]];
const LISTED = 150;

export class EventsView {
  readonly element: HTMLElement;
  private readonly list = h("ol", { class: "events" });
  private readonly count = h("span", { class: "count" });
  private readonly wanted = new Set<EventKind>(KINDS.map(([kind]) => kind));
  private drawn = -1;

  constructor() {
    const filters = KINDS.map(([kind, label]) =>
      h("button", {
        type: "button", class: `chip ${kind}`, "aria-pressed": "true",
        click: (event: MouseEvent) => this.toggle(kind, event.currentTarget as HTMLElement),
      }, label));
    this.element = h(
      "section", { class: "feed" },
      h("div", { class: "feed-head" }, h("h2", {}, "Events"), this.count),
      h("div", { class: "chips", role: "group", "aria-label": "Kinds of events" }, ...filters),
      h("div", { class: "events-scroll", tabindex: 0, role: "region", "aria-label": "Events, newest first" }, this.list),
    );
  }

  update(model: Model): void {
    if (model.eventCount === this.drawn) return;
    this.drawn = model.eventCount;
    const shown = model.events.filter((event) => this.wanted.has(event.kind)).slice(0, LISTED);
    setText(this.count, model.eventCount === 0 ? "" : String(model.eventCount));
    if (shown.length === 0) this.list.replaceChildren(h("li", { class: "nothing" }, "Nothing has happened in the last hour."));
    else this.list.replaceChildren(...shown.map(line));
  }

  private toggle(kind: EventKind, button: HTMLElement): void {
    if (!this.wanted.delete(kind)) this.wanted.add(kind);
    button.setAttribute("aria-pressed", String(this.wanted.has(kind)));
    this.drawn = -1;
  }
}

function line(event: Event): HTMLElement {
  const head = h("div", { class: "event-head" }, h("span", { class: `badge ${event.level}` }, event.what), h("b", {}, event.who), h("span", { class: "where" }, event.where), h("time", {}, clock(event.timeNs)));
  return h("li", { class: `event ${event.kind}` }, head, h("p", {}, event.text));
}
