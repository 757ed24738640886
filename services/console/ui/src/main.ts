import "./style.css";
import { setAttribute, setText, h } from "./dom";
import { follow, takeKey, type Link } from "./feed";
import { Model, SAMPLE_MS } from "./model";
import { AppsView } from "./view_apps";
import { EventsView } from "./view_events";
import { JobsView } from "./view_jobs";
import { NetworkView } from "./view_network";

const THEMES = ["auto", "light", "dark"] as const;
const LINKS: Record<Link, string> = {
  connecting: "connecting",
  live: "live",
  "no-bus": "NATS cannot be reached",
  lost: "turnbuckle console has ended, or is out of reach",
  refused: "open the address that turnbuckle console printed: it holds the key",
};

const byId = (id: string) => document.getElementById(id) as HTMLElement;
const model = new Model();
const apps = new AppsView();
const network = new NetworkView();
const jobs = new JobsView();
const events = new EventsView();
const trouble = h("p", { class: "trouble", hidden: true });
const views = { applications: apps.element, network: network.element, jobs: jobs.element, events: h("div", { class: "view" }) };
type View = keyof typeof views;
const LABELS: Record<View, string> = { applications: "Applications", network: "Network", jobs: "Jobs", events: "Events" };
const names = Object.keys(views) as View[];
let shown: View = "applications";

function show(view: View, focus = false): void {
  shown = view;
  for (const name of names) {
    const tab = byId(`tab-${name}`);
    setAttribute(tab, "aria-selected", String(name === view));
    setAttribute(tab, "tabindex", name === view ? "0" : "-1");
    if (name === view && focus) tab.focus();
  }
  document.body.dataset.view = view;
  setAttribute(byId("panel"), "aria-labelledby", `tab-${view}`);
  byId("panel").replaceChildren(trouble, views[view]);
  events.about(view === "network" ? ["route", "rules"] : null);
  if (view !== "events") byId("feed").append(events.element);
  else views.events.append(events.element);
  draw();
}

function makeTabs(): void {
  const tabs = names.map((name) =>
    h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "aria-selected": "false", click: () => { location.hash = name; } }, LABELS[name]));
  byId("tabs").replaceChildren(...tabs);
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? names.length - 1 : step === undefined ? -1 : (names.indexOf(shown) + step + names.length) % names.length;
    if (to < 0) return;
    event.preventDefault();
    history.replaceState(null, "", `#${names[to]}`);
    show(names[to]!, true);
  });
  addEventListener("hashchange", () => show(fromHash()));
}

function fromHash(): View {
  const name = location.hash.slice(1) as View;
  return names.includes(name) ? name : "applications";
}

function setTheme(theme: string): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const label = theme === "auto" ? "as the system has them" : theme;
  setText(byId("theme"), theme[0]!.toUpperCase() + theme.slice(1));
  setAttribute(byId("theme"), "aria-label", `Colours: ${label}`);
  setAttribute(byId("theme"), "title", `Colours: ${label}`);
  localStorage.setItem("theme", theme);
  apps.restyle();
}

function startTheme(): void {
  const kept = localStorage.getItem("theme") ?? "auto";
  let at = Math.max(0, THEMES.findIndex((theme) => theme === kept));
  setTheme(THEMES[at]!);
  byId("theme").addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    setTheme(THEMES[at]!);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apps.restyle());
}

function onLink(link: Link): void {
  document.body.dataset.link = link;
  const text = LINKS[link];
  setText(byId("link"), text);
  setText(byId("server"), link === "live" ? model.server : "");
  setAttribute(byId("link"), "class", `link ${link}`);
  setAttribute(byId("link"), "title", link === "live" ? `turnbuckle ${model.version}, bus at ${model.server}` : text);
}

function draw(): void {
  if (document.hidden) return;
  const text = model.troubles.get("allocator") ?? "";
  setText(trouble, text);
  trouble.hidden = text === "" || shown === "jobs" || shown === "network";
  if (shown === "applications") apps.update(model);
  if (shown === "network") network.update(model, Date.now());
  if (shown === "jobs") jobs.update(model);
  events.update(model);
}

const key = takeKey();
makeTabs();
startTheme();
show(fromHash());
setInterval(() => {
  // What is not heard is not known: the last that was stays, dimmed.
  if (document.body.dataset.link === "live") model.sample(Date.now());
  requestAnimationFrame(draw);
}, SAMPLE_MS);
void follow(key, (message) => {
  try {
    model.take(message);
  } catch {
    // A message whose fields are not what they should be: anyone may publish anything.
  }
}, onLink);
