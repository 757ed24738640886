// What limits saved of an application, or would save: the totals of `turnbuckle savings`, in one line.
import { ask } from "./feed";

const AGAIN_MS = 60_000; // allocators publish once a minute

interface Total {
  mode: string;
  cpu: { saved_core_h: number };
  memory: { saved_gib_h: number };
  money: Record<string, number> | null;
  throttling: { periods: number; throttled_periods: number; would_throttle_periods: number };
}

export class Savings {
  text = "";
  private askedMs = -AGAIN_MS;

  constructor(private readonly app: string) {}

  /** While its application is in sight: at first, and once a minute. */
  refresh(redraw: () => void): void {
    if (performance.now() - this.askedMs < AGAIN_MS) return;
    this.askedMs = performance.now();
    ask("/savings", { app: this.app }).then((answer) => {
      const totals = answer.totals as Total[];
      this.text = answer.error ? `Savings: ${String(answer.error)}` : totals.map((total) => said(total, Number(answer.days))).join(" ");
      redraw();
    }).catch(() => undefined); // the stream says what is wrong
  }
}

function said(total: Total, days: number): string {
  const observes = total.mode === "observe";
  const { periods, throttled_periods: throttled, would_throttle_periods: would } = total.throttling;
  const share = periods > 0 ? `; ${observes ? "would throttle" : "throttled"} ${((100 * (observes ? would : throttled)) / periods).toFixed(1)} % of periods` : "";
  const money = Object.entries(total.money ?? {}).map(([currency, amount]) => `, ${amount.toFixed(2)} ${currency}`).join("");
  return `${observes ? "Limits would have saved" : "Limits saved"} ${total.cpu.saved_core_h.toFixed(2)} core-hours and ${total.memory.saved_gib_h.toFixed(2)} GiB-hours${money} in ${days} days${share}.`;
}
