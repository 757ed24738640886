"""What the web console costs: ``make bench-console``.

A console and a page of it in headless Chromium, beside an allocator, synthetic agents of ten nodes, a scheduler's
answers about 500 jobs, and the reports of four trainings, over a real nats-server. CPU time is the kernel's: of the
console's process, and of all the browser's together. The page is drawn by software: there is no graphics card here.
Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from schemas.apps import AppSpec
from schemas.subjects import STEPS, TRAINING_EVENTS
from schemas.trainings import STEP_COLUMNS
from services._runtime.bus.nats import NatsBus
from tests.bench.cluster import open_cluster
from tests.bench.machine import descendants, process_cpu_ns, this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record
from tests.bench.scenario_allocator import CORES_PER_CONTAINER
from tests.bench.synthetic_agents import FIRST_LIMIT_BYTES, Load
from tests.support.chromium import browser
from tests.support.console_lab import DESKTOP, WITHIN_MS, console_url, end, launch
from tests.support.job_queue import FakeScheduler, large_queue
from tests.support.trainer_plans import plan_of
from tests.support.training_reports import event, steps

CONTAINERS: Final = 500
NODES: Final = 10
APPLICATIONS: Final = 5
CHANGE_SHARE: Final = 0.1
JOBS: Final = 500
TRAININGS: Final = 4
RANKS: Final = 8
STEPS_PER_S: Final = 20
TELL_PLAN_EVERY_S: Final = 20
VIEWS: Final = ("applications", "containers", "container", "jobs", "trainings")
SECONDS: Final = 60.0
SETTLE_S: Final = 5.0
_BROWSER: Final = "chrom"
"""How the names of the browser's processes begin."""
_COUNT_DRAWS: Final = """() => {
  window.draws = 0;
  window.observer?.disconnect();
  window.observer = new MutationObserver(() => { window.draws += 1; });
  window.observer.observe(document.getElementById("panel"), { subtree: true, childList: true, characterData: true });
}"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Shares of a core over a window."""

    view: str
    console: float
    browser: float
    draws_per_s: float
    """How often the page has changed: a page that stands still costs nothing."""

    @property
    def together(self) -> float:
        """Of a core."""
        return self.console + self.browser


@asynccontextmanager
async def shown(containers: int) -> AsyncIterator[tuple[Any, int]]:
    """A page that shows the console, and the console's process id."""
    load = Load(containers, -(-containers // NODES), -(-containers // APPLICATIONS), CHANGE_SHARE)
    share = load.containers_per_app
    specs = [
        AppSpec(name=app, cpu_limit=share * CORES_PER_CONTAINER, memory_limit=2 * share * FIRST_LIMIT_BYTES)
        for app in load.apps
    ]
    async with open_cluster() as cluster, cluster.run("tests.bench.traced_allocator", name="allocator") as allocator:
        await cluster.announce(*specs)
        async with cluster.run("tests.bench.synthetic_agents", load.as_environment(), name="agents") as agents:
            await cluster.until_ordered(containers, allocator, agents)
            await FakeScheduler(cluster.bus, lambda now_ns: large_queue(now_ns, JOBS)).start()
            console = launch("console", "--port", "0", "--json", "--server", cluster.server.url)
            training = asyncio.create_task(_train(cluster.bus))
            try:
                url = await console_url(console)
                async with browser() as chromium:
                    page = await chromium.new_page(viewport=DESKTOP)
                    await page.goto(url)
                    await page.wait_for_selector("#link.live", timeout=WITHIN_MS)
                    yield page, console.pid
            finally:
                training.cancel()
                await asyncio.wait({training})
                end(console)


async def _train(bus: NatsBus) -> None:
    """Every second a report of each rank; the plan again and again, as the console may not listen yet."""
    plan = plan_of([16] * RANKS, [1] * RANKS, [1] * RANKS)
    for second in itertools.count():
        rows = tuple(range(second * STEPS_PER_S, (second + 1) * STEPS_PER_S))
        for number in range(TRAININGS):
            whose = {"job": f"job-{number}", "node": "n1"}
            told = event(plan=plan, sequence=second, time_ns=time.time_ns(), **whose)
            if second % TELL_PLAN_EVERY_S == 0:
                bus.publish_event(TRAINING_EVENTS.subject(bus.root, **whose), told, message_id=told.message_id)
            for rank in range(RANKS):
                columns = dict.fromkeys(STEP_COLUMNS, (50_000 + second % 1_000,) * len(rows)) | {"step": rows}
                batch = steps(rank=rank, time_ns=time.time_ns(), **whose, **columns)
                bus.publish(STEPS.subject(bus.root, **whose), batch)
        await asyncio.sleep(1.0)


async def cost_of(page: Any, console: int, view: str, seconds: float) -> Cost:
    """Show a view, and measure for a while."""
    await page.click(f"#tab-{'containers' if view == 'container' else view}")
    await page.locator("tbody th" if view == "trainings" else "tbody th a").first.wait_for(timeout=WITHIN_MS)
    if view == "container":
        await page.locator("tbody th a").first.click()
        await page.locator("[data-container] canvas").first.wait_for(timeout=WITHIN_MS)
    await asyncio.sleep(SETTLE_S)
    await page.evaluate(_COUNT_DRAWS)
    before, began = _cpu_ns(console), asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    after, elapsed_ns = _cpu_ns(console), (asyncio.get_running_loop().time() - began) * 1e9
    used = {pid: cpu_ns - before.get(pid, 0) for pid, cpu_ns in after.items()}
    own = used.pop(console)
    draws = await page.evaluate("window.draws")
    return Cost(view, own / elapsed_ns, sum(used.values()) / elapsed_ns, draws / elapsed_ns * 1e9)


async def measure(containers: int, seconds: float, views: Sequence[str]) -> list[Cost]:
    """Each view in turn, of one page."""
    async with shown(containers) as (page, console):
        costs = []
        for view in views:
            say(f"{containers} containers, {view}, {seconds:g} s")
            costs.append(await cost_of(page, console, view, seconds))
        return costs


def _cpu_ns(console: int) -> dict[int, int]:
    """CPU time of the console and of the browser, by process."""
    found = {console: process_cpu_ns(console)}
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").startswith(_BROWSER):
                found[pid] = process_cpu_ns(pid)
    return found


def table(costs: Sequence[Cost], containers: int, machine: str) -> dict[str, Any]:
    """As a page shows it: `scripts.generate_figures`."""
    columns = [f"cores, {containers} containers", "console", "page (headless Chromium)", "together"]
    rows = [[one.view, *(f"{share:.3f}" for share in (one.console, one.browser, one.together))] for one in costs]
    return {"machine": machine, "columns": columns, "rows": rows}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.console", description=__doc__.partition("\n")[0])
    parser.add_argument("--containers", type=int, default=CONTAINERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each view")
    parser.add_argument("--views", default=",".join(VIEWS))
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    machine = this_machine().line
    costs = asyncio.run(measure(given.containers, given.seconds, given.views.split(",")))
    shown_table = table(costs, given.containers, machine)
    record: dict[str, Any] = {
        "containers": given.containers,
        "seconds": given.seconds,
        "costs": [asdict(one) for one in costs],
    }
    record["tables"] = {"cost": shown_table}
    text = "\n".join("  ".join(f"{cell:<26}" for cell in row) for row in (shown_table["columns"], *shown_table["rows"]))
    tell(text, record, [write_record(record, OUTPUT / "console.json")], as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
