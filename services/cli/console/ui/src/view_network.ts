// The network: hosts, their uplinks and who is behind them; paths in three pairs of eyes; rules.
import { h, s } from "./dom";
import type { Model } from "./model";
import type { NetworkState, PathState, Rules } from "./types";

const REDRAW_MS = 1_000;
const RULES_SHOWN = 50;

/** Next hops come as ``interface`` or ``gateway@interface``. */
function uplink(hop: string): string {
  return hop.slice(hop.lastIndexOf("@") + 1);
}

function shortHop(hop: string): string {
  return hop.replace(/^169\.254\.0\.1@/, ""); // FRR's gateway of every unnumbered link
}

/** A host's own VTEP is the one that every other host names and it does not. */
function ownVteps(networks: NetworkState[]): Map<string, string> {
  const own = new Map<string, string>();
  if (networks.length < 2) return own;
  const every = [...new Set(networks.flatMap((network) => network.vteps))];
  for (const network of networks) {
    const others = networks.filter((other) => other !== network);
    const candidates = every.filter((vtep) => !network.vteps.includes(vtep) && others.every((other) => other.vteps.includes(vtep)));
    if (candidates.length === 1) own.set(network.node, candidates[0]!);
  }
  return own;
}

interface LinkState { name: string; used: boolean; up: boolean; known: boolean; overridden: boolean }

/** A host's uplinks, from all that its paths name. */
function uplinks(network: NetworkState): LinkState[] {
  const names = new Set<string>();
  for (const path of network.paths) for (const hop of [...path.kernel, ...(path.frr ?? []), ...(path.bfd_up ?? []), ...path.override]) names.add(uplink(hop));
  return [...names].sort().map((name) => {
    const has = (hops: string[] | null) => (hops ?? []).some((hop) => uplink(hop) === name);
    return {
      name,
      used: network.paths.some((path) => has(path.override.length > 0 ? path.override : path.kernel)),
      up: network.paths.some((path) => has(path.bfd_up)),
      known: network.paths.some((path) => path.bfd_up !== null),
      overridden: network.paths.some((path) => path.override.length > 0 && !has(path.override)),
    };
  });
}

function linkClass(link: LinkState): string {
  if (link.overridden) return "overridden";
  if (link.known && !link.up) return "down";
  return link.used ? "up" : "idle";
}

function topology(networks: NetworkState[]): SVGElement {
  const own = ownVteps(networks);
  const links = new Map(networks.map((network) => [network.node, uplinks(network)]));
  const planes = [...new Set([...links.values()].flat().map((link) => link.name))].sort();
  const owned = new Set(own.values());
  const strangers = [...new Set(networks.flatMap((network) => network.vteps))].filter((vtep) => !owned.has(vtep)).sort().slice(0, 8);
  const boxes = networks.length + strangers.length;
  const width = Math.max(640, boxes * 190, planes.length * 190);
  const [top, bottom] = [46, 208];
  const at = (index: number, count: number) => ((index + 0.5) * width) / Math.max(1, count);
  const lines: SVGElement[] = [];
  const nodes: SVGElement[] = [];
  const planeX = new Map(planes.map((plane, index) => [plane, at(index, planes.length)]));
  networks.forEach((network, index) => {
    const x = at(index, boxes);
    for (const link of links.get(network.node) ?? []) {
      const title = s("title", {}, `${network.node} ${link.name}: ${linkClass(link)}`);
      lines.push(s("line", { class: `wire ${linkClass(link)}`, x1: x, y1: bottom - 30, x2: planeX.get(link.name) ?? x, y2: top + 22 }, title));
    }
    const healthy = network.problems.length === 0 && network.paths.every((path) => path.agree);
    nodes.push(box(x, bottom, 164, network.node, own.get(network.node) ?? `${network.macs} MACs`, healthy ? "host" : "host troubled"));
  });
  strangers.forEach((vtep, index) => {
    const x = at(networks.length + index, boxes);
    for (const plane of planes) lines.push(s("line", { class: "wire unknown", x1: x, y1: bottom - 30, x2: planeX.get(plane) ?? x, y2: top + 22 }));
    nodes.push(box(x, bottom, 150, vtep, "remote VTEP", "host remote"));
  });
  for (const plane of planes) nodes.push(box(planeX.get(plane) ?? 0, top, 132, plane, "uplink", "plane"));
  const summary = networks.map((network) => `${network.node}: ${(links.get(network.node) ?? []).map((link) => `${link.name} ${linkClass(link)}`).join(", ") || "no uplinks known"}`).join("; ");
  return s("svg", { class: "topology", viewBox: `0 0 ${width} 252`, role: "img", "aria-label": `Topology. ${summary}` }, ...lines, ...nodes);
}

function box(x: number, y: number, width: number, title: string, detail: string, kind: string): SVGElement {
  return s(
    "g", { class: `box ${kind}`, transform: `translate(${x} ${y})` },
    s("rect", { x: -width / 2, y: -28, width, height: 54, rx: 10 }),
    s("text", { y: -4, class: "title" }, title.length > 20 ? `${title.slice(0, 19)}…` : title),
    s("text", { y: 14, class: "sub" }, detail),
  );
}

