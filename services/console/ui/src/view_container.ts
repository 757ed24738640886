// One container: its last hour, why its limits are what they are, and what happened to it.
import { BINARY_STEPS, Chart, LINES, figure, plainCores } from "./charts";
import { h, setText } from "./dom";
import { bytes, cores, dateClock, percent, shortName } from "./format";
import { ask } from "./feed";
import { MEMORY, MEMORY_LIMIT, QUOTA, USED, type Event, type Model } from "./model";
import { Past } from "./past";
import { place, hashOf } from "./place";
import { line } from "./view_events";

const WIDTH = 5;
const LISTED = 50;
const OWN_LINES = [LINES[0]!, { ...LINES[1]!, label: "limit" }];
interface Explained { kind: string; text: string; time_ns: number }

export class ContainerView {
  readonly element = h("div", { class: "view" });
  past: Past | null = null;
  private shown = "";
  private facts = h("p", { class: "facts" });
  private reason = h("p", { class: "note" });
  private explained = h("ul", { class: "explained", "aria-live": "polite" });
  private events = h("ol", { class: "events" });
  private drawnEvents = -1;
  private own: Event[] = [];
  private charts: [Chart, Chart] | null = null;

  update(model: Model): void {
    this.open();
    const { app, node, container: key } = place();
    const container = model.find(app, node, key);
    setText(this.facts, container === undefined ? "not reported at present" : [
      `CPU ${cores(container.usedUs, container.periodUs)} of ${cores(container.quotaUs, container.periodUs)} cores`, `throttled in ${percent(container.throttled)} of periods`,
      `memory ${bytes(container.memoryBytes)} of ${bytes(container.memoryLimitBytes)}`, ...(container.kills > 0 ? [`${container.kills} OOM killed`] : []),
    ].join(" · "));
    setText(this.reason, container?.reason ? `Last change: ${container.reason}` : "");
    this.list(model);
    if (this.charts !== null && this.past !== null) {
      const { times, columns } = this.past;
      const column = (at: number) => columns[at] ?? [];
      this.charts[0].update(times, [USED, QUOTA].map((at) => column(at).map((value) => (value === null || value < 0 ? null : value / 1e5))), this.own);
      this.charts[1].update(times, [MEMORY, MEMORY_LIMIT].map((at) => column(at).map((value) => (value === null || value < 0 ? null : value))), this.own);
    }
  }

  private list(model: Model): void {
    if (model.eventCount === this.drawnEvents) return;
    this.drawnEvents = model.eventCount;
    const { app, node, container } = place();
    this.own = model.events.filter((event) => event.container === container && event.node === node && event.app === app).slice(0, LISTED);
    if (this.own.length === 0) this.events.replaceChildren(h("li", { class: "nothing" }, "Nothing has happened to it in the last hour."));
    else this.events.replaceChildren(...this.own.map((event) => line(event, 1)));
  }

  /** A second has passed. */
  second(model: Model, redraw: () => void): void {
    const { app, node, container } = place();
    this.past?.push(model.timeS, model.find(app, node, container)?.now ?? [], model.join, redraw);
  }

  restyle(): void {
    this.charts?.forEach((chart) => chart.restyle());
  }

  /** The page of the container that the address names, made anew where it is another one. */
  private open(): void {
    const { app, node, container } = place();
    const shown = [app, node, container].join("\n");
    if (shown === this.shown) return;
    this.shown = shown;
    this.drawnEvents = -1;
    this.past = new Past({ app, node, container }, WIDTH);
    this.charts?.forEach((chart) => chart.destroy());
    this.charts = [new Chart(`CPU of ${container}`, OWN_LINES, plainCores), new Chart(`Memory of ${container}`, OWN_LINES, bytes, BINARY_STEPS)];
    const refresh = h("button", { type: "button", class: "chip", click: () => void this.explain() }, "Ask again");
    const up = h("a", { class: "link-button", href: hashOf({ ...place(), view: "applications", node: "", container: "" }) }, app);
    this.element.replaceChildren(
      h("section", { class: "card", "aria-label": `Container ${container}`, "data-container": container },
        h("div", { class: "card-head" }, h("h2", { title: container }, shortName(container)), h("p", { class: "facts" }, up, ` on ${node} · ${container}`)),
        this.facts, h("div", { class: "charts" }, figure("CPU", "cores", this.charts[0]), figure("Memory", "", this.charts[1])), this.reason),
      h("section", { class: "card", "aria-label": "Why" }, h("div", { class: "card-head" }, h("h2", {}, "Why its limits are what they are"), refresh), this.explained),
      h("section", { class: "card", "aria-label": "Events of the last hour" }, h("div", { class: "card-head" }, h("h2", {}, "What happened to it"), h("p", { class: "facts" }, "upright lines in the charts")), this.events),
    );
    void this.explain();
  }

  /** What `turnbuckle explain` prints. */
  private async explain(): Promise<void> {
    const { app, container } = place();
    const asked = this.shown;
    this.explained.replaceChildren(h("li", { class: "note" }, "asking …"));
    let lines: Explained[];
    try {
      const answer = await ask("/explain", { app, container });
      lines = answer.error ? [{ kind: "warning", text: String(answer.error), time_ns: 0 }] : (answer.lines as Explained[]);
    } catch (error) {
      lines = [{ kind: "warning", text: `The console does not answer: ${String(error)}`, time_ns: 0 }];
    }
    if (asked !== this.shown) return; // another container is shown by now
    this.explained.replaceChildren(...lines.map(({ kind, text, time_ns: timeNs }) =>
      h("li", { class: kind }, timeNs > 0 && h("time", {}, dateClock(timeNs)), h("span", {}, text))));
  }
}
