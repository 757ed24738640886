// Training jobs: who ran where, who waits and why, the nodes; and the history of one job.
import { h, setText } from "./dom";
import { ask } from "./feed";
import { clock, count, dateClock, percent, span } from "./format";
import { Gantt } from "./gantt";
import { completionS, JobTables, where } from "./job_table";
import { go, hashOf, place } from "./place";
import { SharedLinks } from "./shared_links";
import type { JobHistory, JobReason, Queue, QueuedJob } from "./types";

const AGAIN_MS = 2_000; // while the page is looked at

export class JobsView {
  readonly element = h("div", { class: "view" });
  private queue: Queue | null = null;
  private askedMs = -AGAIN_MS;
  private asking = false;
  private missing = false; // there was no answer yet, as no scheduler runs
  private drawn = "";
  private readonly trouble = h("p", { class: "trouble", role: "status", hidden: true });
  private readonly facts = h("p", { class: "facts" });
  private readonly found = h("p", { class: "note" });
  private readonly gantt = new Gantt();
  private readonly tables = new JobTables();
  private readonly links = new SharedLinks();
  private readonly history = new HistoryCard();
  private readonly absent = h(
    "div", { class: "empty" }, h("h2", {}, "No scheduler on this bus"),
    h("p", {}, "Try one on this machine: ", h("code", {}, "turnbuckle up --cluster 4x2"), "."),
    h("p", {}, "For hosts: ", h("code", {}, "turnbuckle run scheduler"), " once, and ", h("code", {}, "turnbuckle run runner"), " on each of them."),
  );
  private readonly none = h("div", { class: "empty" }, h("h2", {}, "No job in the last hour"), h("p", {}, "Submit one: ", h("code", {}, "turnbuckle jobs submit job.yaml"), "."));
  private readonly cards = [
    h("section", { class: "card", "aria-label": "Slots" }, h("div", { class: "card-head" }, h("h2", {}, "Who runs where"), this.facts), this.gantt.element),
    this.links.element,
    h("section", { class: "card", "aria-label": "Jobs" }, h("div", { class: "card-head" }, h("h2", {}, "Jobs"), this.found), this.tables.jobs, this.none),
    h("section", { class: "card", "aria-label": "Nodes" }, h("div", { class: "card-head" }, h("h2", {}, "Nodes")), this.tables.nodes),
  ];

  constructor(private readonly redraw: () => void) {}

  update(): void {
    void this.refresh();
    this.history.update();
    this.arrange();
    const now = `${this.queue?.time_ns} ${hashOf(place())}`;
    if (this.queue === null || now === this.drawn) return;
    this.drawn = now;
    const { queue } = this;
    const listed = queue.jobs.filter(matches);
    const names = new Set(listed.map((job) => job.job));
    this.gantt.update(queue, (job) => names.has(job));
    this.links.update(queue);
    this.tables.update(queue, listed);
    setText(this.facts, summary(queue));
    const rest = queue.left_out > 0 ? `; ${count(queue.left_out, "job")} more than fit here` : "";
    setText(this.found, (listed.length < queue.jobs.length ? `${listed.length} of ${count(queue.jobs.length, "job")} match the search` : count(queue.jobs.length, "job")) + rest);
    this.tables.jobs.hidden = queue.jobs.length === 0;
    this.none.hidden = queue.jobs.length > 0;
  }

  /** A second has passed. */
  second(): void {
    void this.refresh();
  }

  restyle(): void {
    this.gantt.draw();
  }

  private async refresh(): Promise<void> {
    if (document.hidden || this.asking || performance.now() - this.askedMs < AGAIN_MS) return;
    this.asking = true;
    this.askedMs = performance.now();
    try {
      const answer = await ask("/queue", {});
      const failed = answer.type === "console.NoAnswer";
      this.say(failed ? String(answer.error) : "");
      if (!failed) this.queue = answer as unknown as Queue;
      this.missing = answer.absent === true;
    } catch (error) {
      this.say(`The console does not answer: ${String(error)}`);
    } finally {
      this.asking = false;
      this.redraw();
    }
  }

  /** What was known last stays, with what is wrong above it. */
  private say(trouble: string): void {
    const since = this.queue === null ? "" : `; as of ${clock(this.queue.time_ns)}`;
    setText(this.trouble, trouble === "" ? "" : `${trouble}${since}`);
    this.trouble.hidden = trouble === "";
  }

