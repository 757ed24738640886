// All containers of all applications in one table.
import { h, setText } from "./dom";
import { count } from "./format";
import type { Model } from "./model";
import { place } from "./place";
import { chosen, ContainerTable } from "./table";

export class ContainersView {
  private readonly table = new ContainerTable("Containers", true);
  private readonly found = h("p", { class: "facts" });
  readonly element = h("div", { class: "view" }, h("section", { class: "card", "aria-label": "Containers" }, h("div", { class: "card-head" }, h("h2", {}, "Containers"), this.found), this.table.element));

  update(model: Model): void {
    const { app } = place();
    const every = app === "" ? model.containers : model.containers.filter((container) => container.app === app);
    const listed = chosen(every);
    setText(this.found, listed.length < every.length ? `${listed.length} of ${count(every.length, "container")} match the search` : count(every.length, "container"));
    this.table.update(listed, model.second);
  }
}
