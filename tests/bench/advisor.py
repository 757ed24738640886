"""Predictions and choices of the advisor's models: ``make bench-advisor ARGS=--quick``.

Each data set, model, objective and protocol is a part that is written when it is measured, so an interrupted run goes
on with ``--resume``, and one model can be measured anew. Nothing is asserted. A set that is not on this machine is left
out, with the reason. ``--accelerators`` measures `advisor_accelerators` instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from schemas.predictions import Objective
from tests.bench import (
    advisor_accelerators,
    advisor_elsewhere,
    advisor_figures,
    advisor_local_runs,
    advisor_report,
)
from tests.bench.advisor_data import DEFAULT_DATA, SETS, DataSet, MissingDataError
from tests.bench.advisor_models import RANKERS, REGRESSORS, RENAMED, SEARCHES
from tests.bench.advisor_runs import PROTOCOLS, Job, Plan, measured, planned
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record

PARTS: Final = OUTPUT / "advisor"


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    plan: Plan
    sets: tuple[str, ...]
    data: Path
    parts: Path
    resume: bool
    as_json: bool


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.advisor", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 random splits, 1 seed of chance, no tuned thresholds")
    parser.add_argument("--sets", default=",".join(SETS), help="some of %(default)s; default all")
    parser.add_argument("--models", default="", help="some; default all. Others are shown as measured before")
    parser.add_argument("--objectives", default="cost,time", help="default %(default)s")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS), help="default %(default)s")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the public sets (%(default)s)")
    parser.add_argument("--seeds", type=int, help="random splits (default 10; quick: 2)")
    parser.add_argument("--runs", type=int, default=8, help="most runs of a search (default %(default)s)")
    parser.add_argument(
        "--slow-groups",
        type=int,
        default=9,
        help="leave applications out of the networks in so many groups (%(default)s)",
    )
    parser.add_argument("--resume", action="store_true", help="keep parts that were measured before on the same data")
    parser.add_argument("--elsewhere", action="store_true", help="local runs on other machines; has an option --json")
    parser.add_argument("--local-runs", action="store_true", help="ten local runs that are cut; has options of its own")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    return parser


def parse(arguments: list[str]) -> Order:
    """The order; exits with 2 where an option names what there is not."""
    parser = _parser()
    given = parser.parse_args(arguments)
    models = frozenset(RENAMED.get(name, name) for one in given.models.split(",") if (name := one.strip()))
    for name, asked, known in (
        ("sets", given.sets.split(","), tuple(SETS)),
        ("models", models, (*REGRESSORS, *RANKERS, *SEARCHES)),
        ("objectives", given.objectives.split(","), tuple(Objective)),
        ("protocols", given.protocols.split(","), PROTOCOLS),
    ):
        if unknown := sorted(set(asked) - set(known)):
            parser.error(f"--{name}: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    plan = Plan(
        objectives=tuple(Objective(one) for one in given.objectives.split(",")),
        protocols=tuple(given.protocols.split(",")),
        models=models,
        seeds=max(given.seeds or (2 if given.quick else 10), 1),
        chances=1 if given.quick else 5,
        runs=max(given.runs, 1),
        inner_folds=0 if given.quick else 4,
        slow_seeds=1 if given.quick else 3,
        slow_groups=max(given.slow_groups, 2),
    )
    parts = PARTS.with_name("advisor-quick") if given.quick else PARTS
    return Order(plan, tuple(given.sets.split(",")), given.data, parts, given.resume, given.json)


def load(order: Order) -> list[DataSet]:
    """The sets that are there; the others are named with the reason."""
    found = []
    for name in order.sets:
        try:
            found.append(SETS[name](order.data))
        except MissingDataError as error:
            say(f"{name} is left out: {error}")
    return found


def stored(path: Path, digest: str) -> dict[str, Any] | None:
    """A part that was measured before on the same data, also under its model's old name; None if there is none."""
    for old, new in RENAMED.items():
        if path.stem.endswith(f"-{new}") and not path.is_file():
            path = path.with_stem(path.stem.removesuffix(new) + old)
    if not path.is_file():
        return None
    part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if part.get("model") in RENAMED:
        part["model"] = RENAMED[part["model"]]
    return part if part["digest"] == digest else None


def measure(order: Order, sets: Sequence[DataSet]) -> None:
    """Measure and write every part that is asked for."""
    jobs = [job for data in sets for job in planned(data, order.plan)]
    began_s = time.monotonic()
    for at, job in enumerate(jobs):
        path = order.parts / job.path
        title = f"[{at + 1}/{len(jobs)}] {job.data.name}, {job.protocol}, {job.objective.value}, {job.model}"
        if order.resume and stored(path, job.data.digest):
            say(f"{title}: measured before")
            continue
        part = measured(job, order.plan, _progress(title))
        write_record(part, path)
        say(f"{title}: {part['seconds']} s; {(time.monotonic() - began_s) / 60:.1f} minutes so far")


def _progress(title: str) -> Any:
    """One line that is written over where a person looks; nothing where the output is a file."""

    def show(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K... {title}: {text}", end="\r", file=sys.stderr, flush=True)

    return show


def collected(order: Order, sets: Sequence[DataSet]) -> list[dict[str, Any]]:
    """All parts of the sets that are measured, also earlier ones of models that were not asked for now."""
    whole = replace(order.plan, objectives=tuple(Objective), protocols=PROTOCOLS, models=frozenset())
    jobs: list[Job] = [job for data in sets for job in planned(data, whole)]
    parts = [stored(order.parts / job.path, job.data.digest) for job in jobs]
    return [part for part in parts if part is not None]


def summary(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts without their single values."""
    arrays = {"values", "labels", "scores", "predicted", "low", "high"}
    kept = []
    for part in parts:
        answers = [{k: v for k, v in one.items() if k not in arrays} for one in part.get("answers", ())]
        kept.append({**part, **({"answers": answers} if answers else {})})
    return kept


def main() -> int:
    """Measure and report; 69 where there is no data."""
    if "--elsewhere" in sys.argv[1:]:
        return advisor_elsewhere.main([one for one in sys.argv[1:] if one != "--elsewhere"])
    if sys.argv[1:] == ["--accelerators"]:
        return advisor_accelerators.main()
    if "--local-runs" in sys.argv[1:]:
        return advisor_local_runs.main([one for one in sys.argv[1:] if one != "--local-runs"])
    order = parse(sys.argv[1:])
    machine = this_machine()
    say(machine.line)
    sets = load(order)
    if not sets:
        print("bench-advisor: no data set is there", file=sys.stderr)
        return UNAVAILABLE
    measure(order, sets)
    parts = collected(order, sets)
    record = {"machine": machine.as_dict(), "quick": order.parts != PARTS, "parts": summary(parts)}
    table = advisor_report.tables(parts, {data.name: data.about for data in sets}, machine.line)
    folder = order.parts.parent
    written = [write_record(record, folder / f"{order.parts.name}.json")]
    written.append(folder / f"{order.parts.name}.txt")
    written[-1].write_text(table + "\n", encoding="utf-8")
    written += advisor_figures.draw(parts, machine.line, order.parts)
    tell(table, record, written, as_json=order.as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
