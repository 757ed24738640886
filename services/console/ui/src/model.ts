// What is known, folded from the stream. Batches come ten times a second and node; `sample` thins them for the charts.
import { decode, sentence, type Message, type Table } from "./decode";
import { bytes, duration, shortHop, shortName, uplink } from "./format";
import type { AppSpec, AppState, NetworkState, Prediction, Rules } from "./types";

export const SAMPLE_MS = 250;
export const HISTORY = 480; // samples: two minutes
const STALE_MS = 3_000;
const MOST_EVENTS = 800;
const THROTTLE_BATCHES = 100;
const IDLE_OR_WALL_CLOCK = 3;

export type Series = (number | null)[];

export class Container {
  quotaUs = -1;
  memoryBytes = 0;
  memoryLimitBytes = -1;
  kills = 0;
  reason = "";
  usedUs = 0;
  readonly used: Series = [];
  readonly quota: Series = [];
  readonly memory: Series = [];
  readonly memoryLimit: Series = [];
  private sumUs = 0;
  private count = 0;
  private periods: [number, number][] = [];

  constructor(readonly key: string, readonly node: string) {}

  take(row: (name: string) => number): void {
    this.quotaUs = row("quota_us");
    this.memoryBytes = row("memory_usage_bytes");
    this.memoryLimitBytes = row("memory_limit_bytes");
    this.kills = row("oom_kills");
    if (row("periods") === 0 && (row("flags") & IDLE_OR_WALL_CLOCK) === 0) return; // limits and memory only
    this.sumUs += row("used_us");
    this.count += 1;
    this.periods.push([Math.max(1, row("periods")), row("throttled")]);
    if (this.periods.length > THROTTLE_BATCHES) this.periods.shift();
  }

  /** Share of the last ten seconds' periods in which it was throttled. */
  get throttled(): number {
    const elapsed = this.periods.reduce((sum, [periods]) => sum + periods, 0);
    return elapsed === 0 ? 0 : Math.min(1, this.periods.reduce((sum, [, throttled]) => sum + throttled, 0) / elapsed);
  }

  sample(): void {
    if (this.count > 0) this.usedUs = this.sumUs / this.count;
    this.sumUs = this.count = 0;
    push(this.used, this.usedUs);
    push(this.quota, this.quotaUs < 0 ? null : this.quotaUs);
    push(this.memory, this.memoryBytes);
    push(this.memoryLimit, this.memoryLimitBytes < 0 ? null : this.memoryLimitBytes);
  }
}

interface NodePart { incarnation: number; seq: number; heardMs: number; containers: Map<string, Container> }

export class App {
  mode = "";
  policy = "";
  periodUs = 1e5;
  cpuLimitUs = 0;
  cpuHeldUs = 0;
  memoryLimitBytes = 0;
  memoryHeldBytes = 0;
  memoryReservedBytes = 0;
  owner = "";
  readonly nodes = new Map<string, NodePart>();
  readonly times: number[] = [];
  readonly cpu: { used: Series; quota: Series; limit: Series } = { used: [], quota: [], limit: [] };
  readonly memory: { used: Series; quota: Series; limit: Series } = { used: [], quota: [], limit: [] };

  constructor(readonly name: string) {}

  get containers(): Container[] {
    const every = [...this.nodes.values()].flatMap((part) => [...part.containers.values()]);
    return every.sort((one, other) => one.key.localeCompare(other.key, undefined, { numeric: true }));
  }

