// The feed: what happened to memory, containers, routes and rules, newest first.
import { h, setText } from "./dom";
import { clock } from "./format";
import type { Event, EventKind, Model } from "./model";

const KINDS: [EventKind, string][] = [["memory", "Memory"], ["container", "Containers"], ["route", "Routes"], ["rules", "Rules"]];
const LISTED = 150;
const TOGETHER_NS = 60e9;

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
    const shown = together(model.events.filter((event) => this.wanted.has(event.kind))).slice(0, LISTED);
    setText(this.count, model.eventCount === 0 ? "" : String(model.eventCount));
    if (shown.length === 0) this.list.replaceChildren(h("li", { class: "nothing" }, "Nothing has happened in the last hour."));
    else this.list.replaceChildren(...shown.map(([event, times]) => line(event, times)));
  }

  private toggle(kind: EventKind, button: HTMLElement): void {
    if (!this.wanted.delete(kind)) this.wanted.add(kind);
    button.setAttribute("aria-pressed", String(this.wanted.has(kind)));
    this.drawn = -1;
  }
}

/** The same again and again, within a minute of the newest, is one line with a count. */
function together(events: Event[]): [Event, number][] {
  const lines: [Event, number][] = [];
  const same = (one: Event, other: Event) => one.kind === other.kind && one.what === other.what && one.who === other.who && one.where === other.where;
  for (const event of events) {
    const last = lines.at(-1);
    if (last !== undefined && same(last[0], event) && last[0].timeNs - event.timeNs < TOGETHER_NS) last[1] += 1;
    else lines.push([event, 1]);
  }
  return lines;
}

function line(event: Event, times: number): HTMLElement {
  const head = h("div", { class: "event-head" }, h("span", { class: `badge ${event.level}` }, times > 1 ? `${event.what} x ${times}` : event.what), h("b", {}, event.who), h("span", { class: "where" }, event.where), h("time", {}, clock(event.timeNs)));
  return h("li", { class: `event ${event.kind}` }, head, h("p", {}, event.text));
}
