// The network: hosts, their uplinks and who is behind them; paths in three pairs of eyes; rules.
import { h, s } from "./dom";
import { count, shortHop, uplink } from "./format";
import type { Model } from "./model";
import type { NetworkState, PathState, Rules } from "./types";

const RULES_SHOWN = 50;
const STRANGERS_SHOWN = 8;
const NARROW = matchMedia("(max-width: 640px)");

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

type LinkState = "up" | "idle" | "down" | "overridden";
interface Link { name: string; state: LinkState }

/** A host's uplinks: all that its paths have named so far. One that nothing names any more is down. */
function uplinks(network: NetworkState, known: Iterable<string>): Link[] {
  return [...known].sort().map((name) => {
    const has = (hops: string[] | null) => (hops ?? []).some((hop) => uplink(hop) === name);
    const any = (holds: (path: PathState) => boolean) => network.paths.some(holds);
    if (any((path) => path.override.length > 0 && !has(path.override))) return { name, state: "overridden" };
    const asked = any((path) => path.bfd_up !== null);
    const named = any((path) => has(path.kernel) || has(path.frr) || has(path.bfd_up) || has(path.override));
    if ((asked && !any((path) => has(path.bfd_up))) || (!named && network.paths.length > 0)) return { name, state: "down" };
    return { name, state: any((path) => has(path.override.length > 0 ? path.override : path.kernel)) ? "up" : "idle" };
  });
}

/** How far apart boxes stand: on a phone so that three hosts fit without scrolling. */
function measures(): { apart: number; host: number; plane: number; letters: number; least: number } {
  return NARROW.matches ? { apart: 112, host: 102, plane: 84, letters: 12, least: 334 } : { apart: 190, host: 164, plane: 132, letters: 20, least: 640 };
}

function topology(networks: NetworkState[], known: Model["uplinks"]): SVGElement {
  const { apart, host, plane, letters, least } = measures();
  const own = ownVteps(networks);
  const links = new Map(networks.map((network) => [network.node, uplinks(network, known.get(network.node) ?? [])]));
  const planes = [...new Set([...links.values()].flat().map((link) => link.name))].sort();
  const owned = new Set(own.values());
  const strangers = [...new Set(networks.flatMap((network) => network.vteps))].filter((vtep) => !owned.has(vtep)).sort().slice(0, STRANGERS_SHOWN);
  const boxes = networks.length + strangers.length;
  const width = Math.max(least, boxes * apart, planes.length * apart);
  const [top, bottom] = [30, 190];
  const at = (index: number, of: number) => ((index + 0.5) * width) / Math.max(1, of);
  const [lines, marks, nodes]: [SVGElement[], SVGElement[], SVGElement[]] = [[], [], []];
  const planeX = new Map(planes.map((name, index) => [name, at(index, planes.length)]));
  const title = (text: string) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
  networks.forEach((network, index) => {
    const x = at(index, boxes);
    for (const link of links.get(network.node) ?? []) {
      const to = planeX.get(link.name) ?? x;
      const words = s("title", {}, `${network.node} ${link.name}: ${link.state}`);
      lines.push(s("line", { class: `wire ${link.state}`, x1: x, y1: bottom, x2: to, y2: top }, words));
      if (link.state === "down") marks.push(cross(x + (to - x) * 0.36, bottom - (bottom - top) * 0.36));
    }
    const kind = !network.paths.every((path) => path.agree) ? "troubled" : network.problems.length > 0 ? "warned" : "";
    nodes.push(box(x, bottom, host, title(network.node), own.get(network.node) ?? count(network.macs, "MAC"), `host ${kind}`));
  });
  strangers.forEach((vtep, index) => {
    const x = at(networks.length + index, boxes);
    for (const name of planes) lines.push(s("line", { class: "wire unknown", x1: x, y1: bottom, x2: planeX.get(name) ?? x, y2: top }));
    nodes.push(box(x, bottom, host, title(vtep), "remote VTEP", "host remote"));
  });
  for (const name of planes) nodes.push(box(planeX.get(name) ?? 0, top, plane, title(name), "uplink", "plane"));
  const summary = networks.map((network) => `${network.node}: ${(links.get(network.node) ?? []).map((link) => `${link.name} ${link.state}`).join(", ") || "no uplinks known"}`).join("; ");
  const picture = s("svg", { class: "topology", viewBox: `0 0 ${width} 220`, role: "img", "aria-label": `Topology. ${summary}` }, ...lines, ...marks, ...nodes);
  picture.style.minWidth = `${NARROW.matches ? width * 0.92 : Math.min(width, 520)}px`;
  return picture;
}

/** Not by colour alone. */
function cross(x: number, y: number): SVGElement {
  return s("g", { class: "cross", transform: `translate(${x} ${y})` }, s("circle", { r: 9 }), s("path", { d: "M-3.5 -3.5L3.5 3.5M3.5 -3.5L-3.5 3.5" }));
}

function box(x: number, y: number, width: number, title: string, detail: string, kind: string): SVGElement {
  return s(
    "g", { class: `box ${kind}`, transform: `translate(${x} ${y})` },
    s("rect", { x: -width / 2, y: -27, width, height: 54, rx: 10 }),
    s("text", { y: -3, class: "title" }, title),
    s("text", { y: 15, class: "sub" }, detail),
  );
}