  find(key: string): Container | undefined {
    for (const part of this.nodes.values()) {
      const found = part.containers.get(key);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  sample(nowMs: number): void {
    for (const [node, part] of this.nodes) if (nowMs - part.heardMs > STALE_MS) this.nodes.delete(node);
    const containers = this.containers;
    for (const container of containers) container.sample();
    const known = containers.length > 0;
    const sum = (value: (container: Container) => number) =>
      known ? containers.reduce((total, container) => total + Math.max(0, value(container)), 0) : null;
    push(this.times, nowMs / 1e3);
    push(this.cpu.used, sum((container) => container.usedUs));
    push(this.cpu.quota, sum((container) => container.quotaUs));
    push(this.cpu.limit, this.cpuLimitUs || null);
    push(this.memory.used, sum((container) => container.memoryBytes));
    push(this.memory.quota, sum((container) => container.memoryLimitBytes));
    push(this.memory.limit, this.memoryLimitBytes || null);
  }
}

function push<T>(series: T[], value: T): void {
  series.push(value);
  if (series.length > HISTORY) series.shift();
}

function sentenceCase(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export type EventKind = "memory" | "container" | "route" | "rules";
export interface Event {
  kind: EventKind; id: string; timeNs: number; what: string; who: string; where: string; text: string; level: "plain" | "good" | "warn" | "bad";
}

export class Model {
  readonly apps = new Map<string, App>();
  readonly networks = new Map<string, NetworkState>();
  readonly rules = new Map<string, Rules>();
  readonly predictions = new Map<string, Prediction>();
  readonly troubles = new Map<string, string>();
  /** Of each node, all that its paths have named so far: a dead one is named by none. */
  readonly uplinks = new Map<string, Set<string>>();
  events: Event[] = [];
  eventCount = 0;
  server = "";
  version = "";
  private readonly announced = new Set<string>();
  private readonly seen = new Set<string>();

  take(message: Message): void {
    switch (message.type) {
      case "turnbuckle.cfs.v1.CfsBatch": return this.observe(message as Table);
      case "turnbuckle.limits.v1.LimitDecisions": return this.decide(message as Table);
      case "turnbuckle.query.v1.StateReply": return this.seed(message.apps as AppState[]);
      case "turnbuckle.network.v1.NetworkStateReply": return this.network(message as unknown as NetworkState);
      case "turnbuckle.network.v1.RulesReply": return void this.rules.set(message.node as string, message as unknown as Rules);
      case "turnbuckle.prediction.v1.Prediction": return this.predict(message as unknown as Prediction);
      case "console.Joined": return this.forget();
      case "console.Entry": return this.entry(message.bucket as string, message.key as string, decode(message.value as Uint8Array));
      case "console.Removed": return this.removed(message.bucket as string, message.key as string);
      case "console.Trouble": return this.trouble(message.about as string, message.text as string);
      case "console.Solved": return void this.troubles.delete(message.about as string);
      case "console.Beat":
        this.server = message.server as string;
        this.version = message.version as string;
        return;
      case "turnbuckle.network.v1.RouteEvent":
        if (Array.isArray(message.before) && Array.isArray(message.after) && message.destination) this.remember(message.node as string, [...message.before, ...message.after]);
        return this.note(describe(message));
      default: this.note(describe(message));
    }
  }

  sample(nowMs: number): void {
    for (const app of this.apps.values()) app.sample(nowMs);
  }

  /** Applications that were announced or have containers, by name. */
  get shown(): App[] {
    const shown = [...this.apps.values()].filter((app) => this.announced.has(app.name) || app.nodes.size > 0);
    return shown.sort((one, other) => one.name.localeCompare(other.name));
  }

  private app(name: string): App {
    const app = this.apps.get(name) ?? new App(name);
    this.apps.set(name, app);
    return app;
  }

  /** What follows is told from the start; charts and events stay. */
  private forget(): void {
    this.announced.clear();
    this.networks.clear();
    this.rules.clear();
    this.troubles.clear();
  }

  private observe(batch: Table): void {
    const { app: name, node, incarnation, report_seq: seq } = batch as unknown as { app: string; node: string; incarnation: number; report_seq: number };
    const app = this.app(name);
    const before = app.nodes.get(node);
    if (before !== undefined && (incarnation < before.incarnation || (incarnation === before.incarnation && seq <= before.seq))) return;
    app.periodUs = batch.period_us as number;
    const containers = new Map<string, Container>();
    batch.keys.forEach((key, row) => {
      const container = before?.containers.get(key) ?? new Container(key, node);
      container.take((column) => batch.columns[column]?.[row] ?? 0);
      containers.set(key, container);
    });
    app.nodes.set(node, { incarnation, seq, heardMs: Date.now(), containers });
  }

  private decide(table: Table): void {
    const app = this.app(table.app as string);
    app.mode = table.mode as string;
    app.policy = table.policy as string;
    app.cpuLimitUs = table.cpu_limit_us as number;
    app.cpuHeldUs = table.cpu_allocated_us as number;
    app.memoryLimitBytes = table.memory_limit_bytes as number;
    app.memoryHeldBytes = table.memory_allocated_bytes as number;
    app.memoryReservedBytes = table.memory_reserved_bytes as number;
    table.keys.forEach((key, row) => {
      const container = app.find(key);
      if (container === undefined) return;
      const value = (name: string) => table.columns[name]?.[row] ?? 0;
      const [resource, prefix] = value("quota_to_us") !== 0 ? (["cpu", "quota"] as const) : (["memory", "limit"] as const);
      container.reason = sentence(resource, value(`${prefix}_reason`), value(`${prefix}_measured`), value(`${prefix}_threshold`));
    });
  }

  private network(state: NetworkState): void {
    this.networks.set(state.node, state);
    this.remember(state.node, state.paths.flatMap((path) => [...path.kernel, ...(path.frr ?? []), ...(path.bfd_up ?? []), ...path.override]));
  }

  private remember(node: string, hops: string[]): void {
    const known = this.uplinks.get(node) ?? new Set();
    for (const hop of hops) known.add(uplink(hop));
    this.uplinks.set(node, known);
  }

  private announce(spec: AppSpec): App {
    const app = this.app(spec.name);
    this.announced.add(spec.name);
    app.mode = spec.mode;
    app.policy = spec.policy;
    app.cpuLimitUs = Math.floor(spec.cpu_limit * 1e5);
    app.memoryLimitBytes = spec.memory_limit;
    return app;
  }

  private seed(states: AppState[]): void {
    for (const state of states) {
      const app = this.announce(state.spec);
      app.cpuHeldUs = state.cpu_committed_us;
      app.memoryHeldBytes = state.memory_committed_bytes;
      app.memoryReservedBytes = state.memory_reserved_bytes;
      app.owner = state.owner || app.owner;
    }
  }

  private entry(bucket: string, key: string, value: Message): void {
    if (bucket === "apps") this.announce(value as unknown as AppSpec);
    if (bucket === "leases" && key.startsWith("app.")) this.app(key.slice(4)).owner = String(value.owner ?? "");
  }

  private removed(bucket: string, key: string): void {
    if (bucket === "apps") this.announced.delete(key);
    if (bucket === "leases" && key.startsWith("app.")) this.app(key.slice(4)).owner = "";
  }

  private trouble(about: string, text: string): void {
    this.troubles.set(about, text);
    if (about.startsWith("network/")) this.networks.delete(about.slice("network/".length));
  }

  private predict(prediction: Prediction): void {
    const known = this.predictions.get(prediction.job);
    if (known === undefined || known.time_ns < prediction.time_ns) this.predictions.set(prediction.job, prediction);
  }

  private note(event: Event | null): void {
    if (event === null || this.seen.has(event.id)) return;
    this.seen.add(event.id);
    const older = this.events.findIndex((other) => other.timeNs <= event.timeNs);
    this.events.splice(older < 0 ? this.events.length : older, 0, event);
    const oldest = this.events.length > MOST_EVENTS ? this.events.pop() : undefined;
    if (oldest !== undefined && this.seen.size > 4 * MOST_EVENTS) this.seen.delete(oldest.id);
    this.eventCount += 1;
  }
}

const MEMORY_LEVEL: Record<string, Event["level"]> = { grant: "good", oom_wait: "warn", grant_denied: "bad", oom_killer_enabled: "bad", kill: "bad" };
const CONTAINER_LEVEL: Record<string, Event["level"]> = { started: "good", rejected: "bad", refused: "bad", drifted: "warn", cpu_refused: "warn" };
const ROUTE_LEVEL: Record<string, Event["level"]> = { disagreement: "bad", override: "warn", agreement: "good", override_removed: "good" };

/** A fact as a line of the feed; null: nothing that is shown there. */
export function describe(message: Message): Event | null {
  const text = (name: string) => String(message[name] ?? "");
  const number = (name: string) => Number(message[name] ?? 0);
  const list = (name: string) => (Array.isArray(message[name]) ? (message[name] as string[]) : []);
  const timeNs = number("time_ns");
  const base = { timeNs, where: [text("app"), text("node")].filter((part) => part !== "").join(" · ") };
  const id = (...parts: (string | number)[]) => [message.type, text("node"), timeNs, ...parts].join("|");
  switch (message.type) {
    case "turnbuckle.oom.v1.OomEvent": {
      const [before, after] = [number("limit_before_bytes"), number("limit_after_bytes")];
      const change = before === after ? `limit ${bytes(after)}` : `limit ${bytes(before)} → ${bytes(after)}`;
      const took = number("latency_us") > 0 ? ` in ${duration(number("latency_us"))}` : "";
      const kind = text("kind");
      return {
        ...base, kind: "memory", id: id(text("container"), kind), what: kind.replaceAll("_", " "), who: shortName(text("container")),
        text: `${change}${took}, usage ${bytes(number("usage_bytes"))}. ${sentenceCase(text("reason"))}`, level: MEMORY_LEVEL[kind] ?? "plain",
      };
    }
    case "turnbuckle.container.v1.ContainerEvent": {
      const change = text("change");
      return {
        ...base, kind: "container", id: id(text("container"), change), what: change.replaceAll("_", " "), who: shortName(text("container")),
        text: text("reason") || text("source"), level: CONTAINER_LEVEL[change] ?? "plain",
      };
    }
    case "turnbuckle.network.v1.RouteEvent": {
      const [before, after] = [list("before"), list("after")];
      const hops = (from: string[]) => from.map(shortHop).join(" ") || "none";
      const change = hops(before) === hops(after) ? "" : `${hops(before)} → ${hops(after)}`;
      const took = text("kind") === "override" && number("latency_us") > 0 ? `In ${duration(number("latency_us"))}` : "";
      const fewer = text("kind") === "route" ? Math.sign(before.length - after.length) : 0;
      return {
        ...base, kind: "route", id: id(number("incarnation"), number("seq")), what: text("kind").replaceAll("_", " "),
        who: text("destination") || text("interface"), text: [change, took, sentenceCase(text("reason"))].filter(Boolean).join(". "),
        level: message.alarm === true || (fewer > 0 && after.length === 0) ? "bad" : fewer > 0 ? "warn" : fewer < 0 ? "good" : ROUTE_LEVEL[text("kind")] ?? "plain",
      };
    }
    case "turnbuckle.network.v1.TcEvent": {
      const operations = (message.operations as unknown[] | undefined)?.length ?? 0;
      const causes = Object.keys((message.causes as object | undefined) ?? {}).join(", ");
      const problem = text("problem");
      return {
        ...base, kind: "rules", id: id(number("incarnation"), number("pass_id"), number("part")), what: operations > 0 ? "rules" : "reconcile",
        who: `${operations} ${operations === 1 ? "write" : "writes"}`,
        text: `${number("installed")} of ${number("desired")} rules in sync, ${duration(number("lag_us"))} after ${causes || "start"}. ${problem}`,
        level: problem ? "bad" : "plain",
      };
    }
    default: return null;
  }
}
