// What is shown, chosen: search, order, window of time, and the link to it.
import { h, setAttribute, setText } from "./dom";
import { clock } from "./format";
import { frozen, go, place, SORTS, SPANS_S, type Sort } from "./place";

const SPAN_LABELS: Record<number, string> = { 60: "1 min", 600: "10 min", 3600: "1 h" };
const ORDERS: Record<Sort, [string, string]> = { name: ["name", "name, backwards"], cpu: ["least CPU", "most CPU"], memory: ["least memory", "most memory"], throttled: ["least throttled", "most throttled"] };
const COPIED_MS = 2_000;

export class Toolbar {
  private readonly search: HTMLInputElement = h("input", { type: "search", id: "search", "aria-label": "Search", input: () => go({ search: this.search.value }, true) }) as HTMLInputElement;
  private readonly only = h("button", { type: "button", class: "chip", "aria-pressed": "true", click: () => go({ app: "" }) });
  private readonly order: HTMLSelectElement = h("select", { id: "order", "aria-label": "Order", change: () => this.reorder() }, ...SORTS.flatMap((sort) => [false, true].map((descending) => h("option", { value: `${descending ? "-" : ""}${sort}` }, `by ${ORDERS[sort][descending ? 1 : 0]}`)))) as HTMLSelectElement;
  private readonly spans = SPANS_S.map((spanS) => h("button", { type: "button", class: "chip", "aria-pressed": "false", click: () => go({ spanS, fromS: 0, toS: 0 }) }, SPAN_LABELS[spanS]));
  private readonly window = h("button", { type: "button", class: "chip", "aria-pressed": "true", title: "Back to now", click: () => go({ fromS: 0, toS: 0 }) });
  private readonly since = h("span", { class: "note" });
  private readonly copy = h("button", { type: "button", class: "chip", id: "copy", click: () => void this.copyLink() }, "Copy link");
  private readonly lists = h("div", { class: "chips" }, this.search, this.order, this.only);
  private readonly times = h("div", { class: "chips", role: "group", "aria-label": "Charts show" }, ...this.spans, this.window, this.since);
  readonly element = h("div", { class: "toolbar" }, this.lists, this.times, this.copy);

  /** `sinceS`: from when on there is anything to show; 0: that is not known yet. */
  update(sinceS: number): void {
    const { view, app, search, sort, descending, spanS, fromS, toS } = place();
    this.element.hidden = view === "network" || view === "predictions" || view === "events";
    this.lists.hidden = view === "container" || view === "trainings";
    this.order.hidden = view === "jobs";
    setAttribute(this.search, "placeholder", view === "jobs" ? "job, node" : "application, container, node");
    this.times.hidden = view === "containers";
    if (this.search.value !== search) this.search.value = search;
    const order = `${descending ? "-" : ""}${sort}`;
    if (this.order.value !== order) this.order.value = order;
    this.only.hidden = app === "" || view === "jobs";
    setText(this.only, `only ${app} ×`);
    SPANS_S.forEach((span, at) => setAttribute(this.spans[at]!, "aria-pressed", String(!frozen() && span === spanS)));
    this.window.hidden = !frozen();
    setText(this.window, frozen() ? `${clock(fromS * 1e9)} – ${clock(toS * 1e9)} ×` : "");
    setText(this.since, sinceS === 0 ? "" : Date.now() / 1e3 - sinceS > 3600 ? "drag over a chart to zoom" : `data since ${clock(sinceS * 1e9)}; drag over a chart to zoom`);
  }

  private reorder(): void {
    const value = this.order.value;
    go({ sort: value.replace(/^-/, "") as Sort, descending: value.startsWith("-") });
  }

  private async copyLink(): Promise<void> {
    const copied = await copyText(location.href);
    setText(this.copy, copied ? "Copied" : "Copy it from the address bar");
    setTimeout(() => setText(this.copy, "Copy link"), COPIED_MS);
  }
}

/** Without https, on another host than this one, a browser has no clipboard for a page but the old way. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "skip", "aria-hidden": "true" }, text) as HTMLTextAreaElement;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
