// Containers as a table.
import { Spark } from "./charts";
import { h, setAttribute, setText } from "./dom";
import { bytes, cores, percent } from "./format";
import { TREND_S, type Container } from "./model";
import { containerHash, go, hashOf, place, type Sort } from "./place";
import { RowsInSight } from "./rows_in_sight";

const HOT = 0.1;

const VALUES: Record<Exclude<Sort, "name">, (container: Container) => number> = {
  cpu: (container) => container.usedUs,
  memory: (container) => container.memoryBytes,
  throttled: (container) => container.throttled,
};

/** Those that a search finds, each of its words anywhere in application, name or node; in the order that was chosen. */
export function chosen(containers: Container[]): Container[] {
  const { search, sort, descending } = place();
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length === 0 ? [...containers] : containers.filter((container) => words.every((word) => container.text.includes(word)));
  if (sort === "name") return descending ? found.reverse() : found;
  const value = VALUES[sort];
  return found.sort((one, other) => (descending ? value(other) - value(one) : value(one) - value(other)));
}

class ContainerRow {
  readonly element: HTMLElement;
  private container: Container | null = null;
  private second = -1;
  private readonly link = h("a", { class: "link-button" });
  private readonly app = h("a", { class: "link-button" });
  private readonly node = h("td", { class: "node" });
  private readonly spark = new Spark();
  private readonly cpu = h("td", { class: "number" });
  private readonly throttled = h("td", { class: "number" });
  private readonly memory = h("td", { class: "number" });
  private readonly bar = h("progress", { max: 1, value: 0, "aria-label": "memory used of its limit" });
  private readonly reason = h("td", { class: "reason" });

  constructor(withApp: boolean) {
    this.element = h("tr", {}, h("th", { scope: "row" }, this.link), withApp && h("td", { class: "app" }, this.app), this.node, h("td", { class: "trend" }, this.spark.element), this.cpu, this.throttled, this.memory, h("td", { class: "bar" }, this.bar), this.reason);
  }

  update(container: Container, second: number): void {
    if (this.container === container && this.second === second) return;
    if (this.container !== container) this.name(container);
    this.second = second;
    this.spark.update(container.trend[0], container.trend[1], second % TREND_S);
    setText(this.cpu, `${cores(container.usedUs, container.periodUs)} / ${cores(container.quotaUs, container.periodUs)}`);
    setText(this.throttled, percent(container.throttled));
    setAttribute(this.throttled, "class", container.throttled > HOT ? "number hot" : "number");
    setText(this.memory, `${bytes(container.memoryBytes)} / ${bytes(container.memoryLimitBytes)}`);
    const share = container.memoryLimitBytes > 0 ? Math.min(1, container.memoryBytes / container.memoryLimitBytes) : 0;
    setAttribute(this.bar, "value", share.toFixed(3));
    const reason = [container.kills > 0 && `${container.kills} OOM killed`, container.reason].filter(Boolean).join("; ");
    setText(this.reason, reason);
    setAttribute(this.reason, "title", reason);
  }

  private name(container: Container): void {
    this.container = container;
    setText(this.link, container.name);
    setAttribute(this.link, "title", container.key);
    setAttribute(this.link, "href", containerHash(container.app, container.node, container.key));
    setText(this.app, container.app);
    setAttribute(this.app, "href", hashOf({ ...place(), view: "applications", app: container.app, search: "" }));
    setText(this.node, container.node);
    setAttribute(this.node, "title", container.node);
  }
}

export class ContainerTable {
  readonly element: HTMLElement;
  private readonly heads = new Map<Sort, HTMLElement>();
  private readonly rows: RowsInSight<Container>;

  constructor(label: string, withApp: boolean) {
    const columns: [string, string, Sort?][] = [["container", "name", "name"], ["application", "app"], ["node", "node"], ["CPU, last minute", "trend"], ["CPU used / limit", "number cpu", "cpu"], ["throttled", "number throttled", "throttled"], ["memory used / limit", "number memory", "memory"], ["", "bar"], ["last change", "reason"]];
    const heads = columns.filter(([, name]) => withApp || name !== "app").map(([text, name, sort]) => this.head(text, name, sort));
    this.rows = new RowsInSight(label, "", heads, () => new ContainerRow(withApp));
    this.element = this.rows.element;
  }

  destroy(): void {
    this.rows.destroy();
  }

  /** `second` counts the seconds that were heard. */
  update(listed: Container[], second: number): void {
    const { sort, descending } = place();
    for (const [name, head] of this.heads) setAttribute(head, "aria-sort", name !== sort ? "none" : descending ? "descending" : "ascending");
    this.rows.update(listed, second);
  }

  private head(text: string, name: string, sort?: Sort): HTMLElement {
    if (sort === undefined) return h("th", { scope: "col", class: name }, text);
    const choose = () => go({ sort, descending: place().sort === sort ? !place().descending : sort !== "name" });
    const head = h("th", { scope: "col", class: name, "aria-sort": "none" }, h("button", { type: "button", class: "sort", click: choose }, text));
    this.heads.set(sort, head);
    return head;
  }
}