function cells(values: (string | Node)[], tag = "td"): HTMLElement {
  return h("tr", {}, ...values.map((value) => h(tag, tag === "th" ? { scope: "col" } : {}, value)));
}

function table(label: string, columns: string[], rows: HTMLElement[]): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "even" }, h("thead", {}, cells(columns, "th")), h("tbody", {}, ...rows)));
}

function pathsOf(network: NetworkState): HTMLElement {
  const hops = (list: string[] | null) => (list === null ? "?" : list.map(shortHop).join(" ") || "none");
  const overridden = network.paths.some((path) => path.override.length > 0);
  const rows = network.paths.map((path) => {
    const verdict = h("span", { class: `badge ${path.agree ? "good" : "bad"}` }, path.agree ? "agree" : "disagree");
    const override = overridden ? [path.override.length > 0 ? hops(path.override) : ""] : [];
    return cells([path.destination, verdict, hops(path.kernel), hops(path.frr), hops(path.bfd_up), ...override, path.agree ? "" : path.reason]);
  });
  return table(`Paths of ${network.node}`, ["destination", "status", "kernel", "FRR", "BFD up", ...(overridden ? ["fast path"] : []), ""], rows);
}

function rulesOf(rules: Rules): HTMLElement {
  const rows = rules.rules.slice(0, RULES_SHOWN).map((rule) => {
    const place = rule.in_hw === null ? "" : rule.in_hw ? "in hardware" : "in software";
    return cells([rule.device, rule.mac, rule.vtep, rule.vni ? String(rule.vni) : "", place, rule.managed ? rule.note : `unmanaged ${rule.note}`]);
  });
  const more = rules.total > rows.length ? h("p", { class: "note" }, `${rows.length} of ${rules.total}; turnbuckle rules ${rules.node} lists all`) : "";
  return h("div", {}, table(`Rules of ${rules.node}`, ["device", "MAC", "VTEP", "VNI", "where", "note"], rows), more);
}

function factsOf(network: NetworkState): string {
  const rules = network.installed === 0 ? "no rules" : `${count(network.installed, "rule")}, ${network.in_hw} in hardware`;
  const others = network.unmanaged > 0 ? ` · ${count(network.unmanaged, "unmanaged rule")}` : "";
  return `${rules} · ${count(network.macs, "MAC")} behind ${count(network.vteps.length, "VTEP")} · ${count(network.writes, "write")} · offload ${network.offload}${others}`;
}

/** What all hosts have is told once. */
function shared(networks: NetworkState[]): string[] {
  const [first, ...others] = networks;
  return others.length === 0 || first === undefined ? [] : first.problems.filter((problem) => others.every((other) => other.problems.includes(problem)));
}

export class NetworkView {
  readonly element = h("div", { class: "view" });
  private readonly opened = new Set<string>();
  private drawn = "";

  update(model: Model): void {
    const networks = [...model.networks.values()].sort((one, other) => one.node.localeCompare(other.node));
    const lasting = networks.map((network) => ({ ...network, last_reconcile_age_s: 0, full_reconciles: 0 }));
    const troubles = [...model.troubles].filter(([about]) => about.startsWith("network/") || about.startsWith("rules/"));
    const known = [...model.uplinks].map(([node, names]) => [node, ...names]);
    const now = JSON.stringify([lasting, [...model.rules], troubles, known, NARROW.matches]);
    if (now === this.drawn) return; // a reader's focus and selection stay where they are
    this.drawn = now;
    const everywhere = shared(networks);
    const notes = [...everywhere.map((text) => `On every host: ${text}`), ...troubles.map(([, text]) => text)].map((text) => h("p", { class: "trouble" }, text));
    if (networks.length === 0) {
      this.element.replaceChildren(...notes, h(
        "div", { class: "empty" }, h("h2", {}, "No reconciler answers"),
        h("p", {}, "Rules and paths of a host appear here once its reconciler runs: ", h("code", {}, "turnbuckle fabric up host.yaml"), ". Without such a network: ", h("code", {}, "turnbuckle lab up dual-tor --reconciler"), "."),
      ));
      return;
    }
    const legend = h("ul", { class: "legend" }, ...[["up", "in use"], ["idle", "not in use"], ["down", "down"], ["overridden", "taken out by the fast path"]].map(([kind, label]) => h("li", { class: `key wire-${kind}` }, label)));
    const picture = h("section", { class: "card", "aria-label": "Topology" }, h("div", { class: "card-head" }, h("h2", {}, "Topology"), legend), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Topology" }, topology(networks, model.uplinks)));
    this.element.replaceChildren(picture, ...notes, ...networks.map((network) => this.host(network, everywhere, model.rules.get(network.node))));
  }

  private host(network: NetworkState, everywhere: string[], rules: Rules | undefined): HTMLElement {
    const listed = rules === undefined || rules.total === 0 ? "" : this.folded(network.node, count(rules.total, "rule"), rulesOf(rules));
    const own = network.problems.filter((problem) => !everywhere.includes(problem));
    return h(
      "section", { class: "card", "aria-label": `Host ${network.node}`, "data-node": network.node },
      h("div", { class: "card-head" }, h("h2", {}, network.node), h("p", { class: "facts" }, factsOf(network))),
      ...own.map((problem) => h("p", { class: "trouble" }, problem)),
      network.paths.length > 0 ? pathsOf(network) : h("p", { class: "note" }, "No path to another host is known."), listed,
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
