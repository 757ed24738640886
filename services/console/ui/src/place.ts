// What is shown, as the address has it behind the #: every view can be linked to, and the back button works.
export const VIEWS = ["applications", "containers", "container", "network", "jobs", "trainings", "predictions", "events"] as const;
export type View = (typeof VIEWS)[number];
export const SORTS = ["name", "cpu", "memory", "throttled"] as const;
export type Sort = (typeof SORTS)[number];
export const SPANS_S = [60, 600, 3600] as const;

export interface Place {
  view: View;
  app: string; // only this application; empty: all
  node: string;
  container: string;
  job: string; // whose history is shown; empty: no job's
  search: string;
  sort: Sort;
  descending: boolean;
  spanS: number; // charts show so much, up to now
  fromS: number; // or this, where `toS` is later
  toS: number;
}

const START: Place = { view: "applications", app: "", node: "", container: "", job: "", search: "", sort: "name", descending: false, spanS: 600, fromS: 0, toS: 0 };
/** Jobs last longer than what changes of limits. */
const startSpanS = (view: View): number => (view === "jobs" ? 3600 : START.spanS);

/** The place that a hash such as `#containers?search=web&sort=-throttled` names; what it says wrongly is left out. */
export function parsePlace(hash: string): Place {
  const [name = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const given = new URLSearchParams(query);
  const text = (field: string) => given.get(field) ?? "";
  const descending = text("sort").startsWith("-");
  const sort = SORTS.find((one) => one === text("sort").replace(/^-/, ""));
  const [fromS = 0, toS = 0] = text("zoom").split("-").map(Number);
  const span = SPANS_S.find((one) => String(one) === text("zoom"));
  const view = VIEWS.find((one) => one === name) ?? START.view;
  return {
    view, app: text("app"), node: text("node"), container: text("container"), job: text("job"), search: text("search"),
    sort: sort ?? START.sort, descending: sort !== undefined && descending,
    spanS: span ?? startSpanS(view), ...(fromS > 0 && toS > fromS ? { fromS, toS } : { fromS: 0, toS: 0 }),
  };
}

/** The hash of a place: what is as at the start is left out. */
export function hashOf(place: Place): string {
  const fields = new URLSearchParams();
  for (const name of ["app", "node", "container", "job", "search"] as const) if (place[name] !== "") fields.set(name, place[name]);
  if (place.sort !== START.sort || place.descending) fields.set("sort", (place.descending ? "-" : "") + place.sort);
  if (place.toS > place.fromS) fields.set("zoom", `${place.fromS.toFixed(1)}-${place.toS.toFixed(1)}`);
  else if (place.spanS !== startSpanS(place.view)) fields.set("zoom", String(place.spanS));
  const query = fields.toString();
  return `#${place.view}${query === "" ? "" : `?${query}`}`;
}

let current = parsePlace(location.hash);
let changed: (place: Place) => void = () => {};

export const place = (): Place => current;

/** Call back at every change, also by the back button. */
export function onPlace(listener: (place: Place) => void): void {
  changed = listener;
  addEventListener("hashchange", () => {
    current = parsePlace(location.hash);
    changed(current);
  });
}

/** Change what is shown. A search that is being typed replaces the last entry of the browser's history. */
export function go(change: Partial<Place>, replace = false): void {
  const { view } = change;
  if (view !== undefined && current.spanS === startSpanS(current.view)) change = { spanS: startSpanS(view), ...change };
  current = { ...current, ...change };
  if (replace) history.replaceState(null, "", hashOf(current));
  else history.pushState(null, "", hashOf(current));
  changed(current);
}

/** The hash of the page of a container. */
export function containerHash(app: string, node: string, container: string): string {
  return hashOf({ ...START, spanS: current.spanS, view: "container", app, node, container });
}

/** From when to when charts show, in seconds since the epoch. */
export function windowOf(nowS: number): [number, number] {
  return current.toS > current.fromS ? [current.fromS, current.toS] : [nowS - current.spanS, nowS];
}

export const frozen = (): boolean => current.toS > current.fromS;
