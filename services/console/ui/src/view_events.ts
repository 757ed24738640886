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
  private readonly chips: HTMLElement[];
  private wanted = new Set<EventKind>(KINDS.map(([kind]) => kind));
  private readonly chosen = new Map<string, Set<EventKind>>();
  private drawn = -1;
  private model: Model | null = null;

  constructor() {
    this.chips = KINDS.map(([kind, label]) =>
      h("button", {
        type: "button", class: `chip ${kind}`, "aria-pressed": "true",
        click: () => this.toggle(kind),
      }, label));
    this.element = h(
      "section", { class: "feed" },
      h("div", { class: "feed-head" }, h("h2", {}, "Events"), this.count),
      h("div", { class: "chips", role: "group", "aria-label": "Kinds of events" }, ...this.chips),
      h("div", { class: "events-scroll", tabindex: 0, role: "region", "aria-label": "Events, newest first" }, this.list),
    );
  }

  update(model: Model): void {
    this.model = model;
    if (model.eventCount === this.drawn) return;
    this.drawn = model.eventCount;
    const wanted = model.events.filter((event) => this.wanted.has(event.kind));
    const shown = together(wanted).slice(0, LISTED);
    setText(this.count, wanted.length === 0 ? "" : String(wanted.length));
    if (shown.length === 0) this.list.replaceChildren(h("li", { class: "nothing" }, this.wanted.size === KINDS.length ? "Nothing has happened in the last hour." : "Nothing of these kinds has happened in the last hour."));
    else this.list.replaceChildren(...shown.map(([event, times]) => line(event, times)));
  }

  /** What is beside the feed: at first only kinds of events about that, and then what the reader chose there. */
  about(kinds: EventKind[] | null): void {
    const place = kinds?.join() ?? "";
    this.wanted = this.chosen.get(place) ?? new Set(kinds ?? KINDS.map(([kind]) => kind));
    this.chosen.set(place, this.wanted);
    this.press();
  }

  private toggle(kind: EventKind): void {
    if (!this.wanted.delete(kind)) this.wanted.add(kind);
    this.press();
    if (this.model !== null) this.update(this.model);
  }

  private press(): void {
    KINDS.forEach(([kind], at) => this.chips[at]!.setAttribute("aria-pressed", String(this.wanted.has(kind))));
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

export function line(event: Event, times: number): HTMLElement {
  const head = h("div", { class: "event-head" }, h("span", { class: `badge ${event.level}` }, times > 1 ? `${event.what} x ${times}` : event.what), h("b", { title: event.who }, event.who), h("span", { class: "where", title: event.where }, event.where), h("time", {}, clock(event.timeNs)));
  return h("li", { class: `event ${event.kind}` }, head, h("p", {}, event.text));
}
