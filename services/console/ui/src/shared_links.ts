// Links that several jobs share: how well these fit beside each other, and when in their common period each sends.
import { h, s, setText } from "./dom";
import { bitRate, bytes, count, duration } from "./format";
import { hue } from "./gantt";
import { hashOf, place } from "./place";
import type { LinkScore, Queue, QueuedJob } from "./types";

const LINKS_SHOWN = 20;
const MOST_PERIODS = 4; // of the longest iteration, where the periods never come together
const MOST_TURNS = 100; // of the shortest
const PICTURE = { width: 1_000, gutter: 130, lane: 18, gap: 3, axis: 20, ticks: 4, letters: 16 };
const ROUNDING = 1.001; // rates are learned, not exact

interface Part { beginMs: number; endMs: number }
interface Phase extends Part { bitsPerS: number }
interface Lane { job: string; phases: Phase[] }
interface Timeline { lengthMs: number; lanes: Lane[]; excess: Part[] }

const isShifted = (link: LinkScore): boolean => link.why === "";

/** When each job sends within their common period: with its shift, or, where nothing is shifted, as if all began at once. */
export function timelineOf(link: LinkScore, jobs: Map<string, QueuedJob>): Timeline {
  const drawn = link.jobs.flatMap((name) => {
    const { traffic = null, shift = null } = jobs.get(name) ?? {};
    if (traffic === null || (isShifted(link) && shift === null)) return [];
    return [{ job: name, periodMs: shift?.period_ms ?? traffic.period_ms, shiftMs: shift?.shift_ms ?? 0, phases: traffic.phases }];
  });
  const periodsMs = drawn.map((one) => one.periodMs);
  const commonMs = periodsMs.reduce(leastCommonMultiple, 1);
  const lengthMs = Math.min(commonMs, MOST_PERIODS * Math.max(0, ...periodsMs), MOST_TURNS * Math.min(...periodsMs));
  const lanes = drawn.map(({ job, periodMs, shiftMs, phases }) => {
    const found: Phase[] = [];
    for (let turn = -1; turn * periodMs + shiftMs < lengthMs; turn += 1) {
      for (const phase of phases) {
        const startMs = turn * periodMs + shiftMs;
        const [beginMs, endMs] = [Math.max(0, startMs + phase.begin_ms), Math.min(lengthMs, startMs + phase.end_ms)];
        if (beginMs < endMs) found.push({ beginMs, endMs, bitsPerS: phase.bits_per_s });
      }
    }
    return { job, phases: found };
  });
  return { lengthMs, lanes, excess: excessOf(lanes, link.bits_per_s) };
}

function leastCommonMultiple(one: number, other: number): number {
  let [a, b] = [one, other];
  while (b > 0) [a, b] = [b, a % b];
  return (one / a) * other;
}

/** Where jobs send more together than the link carries. */
function excessOf(lanes: Lane[], bitsPerS: number): Part[] {
  const edges = lanes.flatMap((lane) => lane.phases.flatMap((phase) => [{ atMs: phase.beginMs, by: phase.bitsPerS }, { atMs: phase.endMs, by: -phase.bitsPerS }]));
  edges.sort((one, other) => one.atMs - other.atMs);
  const found: Part[] = [];
  let together = 0;
  edges.forEach(({ atMs, by }, at) => {
    together += by;
    const endMs = edges[at + 1]?.atMs ?? atMs;
    if (together <= ROUNDING * bitsPerS || endMs === atMs) return;
    const last = found.at(-1);
    if (last?.endMs === atMs) last.endMs = endMs;
    else found.push({ beginMs: atMs, endMs });
  });
  return found;
}

function picture(link: LinkScore, { lengthMs, lanes, excess }: Timeline): SVGElement {
  const { width, gutter, lane, gap, axis, ticks, letters } = PICTURE;
  const height = axis + lanes.length * (lane + gap);
  const x = (timeMs: number): number => gutter + (timeMs / lengthMs) * (width - gutter);
  const box = (part: Part, y: number, tall: number) => ({ x: x(part.beginMs), y, width: x(part.endMs) - x(part.beginMs), height: tall });
  const marks = excess.map((part) => s("rect", { class: "excess", ...box(part, axis, height - axis) }, s("title", {}, `more than ${bitRate(link.bits_per_s)}`)));
  const bars = lanes.flatMap(({ job, phases }, at) => phases.map((phase) =>
    s("rect", { class: "phase", fill: `hsl(${hue(job)} 60% 55%)`, rx: 3, ...box(phase, axis + at * (lane + gap), lane) }, s("title", {}, `${job}: ${range(phase)}, ${bitRate(phase.bitsPerS)}`)),
  ));
  const names = lanes.map(({ job }, at) => s("text", { class: "lane", x: 0, y: axis + at * (lane + gap) + lane - 4 }, job.length > letters ? `${job.slice(0, letters - 1)}…` : job));
  const lines = Array.from({ length: ticks }, (_, at) => (at * lengthMs) / ticks).flatMap((timeMs) => [
    s("line", { class: "grid", x1: x(timeMs), x2: x(timeMs), y1: 0, y2: height }),
    s("text", { class: "tick", x: x(timeMs) + 4, y: axis - 6 }, moment(timeMs)),
  ]);
  return s("svg", { class: "phases", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label(link, { lengthMs, lanes, excess }) }, ...lines, ...marks, ...names, ...bars);
}

