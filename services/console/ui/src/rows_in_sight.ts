// A table of any number of rows, of which only those in sight are elements.
import { h, setAttribute } from "./dom";

const ROW_PX = 37; // as in style.css
const BEYOND = 4; // rows above and below those in sight

export interface Row<Item> {
  readonly element: HTMLElement;
  /** `version`: with the same one nothing of an item is other than it was. */
  update(item: Item, version: number): void;
}

export class RowsInSight<Item> {
  readonly element: HTMLElement;
  private readonly sized = h("div", { class: "sized" });
  private readonly table: HTMLElement;
  private readonly body = h("tbody");
  private readonly rows: Row<Item>[] = [];
  private readonly size: ResizeObserver;
  private height = 0;
  private listed: Item[] = [];
  private version = 0;

  constructor(label: string, name: string, heads: HTMLElement[], private readonly make: () => Row<Item>) {
    this.table = h("table", { class: `containers ${name}` }, h("thead", {}, h("tr", { "aria-rowindex": 1 }, ...heads)), this.body);
    this.sized.append(this.table);
    this.element = h("div", { class: "scroll rows", tabindex: 0, role: "region", "aria-label": label }, this.sized);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.size = new ResizeObserver(([entry]) => {
      const height = entry?.contentRect.height ?? 0;
      if (height === this.height) return;
      this.height = height;
      this.draw();
    });
    this.size.observe(this.element);
  }

  destroy(): void {
    this.size.disconnect();
  }

  update(listed: Item[], version: number): void {
    this.listed = listed;
    this.version = version;
    setAttribute(this.table, "aria-rowcount", String(listed.length + 1));
    this.draw();
  }

  private draw(): void {
    const count = this.listed.length;
    const first = Math.max(0, Math.min(Math.floor(this.element.scrollTop / ROW_PX), count) - BEYOND);
    const after = Math.min(count, first + Math.ceil(this.height / ROW_PX) + 2 * BEYOND + 1);
    while (this.rows.length > after - first) this.rows.pop()!.element.remove();
    while (this.rows.length < after - first) {
      const row = this.make();
      this.rows.push(row);
      this.body.append(row.element);
    }
    // Room for the rows that are no elements. By the object model: a style attribute would need 'unsafe-inline'.
    const [above, below] = [`${first * ROW_PX}px`, `${(count - after) * ROW_PX}px`];
    if (this.sized.style.paddingTop !== above) this.sized.style.paddingTop = above;
    if (this.sized.style.paddingBottom !== below) this.sized.style.paddingBottom = below;
    this.rows.forEach((row, at) => {
      setAttribute(row.element, "aria-rowindex", String(first + at + 2));
      row.update(this.listed[first + at]!, this.version);
    });
  }
}
