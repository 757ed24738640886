// Quantities for people, as services/_runtime/command/output.py writes them.
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY_CLOCK = new Intl.DateTimeFormat(undefined, { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function bytes(count: number): string {
  if (count < 0) return "unlimited";
  if (count < 1024) return `${Math.round(count)} B`;
  let size = count;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    size /= 1024;
    if (size < 1024) return `${size >= 100 ? size.toFixed(0) : Number(size.toPrecision(3))} ${unit}`;
  }
  return `${Number((size / 1024).toPrecision(3))} TiB`;
}

export function cores(us: number, periodUs = 1e5): string {
  return us < 0 ? "unlimited" : (us / periodUs).toFixed(2);
}

export function duration(us: number): string {
  if (us < 1e3) return `${Math.round(us)} us`;
  return us < 999_500 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
}

/** Of a link, by powers of ten. */
export function bitRate(bitsPerS: number): string {
  const power = Math.min(3, Math.floor(Math.log10(Math.max(1, bitsPerS)) / 3));
  return `${Number((bitsPerS / 1e3 ** power).toPrecision(3))} ${["bit", "kbit", "Mbit", "Gbit"][power]}/s`;
}

/** "1 host", "2 hosts". */
export function count(number: number, one: string): string {
  return `${number} ${one}${number === 1 ? "" : "s"}`;
}

/** Next hops come as ``interface`` or ``gateway@interface``. */
export function uplink(hop: string): string {
  return hop.slice(hop.lastIndexOf("@") + 1);
}

/** Without FRR's gateway of every unnumbered link, which says nothing. */
export function shortHop(hop: string): string {
  return hop.replace(/^169\.254\.0\.1@/, "");
}

/** A training's time. */
export function span(seconds: number): string {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  return seconds < 7200 ? `${Number((seconds / 60).toPrecision(3))} min` : `${Number((seconds / 3600).toPrecision(3))} h`;
}

/** From one to another; the unit once where it is the same. */
export function spans(low: number, high: number): string {
  const [from, to] = [span(low), span(high)];
  const [size, unit] = from.split(" ");
  return to.endsWith(` ${unit}`) ? `${size} – ${to}` : `${from} – ${to}`;
}

export function dollars(amount: number): string {
  return amount >= 100 ? `$${amount.toFixed(0)}` : amount >= 1 ? `$${amount.toFixed(2)}` : `$${Number(amount.toPrecision(2))}`;
}

export function clock(timeNs: number): string {
  return CLOCK.format(new Date(timeNs / 1e6));
}

/** With the day, where it is not today. */
export function dateClock(timeNs: number): string {
  const time = new Date(timeNs / 1e6);
  return time.toDateString() === new Date().toDateString() ? CLOCK.format(time) : DAY_CLOCK.format(time);
}

export function percent(share: number): string {
  return `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : (share * 100).toFixed(0)} %`;
}

/** A container's name without the id that makes its key unique. */
export function shortName(key: string): string {
  return key.replace(/-[0-9a-f]{12}$/, "");
}
