// What is known, folded from the stream: once a second the console tells of every application and container.
import { floats, type Message } from "./decode";
import { bytes, duration, shortHop, shortName, uplink } from "./format";
import { Past } from "./past";
import type { NetworkState, Prediction, Rules, Training } from "./types";

export const TREND_S = 60;
const MOST_EVENTS = 800;
const ROW_COLUMNS = 6;
// Columns of applications' and containers' histories; applications have their two limits besides.
export const [USED, QUOTA, THROTTLED, MEMORY, MEMORY_LIMIT] = [0, 1, 2, 3, 4];
const OOM_KILLS = 5;
export const [APP_CPU_LIMIT, APP_MEMORY_LIMIT] = [5, 6];
const APP_WIDTH = 7;
const CONTAINER_WIDTH = 5;
const NAMES = new Intl.Collator(undefined, { numeric: true });

/** Containers of one application on one node, column by column. */
interface Group { app: string; node: string; text: string; periodUs: number; values: Float32Array; containers: Container[]; reasonText: string; reasons: string[] | null }

export class Container {
  readonly name: string;
  /** What a search looks at. */
  readonly text: string;
  /** Used and quota of the last minute's seconds, round and round; NaN: unknown. */
  readonly trend: [Float32Array, Float32Array] = [new Float32Array(TREND_S).fill(NaN), new Float32Array(TREND_S).fill(NaN)];

  constructor(readonly key: string, private group: Group, private row: number) {
    this.name = shortName(key);
    this.text = `${group.app} ${key} ${group.node}`.toLowerCase();
  }

  get app(): string { return this.group.app; }
  get node(): string { return this.group.node; }
  get periodUs(): number { return this.group.periodUs; }
  get usedUs(): number { return this.value(USED); }
  get quotaUs(): number { return this.value(QUOTA); }
  get throttled(): number { return this.value(THROTTLED); }
  get memoryBytes(): number { return this.value(MEMORY); }
  get memoryLimitBytes(): number { return this.value(MEMORY_LIMIT); }
  get kills(): number { return this.value(OOM_KILLS); }

  get reason(): string {
    this.group.reasons ??= this.group.reasonText.split("\n");
    return this.group.reasons[this.row] ?? "";
  }

  moveTo(group: Group, row: number): void {
    this.group = group;
    this.row = row;
  }

  /** As the charts show it: no limit is no line. */
  get now(): (number | null)[] {
    return Array.from({ length: CONTAINER_WIDTH }, (_, column) => (this.value(column) < 0 ? null : this.value(column)));
  }

  private value(column: number): number {
    return this.group.values[column * this.group.containers.length + this.row] ?? 0;
  }
}

export class App {
  mode = "";
  policy = "";
  owner = "";
  announced = false;
  cpuLimitUs = 0;
  cpuHeldUs = 0;
  memoryLimitBytes = 0;
  memoryHeldBytes = 0;
  memoryReservedBytes = 0;
  hosts = 0;
  /** By name. */
  containers: Container[] = [];
  /** This second's sums, as in a history; null: nothing was heard. */
  now: (number | null)[] | null = null;
  readonly past: Past;

  constructor(readonly name: string) {
    this.past = new Past({ app: name }, APP_WIDTH);
  }
}