function cells(values: (string | Node)[], tag = "td"): HTMLElement {
  return h("tr", {}, ...values.map((value) => h(tag, tag === "th" ? { scope: "col" } : {}, value)));
}

function table(label: string, columns: string[], rows: HTMLElement[]): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, h("thead", {}, cells(columns, "th")), h("tbody", {}, ...rows)));
}

function pathRow(path: PathState): HTMLElement {
  const hops = (list: string[] | null) => (list === null ? "?" : list.map(shortHop).join(" ") || "none");
  const verdict = h("span", { class: `badge ${path.agree ? "good" : "bad"}` }, path.agree ? "agree" : "disagree");
  return cells([path.destination, hops(path.kernel), hops(path.frr), hops(path.bfd_up), path.override.length > 0 ? hops(path.override) : "", verdict, path.agree ? "" : path.reason]);
}

function rulesOf(rules: Rules): HTMLElement {
  const rows = rules.rules.slice(0, RULES_SHOWN).map((rule) => {
    const place = rule.in_hw === null ? "" : rule.in_hw ? "in hardware" : "in software";
    return cells([rule.device, rule.mac, rule.vtep, rule.vni ? String(rule.vni) : "", place, rule.ours ? rule.note : `of others ${rule.note}`]);
  });
  const more = rules.total > rows.length ? h("p", { class: "note" }, `${rows.length} of ${rules.total}; turnbuckle rules ${rules.node} lists all`) : "";
  return h("div", {}, table(`Rules of ${rules.node}`, ["device", "MAC", "VTEP", "VNI", "where", "note"], rows), more);
}

export class NetworkView {
  readonly element = h("div", { class: "view" });
  private readonly opened = new Set<string>();
  private drawnMs = 0;
  private drawn = "";

  update(model: Model, nowMs: number): void {
    if (nowMs - this.drawnMs < REDRAW_MS) return;
    this.drawnMs = nowMs;
    const networks = [...model.networks.values()].sort((one, other) => one.node.localeCompare(other.node));
    const ageless = networks.map((network) => ({ ...network, last_pass_age_s: Math.round(network.last_pass_age_s / 5) }));
    const troubles = [...model.troubles].filter(([about]) => about.startsWith("network/") || about.startsWith("rules/"));
    const now = JSON.stringify([ageless, [...model.rules], troubles]);
    if (now === this.drawn) return; // a reader's focus and selection stay where they are
    this.drawn = now;
    const notes = troubles.map(([, text]) => h("p", { class: "trouble" }, text));
    if (networks.length === 0) {
      this.element.replaceChildren(...notes, h(
        "div", { class: "empty" }, h("h2", {}, "No reconciler answers"),
        h("p", {}, "Rules and paths of a host appear here once its reconciler runs: ", h("code", {}, "turnbuckle fabric up host.yaml"), "."),
      ));
      return;
    }
    const legend = h("ul", { class: "legend" }, ...[["up", "in use"], ["idle", "not in use"], ["down", "BFD down"], ["overridden", "taken out by the fast path"]].map(([kind, label]) => h("li", { class: `key wire-${kind}` }, label)));
    const picture = h("section", { class: "card", "aria-label": "Topology" }, h("div", { class: "card-head" }, h("h2", {}, "Topology"), legend), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Topology" }, topology(networks)));
    this.element.replaceChildren(picture, ...notes, ...networks.map((network) => this.host(network, model.rules.get(network.node))));
  }

  private host(network: NetworkState, rules: Rules | undefined): HTMLElement {
    const facts = `${network.installed} rules (${network.in_hw} in hardware, ${network.not_in_hw} not; offload ${network.offload}) · ${network.macs} MACs behind ${network.vteps.length} VTEPs · ${network.writes} writes in ${network.passes} passes · ${network.foreign} rules of others`;
    const paths = table(`Paths of ${network.node}`, ["destination", "kernel", "FRR", "BFD up", "override", "", ""], network.paths.map(pathRow));
    const listed = rules === undefined || rules.total === 0 ? "" : this.folded(network.node, `${rules.total} rules`, rulesOf(rules));
    return h(
      "section", { class: "card", "aria-label": `Host ${network.node}`, "data-node": network.node },
      h("div", { class: "card-head" }, h("h2", {}, network.node), h("p", { class: "facts" }, facts)),
      ...network.problems.map((problem) => h("p", { class: "trouble" }, problem)),
      network.paths.length > 0 ? paths : h("p", { class: "note" }, "No path to another host is known."), listed,
    );
  }

  /** Stays open when the view is drawn anew. */
  private folded(node: string, title: string, content: HTMLElement): HTMLElement {
    const toggled = (event: Event) => {
      if ((event.currentTarget as HTMLDetailsElement).open) this.opened.add(node);
      else this.opened.delete(node);
    };
    return h("details", { open: this.opened.has(node), toggle: toggled }, h("summary", {}, title), content);
  }
}
