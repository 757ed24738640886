// Jobs and nodes as tables: in the scheduler's order, with the reason why each is where it is.
import { h, setAttribute, setText } from "./dom";
import { bytes, clock, dateClock, span, spans } from "./format";
import { unusable } from "./gantt";
import { hashOf, place } from "./place";
import { RowsInSight, type Row } from "./rows_in_sight";
import type { ClusterNode, JobPhase, Queue, QueuedJob } from "./types";

const LEVELS: Record<JobPhase, string> = { waiting: "", running: "good", stopping: "warn", ended: "", failed: "bad", cancelled: "" };
const NAMED_AHEAD = 3;

export const isLive = (job: QueuedJob): boolean => job.phase === "waiting" || job.phase === "running" || job.phase === "stopping";

/** From submission to the end, or until now: its completion time, so far. */
export function completionS(job: QueuedJob, nowNs: number): number {
  return Math.max(0, ((job.ended_ns || nowNs) - job.submitted_ns) / 1e9);
}

/** Such as `n1 x2, n2`. */
export function where(nodes: string[]): string {
  const counts = new Map<string, number>();
  for (const node of nodes) counts.set(node, (counts.get(node) ?? 0) + 1);
  return [...counts].map(([node, count]) => (count > 1 ? `${node} x${count}` : node)).join(", ");
}

function left(job: QueuedJob): string {
  if (!isLive(job)) return "";
  return job.left === null ? "not known" : `${span(job.left.median_s)} (${spans(job.left.low_s, job.left.high_s)})`;
}

function until(job: QueuedJob): string {
  if (!isLive(job)) return job.ended_ns > 0 ? `ended ${dateClock(job.ended_ns)}` : "";
  const end = job.expected_end_ns > 0 ? `ends ${dateClock(job.expected_end_ns)}` : "";
  if (job.phase !== "waiting") return end || "end not known";
  return job.expected_start_ns === 0 ? "no start in sight" : [`starts ${clock(job.expected_start_ns)}`, end].filter(Boolean).join(", ");
}

function why(job: QueuedJob): string {
  const more = job.ahead.length - NAMED_AHEAD;
  const behind = job.phase !== "waiting" || job.ahead.length === 0 ? "" : `behind ${job.ahead.slice(0, NAMED_AHEAD).join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
  const preempted = job.preemptions === 0 ? "" : `preempted ${job.preemptions === 1 ? "once" : `${job.preemptions} times`}`;
  return [job.why, behind, preempted].filter(Boolean).join("; ");
}

class JobRow implements Row<QueuedJob> {
  readonly element: HTMLElement;
  private readonly link = h("a", { class: "link-button" });
  private readonly state = h("span", { class: "badge" });
  private readonly slots = h("td", { class: "number" });
  private readonly where = h("td", {});
  private readonly ran = h("td", { class: "number" });
  private readonly waited = h("td", { class: "number" });
  private readonly jct = h("td", { class: "number" });
  private readonly left = h("td", {});
  private readonly until = h("td", { class: "until" });
  private readonly why = h("td", { class: "reason" });

  constructor(private readonly nowNs: () => number) {
    this.element = h("tr", {}, h("th", { scope: "row" }, this.link), h("td", {}, this.state), this.slots, this.where, this.ran, this.waited, this.jct, this.left, this.until, this.why);
  }

  update(job: QueuedJob): void {
    setText(this.link, job.job);
    setAttribute(this.link, "title", job.job);
    setAttribute(this.link, "href", hashOf({ ...place(), job: job.job }));
    if (place().job === job.job) setAttribute(this.link, "aria-current", "true");
    else this.link.removeAttribute("aria-current");
    setText(this.state, job.phase);
    setAttribute(this.state, "class", `badge ${LEVELS[job.phase] ?? ""}`);
    const cells: [HTMLElement, string][] = [
      [this.slots, String(job.slots)], [this.where, where(job.nodes)], [this.ran, span(Math.round(job.ran_s))], [this.waited, span(Math.round(job.waited_s))],
      [this.jct, span(Math.round(completionS(job, this.nowNs())))], [this.left, left(job)], [this.until, until(job)], [this.why, why(job)],
    ];
    for (const [cell, text] of cells) setText(cell, text);
    for (const cell of [this.where, this.why, this.until, this.left]) setAttribute(cell, "title", cell.textContent ?? "");
  }
}

class NodeRow implements Row<ClusterNode> {
  readonly element: HTMLElement;
  private readonly name = h("th", { scope: "row" });
  private readonly state = h("span", { class: "badge" });
  private readonly cells = ["number", "number", "number", "number", "", "reason"].map((name) => h("td", { class: name }));

  constructor(private readonly taken: () => Map<string, number>) {
    const [free, ...others] = this.cells;
    this.element = h("tr", {}, this.name, h("td", {}, this.state), free, ...others);
  }

  update(node: ClusterNode): void {
    const note = unusable(node);
    setText(this.name, node.node);
    setText(this.state, note || "ready");
    setAttribute(this.state, "class", `badge ${node.silent ? "bad" : note === "" ? "good" : "warn"}`);
    const free = note === "" ? node.slots - (this.taken().get(node.node) ?? 0) : 0;
    const texts = [String(Math.max(0, free)), `${node.slots}${node.gpus > 0 ? ` (${node.gpus} GPUs)` : ""}`, Number(node.cores.toFixed(2)).toString(), bytes(node.memory_bytes), node.rack, node.why];
    this.cells.forEach((cell, at) => setText(cell, texts[at]!));
    setAttribute(this.cells.at(-1)!, "title", node.why);
  }
}

function heads(columns: [string, string][]): HTMLElement[] {
  return columns.map(([text, name]) => h("th", { scope: "col", class: name }, text));
}

export class JobTables {
  private queue: Queue | null = null;
  private version = 0;
  private taken = new Map<string, number>();
  private readonly jobRows = new RowsInSight<QueuedJob>("Jobs, in the order of their turn", "jobs", heads([["job", "job"], ["state", "state"], ["slots", "number slots"], ["where", "where"], ["ran", "number ran"], ["waited", "number waited"], ["JCT so far", "number jct"], ["left", "left"], ["expected", "until"], ["why", "reason"]]), () => new JobRow(() => this.queue?.time_ns ?? 0));
  private readonly nodeRows = new RowsInSight<ClusterNode>("Nodes", "nodes", heads([["node", "node"], ["state", "state"], ["free slots", "number"], ["slots", "number"], ["cores", "number"], ["memory", "number"], ["rack", ""], ["why", "reason"]]), () => new NodeRow(() => this.taken));
  readonly jobs = this.jobRows.element;
  readonly nodes = this.nodeRows.element;

  update(queue: Queue, listed: QueuedJob[]): void {
    if (queue !== this.queue) {
      this.taken = takenSlots(queue);
      this.version += 1;
    }
    this.queue = queue;
    this.jobRows.update(listed, this.version);
    this.nodeRows.update(queue.nodes, this.version);
  }
}

function takenSlots(queue: Queue): Map<string, number> {
  const taken = new Map<string, number>();
  for (const job of queue.jobs) for (const node of job.nodes) taken.set(node, (taken.get(node) ?? 0) + job.slots / job.nodes.length);
  return taken;
}