const moment = (timeMs: number): string => (timeMs === 0 ? "0" : duration(1e3 * timeMs));
const range = (part: Part): string => `${moment(part.beginMs)} – ${moment(part.endMs)}`;

function label(link: LinkScore, { lengthMs, lanes, excess }: Timeline): string {
  const sends = lanes.map(({ job, phases }) => `${job} sends ${phases.map(range).join(", ")}`);
  const beyond = excess.length === 0 ? "never more than it carries" : `more than it carries: ${excess.map(range).join(", ")}`;
  return `${link.link} over ${duration(1e3 * lengthMs)}: ${[...sends, beyond].join("; ")}`;
}

function row(name: string, job: QueuedJob | undefined): HTMLElement {
  const { traffic = null, shift = null } = job ?? {};
  const texts = traffic === null ? ["not known yet", "", ""] : [duration(1e3 * traffic.period_ms), bytes(traffic.sent_bytes), duration(1e3 * traffic.phases.reduce((sum, phase) => sum + phase.end_ms - phase.begin_ms, 0))];
  const turn = shift === null ? "not shifted" : `${moment(shift.shift_ms)} of ${duration(1e3 * shift.period_ms)}`;
  const link = h("a", { class: "link-button", href: hashOf({ ...place(), job: name }) }, name);
  return h("tr", {}, h("th", { scope: "row" }, link), ...[...texts, turn, job?.congestion_control ?? ""].map((text, at) => h("td", { class: at < 4 ? "number" : "" }, text)));
}

function scores(link: LinkScore, jobs: Map<string, QueuedJob>): string {
  const known = isShifted(link) || link.jobs.every((name) => jobs.get(name)?.traffic !== null);
  const unshifted = known ? `score ${link.unshifted.toFixed(2)} if all begin at once` : "score not known yet";
  return [bitRate(link.bits_per_s), unshifted, isShifted(link) ? `${link.score.toFixed(2)} with their shifts` : `not shifted: ${link.why}`].join(" · ");
}

function panel(link: LinkScore, jobs: Map<string, QueuedJob>): HTMLElement {
  const heads = ["job", "iteration", "bytes", "sends for", "shift", "congestion control"].map((text, at) => h("th", { scope: "col", class: at > 0 && at < 5 ? "number" : "" }, text));
  const timeline = timelineOf(link, jobs);
  return h(
    "section", { class: "shared-link", "aria-label": link.link },
    h("div", { class: "card-head" }, h("h3", {}, link.link), h("p", { class: "facts" }, scores(link, jobs))),
    timeline.lanes.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Phases of ${link.link}` }, picture(link, timeline)),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Jobs on ${link.link}` }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...link.jobs.map((name) => row(name, jobs.get(name)))))),
  );
}

/** The card of all shared links, those whose jobs fit worst first. Where none is shared it is not there. */
export class SharedLinks {
  readonly element: HTMLElement;
  private readonly facts = h("p", { class: "facts" });
  private readonly links = h("div", { class: "shared-links" });
  private drawn = "";

  constructor() {
    this.element = h("section", { class: "card", "aria-label": "Shared links", hidden: true }, h("div", { class: "card-head" }, h("h2", {}, "Shared links"), this.facts), this.links);
  }

  update(queue: Queue): void {
    const links = [...(queue.links ?? [])].sort((one, other) => one.score - other.score);
    const shown = links.slice(0, LINKS_SHOWN);
    const jobs = new Map(queue.jobs.map((job) => [job.job, job]));
    const now = JSON.stringify([hashOf(place()), links.length, shown.map((link) => [link, link.jobs.map((name) => [jobs.get(name)?.traffic, jobs.get(name)?.shift, jobs.get(name)?.congestion_control])])]);
    if (now === this.drawn) return; // a reader's selection survives
    this.drawn = now;
    this.element.hidden = links.length === 0;
    const rest = links.length > shown.length ? `; the ${shown.length} with the lowest scores` : "";
    setText(this.facts, `${count(links.length, "link")}${rest}; a score of 1: never more is sent than it carries`);
    this.links.replaceChildren(...shown.map((link) => panel(link, jobs)));
  }
}