function sentenceCase(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export type EventKind = "memory" | "container" | "route" | "rules";
export interface Event {
  kind: EventKind; id: string; timeNs: number; what: string; who: string; where: string; text: string; app: string; node: string; container: string; level: "plain" | "good" | "warn" | "bad";
}

export class Model {
  readonly networks = new Map<string, NetworkState>();
  readonly rules = new Map<string, Rules>();
  readonly predictions = new Map<string, Prediction>();
  /** By job and node, and whether there were steps in this second. */
  readonly trainings = new Map<string, { now: Training; fresh: boolean }>();
  readonly troubles = new Map<string, string>();
  /** Of each node, all that its paths have named so far: a dead one is named by none. */
  readonly uplinks = new Map<string, Set<string>>();
  events: Event[] = [];
  eventCount = 0;
  server = "";
  version = "";
  /** Of the newest second, since the epoch. */
  timeS = 0;
  /** Seconds that were heard: the place in every trend. */
  second = 0;
  /** How often the stream was found. */
  join = 0;
  private readonly apps = new Map<string, App>();
  private readonly groups = new Map<string, Group>();
  private everyone: Container[] | null = null;
  private retold: Set<string> | null = null;
  private readonly seen = new Set<string>();

  take(message: Message): void {
    switch (message.type) {
      case "console.Rows": return this.rows(message);
      case "console.Reasons": return this.reasons(message);
      case "console.App": return this.application(message);
      case "console.Gone": return this.gone(message.app as string, message.node as string);
      case "console.Tick": return this.tick(message.time_s as number, message.apps as Record<string, number[]>);
      case "console.Trends": return this.trends(message.groups as Message[]);
      case "console.Training": return this.training(message as unknown as Training);
      case "console.TrainingGone": return void this.trainings.delete(groupId(message.job as string, message.node as string));
      case "turnbuckle.network.v1.NetworkStateReply": return this.network(message as unknown as NetworkState);
      case "turnbuckle.network.v1.RulesReply": return void this.rules.set(message.node as string, message as unknown as Rules);
      case "turnbuckle.prediction.v1.Prediction": return this.predict(message as unknown as Prediction);
      case "console.Joined": return this.joined();
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

  /** Applications that were announced or have containers, by name. */
  get shown(): App[] {
    this.sortOut();
    const shown = [...this.apps.values()].filter((app) => app.announced || app.containers.length > 0);
    return shown.sort((one, other) => NAMES.compare(one.name, other.name));
  }

  /** All of them, by application and name. */
  get containers(): Container[] {
    return this.sortOut();
  }

  find(app: string, node: string, key: string): Container | undefined {
    return this.groups.get(groupId(app, node))?.containers.find((container) => container.key === key);
  }

  /** Who belongs to which application: anew where containers have come or gone. */
  private sortOut(): Container[] {
    if (this.everyone !== null) return this.everyone;
    this.everyone = [...this.groups.values()].flatMap((group) => group.containers);
    this.everyone.sort((one, other) => NAMES.compare(one.app, other.app) || NAMES.compare(one.key, other.key) || NAMES.compare(one.node, other.node));
    for (const app of this.apps.values()) [app.containers, app.hosts] = [[], 0];
    for (const container of this.everyone) this.app(container.app).containers.push(container);
    for (const group of this.groups.values()) this.app(group.app).hosts += 1;
    return this.everyone;
  }

  private app(name: string): App {
    const app = this.apps.get(name) ?? new App(name);
    this.apps.set(name, app);
    return app;
  }

  /** What follows is told from the start; what is not told again by the next second has gone. */
  private joined(): void {
    this.join += 1;
    this.retold = new Set();
    this.networks.clear();
    this.rules.clear();
    this.trainings.clear();
    this.troubles.clear();
  }

  private rows(message: Message): void {
    const [app, node, text] = [message.app as string, message.node as string, message.containers as string];
    const keys = text === "" ? [] : text.split("\n");
    const values = floats(message.values, ROW_COLUMNS, keys.length);
    const id = groupId(app, node);
    this.retold?.add(id);
    const before = this.groups.get(id);
    if (before !== undefined && before.text === text) {
      before.values = values;
      before.periodUs = message.period_us as number;
      return;
    }
    const group: Group = { app, node, text, periodUs: message.period_us as number, values, containers: [], reasonText: before?.reasonText ?? "", reasons: null };
    const known = new Map(before?.containers.map((container) => [container.key, container]));
    group.containers = keys.map((key, row) => {
      const container = known.get(key) ?? new Container(key, group, row);
      container.moveTo(group, row);
      return container;
    });
    this.groups.set(id, group);
    this.everyone = null;
  }

  private reasons(message: Message): void {
    const group = this.groups.get(groupId(message.app as string, message.node as string));
    if (group !== undefined) [group.reasonText, group.reasons] = [message.reasons as string, null];
  }

  private application(message: Message): void {
    const app = this.app(message.app as string);
    this.retold?.add(app.name);
    [app.mode, app.policy, app.owner] = [message.mode as string, message.policy as string, message.owner as string];
    app.announced = message.announced === true;
    [app.cpuLimitUs, app.cpuHeldUs] = [message.cpu_limit_us as number, message.cpu_held_us as number];
    [app.memoryLimitBytes, app.memoryHeldBytes] = [message.memory_limit_bytes as number, message.memory_held_bytes as number];
    app.memoryReservedBytes = message.memory_reserved_bytes as number;
  }

  private gone(app: string, node: string): void {
    if (node === "") this.apps.delete(app);
    else this.groups.delete(groupId(app, node));
    this.everyone = null;
  }

  private tick(timeS: number, apps: Record<string, number[]>): void {
    if (this.retold !== null) this.forget(this.retold);
    this.retold = null;
    this.timeS = timeS;
    this.second += 1;
    const at = this.second % TREND_S;
    for (const group of this.groups.values()) {
      const count = group.containers.length;
      for (let row = 0; row < count; row += 1) {
        const [used, quota] = group.containers[row]!.trend;
        used[at] = group.values[USED * count + row]!;
        quota[at] = group.values[QUOTA * count + row]!;
      }
    }
    for (const app of this.apps.values()) {
      const sums = apps[app.name];
      app.now = sums === undefined ? null : [...sums, app.cpuLimitUs || null, app.memoryLimitBytes || null];
    }
  }

  private forget(retold: Set<string>): void {
    for (const id of this.groups.keys()) if (!retold.has(id)) this.groups.delete(id);
    for (const name of this.apps.keys()) if (!retold.has(name)) this.apps.delete(name);
    this.everyone = null;
  }

  /** The last minute, as it was before this page opened. */
  private trends(groups: Message[]): void {
    for (const told of groups) {
      const group = this.groups.get(groupId(told.app as string, told.node as string));
      if (group === undefined || group.text !== told.containers) continue;
      const count = group.containers.length;
      const values = floats(told.values, 2 * TREND_S, count);
      group.containers.forEach((container, row) => container.trend.forEach((ring, column) => {
        for (let ago = 0; ago < TREND_S; ago += 1) ring[(this.second + TREND_S - ago) % TREND_S] = values[(column * TREND_S + TREND_S - 1 - ago) * count + row]!;
      }));
    }
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

  private trouble(about: string, text: string): void {
    this.troubles.set(about, text);
    if (about.startsWith("network/")) this.networks.delete(about.slice("network/".length));
  }

  private training(now: Training): void {
    const id = groupId(now.job, now.node);
    this.trainings.set(id, { now, fresh: now.step !== this.trainings.get(id)?.now.step });
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

function groupId(app: string, node: string): string {
  return `${app}\n${node}`;
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
  const where = [text("app"), text("node")].filter((part) => part !== "").join(" · ");
  const base = { timeNs, where, app: text("app"), node: text("node"), container: text("container") };
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