  private arrange(): void {
    const parts = this.queue !== null ? [this.trouble, this.cards[0]!, this.history.element, ...this.cards.slice(1)] : this.missing ? [this.absent] : [this.trouble];
    if (parts.some((part, at) => this.element.children[at] !== part) || this.element.children.length !== parts.length) this.element.replaceChildren(...parts);
  }
}

/** Each word of the search in its name, its state, or on a node that it has. */
function matches(job: QueuedJob): boolean {
  const text = `${job.job} ${job.phase} ${job.nodes.join(" ")}`.toLowerCase();
  return place().search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function summary(queue: Queue): string {
  const ended = queue.jobs.filter((job) => job.phase === "ended");
  const waiting = queue.jobs.filter((job) => job.phase === "waiting").length;
  const running = queue.jobs.filter((job) => job.phase === "running" || job.phase === "stopping").length;
  const mean = ended.reduce((sum, job) => sum + completionS(job, queue.time_ns), 0) / ended.length;
  const share = queue.slots > 0 ? ` (${percent(queue.taken_slots / queue.slots)})` : "";
  const completion = ended.length > 0 ? `mean completion time ${span(mean)} of ${count(ended.length, "job")} in the last hour` : "none ended well in the last hour";
  return [`${queue.taken_slots} of ${count(queue.slots, "slot")} taken${share}`, `${running} running, ${waiting} waiting`, completion, `policy ${queue.policy}`, `leader ${queue.leader}`].join(" · ");
}

function numbers(reason: JobReason | null): string {
  if (reason === null) return "";
  const index = reason.index > 0 ? `, index ${Number(reason.index.toPrecision(3))} per slot-hour` : "";
  return ` (turn ${reason.turn + 1}, ${count(reason.free_slots, "slot")} free${index}, had ${span(reason.service_slot_s)} of slot time${reason.held ? ", held" : ""})`;
}

/** Everything that was decided about the job that the address names. */
class HistoryCard {
  readonly element: HTMLElement;
  private asked = "";
  private readonly title = h("h2");
  private readonly facts = h("p", { class: "facts" });
  private readonly lines = h("ul", { class: "explained", "aria-live": "polite" });

  constructor() {
    const again = h("button", { type: "button", class: "chip", click: () => void this.ask(place().job) }, "Ask again");
    const close = h("button", { type: "button", class: "chip", click: () => go({ job: "" }) }, "Close");
    this.element = h("section", { class: "card", "aria-label": "History of a job", id: "job-history" }, h("div", { class: "card-head" }, this.title, this.facts, again, close), this.lines);
  }

  update(): void {
    const { job } = place();
    this.element.hidden = job === "";
    if (job === this.asked) return;
    this.asked = job;
    if (job !== "") void this.ask(job);
  }

  private async ask(job: string): Promise<void> {
    setText(this.title, job);
    setText(this.facts, "");
    this.lines.replaceChildren(h("li", { class: "note" }, "asking …"));
    let lines: HTMLElement[];
    try {
      const answer = await ask("/job", { job });
      if (place().job !== job) return; // another one is shown by now
      lines = answer.type === "console.NoAnswer" ? [warning(String(answer.error))] : this.read(answer as unknown as JobHistory);
    } catch (error) {
      lines = [warning(`The console does not answer: ${String(error)}`)];
    }
    this.lines.replaceChildren(...lines);
  }

  private read({ job, spec, history }: JobHistory): HTMLElement[] {
    const estimate = job.estimate === null ? "no estimate" : `estimated ${span(job.estimate.median_s)} (${span(job.estimate.low_s)} – ${span(job.estimate.high_s)}) by the ${job.estimate_source}`;
    const lost = job.lost_s > 0 ? `, lost ${span(job.lost_s)}` : "";
    const at = job.nodes.length > 0 ? ` on ${where(job.nodes)}` : "";
    setText(this.facts, [`${job.phase}${at}`, `${count(job.workers, "worker")}, ${count(job.slots, "slot")}`, estimate, `ran ${span(job.ran_s)}${lost}`, `preemption: ${job.preemption}`, spec.command.join(" ")].join(" · "));
    return history.map((line) => h("li", {}, h("time", {}, dateClock(line.time_ns)), h("span", {}, h("b", {}, line.what), line.why === "" ? "" : `: ${line.why}`, numbers(line.reason))));
  }
}

function warning(text: string): HTMLElement {
  return h("li", { class: "warning" }, text);
}
