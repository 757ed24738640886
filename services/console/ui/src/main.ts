import "./style.css";
import { setAttribute, setText, h } from "./dom";
import { ask, follow, logIn, takeKey, type Link } from "./feed";
import { loginForm } from "./login";
import { Model } from "./model";
import { go, onPlace, place, type View } from "./place";
import { Toolbar } from "./toolbar";
import { AppsView } from "./view_apps";
import { ContainerView } from "./view_container";
import { ContainersView } from "./view_containers";
import { EventsView } from "./view_events";
import { JobsView } from "./view_jobs";
import { NetworkView } from "./view_network";
import { PredictionsView } from "./view_predictions";
import { TrainingsView } from "./view_trainings";

const THEMES = ["auto", "light", "dark"] as const;
const LINKS: Record<Link, string> = {
  connecting: "connecting",
  live: "live",
  "no-bus": "NATS cannot be reached",
  lost: "turnbuckle console has ended, or is out of reach",
  full: "too many pages are open",
  refused: "open the address that turnbuckle console printed, or give the key",
};

const byId = (id: string) => document.getElementById(id) as HTMLElement;
const model = new Model();
const apps = new AppsView(redraw);
const containers = new ContainersView();
const container = new ContainerView();
const network = new NetworkView();
const jobs = new JobsView(redraw);
const predictions = new PredictionsView();
const trainings = new TrainingsView();
const events = new EventsView();
const toolbar = new Toolbar();
const login = loginForm();
const trouble = h("p", { class: "trouble", hidden: true });
const views: Record<View, HTMLElement> = { applications: apps.element, containers: containers.element, container: container.element, network: network.element, jobs: jobs.element, trainings: trainings.element, predictions: predictions.element, events: h("div", { class: "view" }) };
const TABS = { applications: "Applications", containers: "Containers", network: "Network", jobs: "Jobs", trainings: "Training", predictions: "Predictions", events: "Events" } as const;
type Tab = keyof typeof TABS;
const names = Object.keys(TABS) as Tab[];
let shown: View | null = null;
let refused = false;
let drawing = false;

function show(): void {
  const { view } = place();
  if (view !== shown) {
    shown = view;
    for (const name of names) {
      const chosen = name === view || (view === "container" && name === "containers");
      setAttribute(byId(`tab-${name}`), "aria-selected", String(chosen));
      setAttribute(byId(`tab-${name}`), "tabindex", chosen ? "0" : "-1");
    }
    document.body.dataset.view = view;
    setAttribute(byId("panel"), "aria-labelledby", `tab-${view === "container" ? "containers" : view}`);
    byId("panel").replaceChildren(trouble, toolbar.element, refused ? login : views[view]);
    events.about(view === "network" ? ["route", "rules"] : null);
    (view === "events" ? views.events : byId("feed")).append(events.element);
  }
  draw();
}

function makeTabs(): void {
  const open = (name: Tab) => go({ view: name, app: "", node: "", container: "" });
  const tabs = names.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "aria-selected": "false", hidden: name === "trainings", click: () => open(name) }, TABS[name]));
  byId("tabs").replaceChildren(...tabs);
  byId("tabs").addEventListener("keydown", (event) => {
    const there = names.filter((name) => !byId(`tab-${name}`).hidden);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = there.indexOf(place().view === "container" ? "containers" : (place().view as Tab));
    const to = event.key === "Home" ? 0 : event.key === "End" ? there.length - 1 : step === undefined ? -1 : (at + step + there.length) % there.length;
    if (to < 0) return;
    event.preventDefault();
    open(there[to]!);
    byId(`tab-${there[to]}`).focus();
  });
  addEventListener("hashchange", () => {
    const key = takeKey(); // an address with a key, opened where a page is already
    if (key !== "") void logIn(key);
  });
  onPlace(show);
}

function restyle(): void {
  for (const view of [apps, container, jobs, trainings]) view.restyle();
  redraw();
}

function setTheme(theme: string): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const label = theme === "auto" ? "as the system has them" : theme;
  setText(byId("theme"), theme[0]!.toUpperCase() + theme.slice(1));
  setAttribute(byId("theme"), "aria-label", `Colours: ${label}`);
  setAttribute(byId("theme"), "title", `Colours: ${label}`);
  localStorage.setItem("theme", theme);
  restyle();
}

function startTheme(): void {
  const kept = localStorage.getItem("theme") ?? "auto";
  let at = Math.max(0, THEMES.findIndex((theme) => theme === kept));
  setTheme(THEMES[at]!);
  byId("theme").addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    setTheme(THEMES[at]!);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
}

function onLink(link: Link): void {
  if (document.body.dataset.link !== link) document.body.dataset.link = link;
  const text = LINKS[link];
  setText(byId("link"), text);
  setText(byId("server"), link === "live" ? model.server : "");
  setAttribute(byId("link"), "class", `link ${link}`);
  setAttribute(byId("link"), "title", link === "live" ? `turnbuckle ${model.version}, bus at ${model.server}` : text);
  if (refused === (link === "refused")) return;
  refused = link === "refused";
  shown = null;
  show();
}

/** Draw with the next frame, unless the page is hidden. */
function redraw(): void {
  if (drawing || document.hidden) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw(): void {
  if (document.hidden || refused) return;
  const { view, app } = place();
  const text = model.troubles.get("allocator") ?? "";
  setText(trouble, text);
  byId("tab-trainings").hidden = model.trainings.size === 0 && view !== "trainings"; // where nothing trains, nothing is shown
  trouble.hidden = text === "" || view === "jobs" || view === "trainings" || view === "predictions" || view === "network";
  if (view === "applications") apps.update(model);
  if (view === "containers") containers.update(model);
  if (view === "container") container.update(model);
  if (view === "network") network.update(model);
  if (view === "jobs") jobs.update();
  if (view === "trainings") trainings.update(model);
  if (view === "predictions") predictions.update(model);
  events.update(model);
  const past = view === "container" ? container.past : view === "trainings" ? trainings.past : model.shown.find((one) => app === "" || one.name === app)?.past;
  toolbar.update(past?.sinceS ?? 0);
}

/** Once a second. */
function onTick(first: boolean): void {
  if (first) void ask("/trends", {}).then((message) => model.take(message)).catch(() => undefined); // then trends begin now
  if (place().view === "applications") apps.second(model, redraw);
  if (place().view === "container") container.second(model, redraw);
  if (place().view === "jobs") jobs.second();
  if (place().view === "trainings") trainings.second(model, redraw);
  redraw();
}

async function start(): Promise<void> {
  const key = takeKey();
  if (key !== "") await logIn(key);
  let join = 0;
  await follow((message) => {
    try {
      model.take(message);
    } catch {
      return; // a message whose fields are not what they should be: anyone may publish anything
    }
    if (message.type !== "console.Tick") return;
    onTick(model.join !== join);
    join = model.join;
  }, onLink);
}

makeTabs();
startTheme();
show();
document.addEventListener("visibilitychange", redraw);
void start();
