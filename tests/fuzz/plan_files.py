"""Spoiled cluster.yaml and plan.json files are read. ``make fuzz-plan-files ARGS="--seed 7 --count 1000"``.

What may happen: the file's content, which is then used as `turnbuckle plan` and `turnbuckle train` do, or a refusal
that names the file. Everything else is a finding, told once per place with its smallest input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from schemas.launch import launch_lines
from schemas.plans import Plan, PlanRequest, Strategy
from services._runtime.command.errors import BadFileError
from services.planner.cluster_file import read_cluster
from services.planner.commands.plan import read_profile
from services.planner.core.choose import WORKER, plan
from services.planner.core.inputs import UnusableInputError, network_of
from services.trainer.worker.plan_file import RefusedError, check_plan, check_world, read_plan
from tests.fuzz.message_fuzzer import FuzzReport

DEFAULT_COUNT: Final = 100_000
EXAMPLE: Final = Path(__file__).parents[2] / "docs/examples/planner"
_MOST_LINE_CHARACTERS: Final = 1_000
_OURS: Final = ("/schemas/", "/services/")
_CHARACTERS: Final = "{}[]:,-#&*!|>'\"%@`\\ \n\t0x1e.~\0\N{SNOWMAN}"
_VALUES: Final = (
    *(sign * (1 << bits) + more for bits in (0, 16, 31, 53, 63, 64) for sign in (-1, 1) for more in (-1, 0)),
    *(math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308, 10**400),
    *("", "\n", "\0", "x" * 300, "9" * 5_000, "1e400", "22.5GiB", "-1GiB", "1e30Gbit", "0Gbit", "nan", "on", "~", "a"),
    *(None, True, [], {}, [[]] * 3, {"": None}, {"kind": "l4"}),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one kind."""

    name: str
    """Of the file."""
    good: Sequence[Any]
    """Contents that are read."""
    write: Callable[[Any], str]
    use: Callable[[Path], object]
    """Reads the file and does with it what the commands do."""
    refusals: tuple[type[Exception], ...]


def use_cluster(file: Path) -> object:
    """Read a cluster.yaml, and ask for a plan on it.

    Raises:
        BadFileError: it is refused.
    """
    cluster = read_cluster(file)
    PlanRequest(job="train", task="tiny", cluster=cluster, batch=8)
    launch_lines(cluster, WORKER)
    try:
        return network_of(cluster)
    except UnusableInputError as error:
        return error


def use_plan(file: Path) -> object:
    """Read a plan.json, and check what the ranks would carry out.

    Raises:
        RefusedError: it is refused.
    """
    found = read_plan(file)
    assert Plan.model_validate_json(found.model_dump_json()) == found, "another plan came back"
    try:
        check_world(found, len(found.devices))
        check_plan(found)
    except RefusedError as error:
        return error  # it is a plan, of which no engine can carry out all
    return found


def kinds() -> tuple[Kind, Kind]:
    """Of both, made from the example of docs/planner.md."""
    text = (EXAMPLE / "cluster.yaml").read_text(encoding="utf-8")
    cluster = read_cluster(EXAMPLE / "cluster.yaml")
    profiles = tuple(read_profile(file) for file in sorted(EXAMPLE.glob("*.json")))
    plans = []
    for strategy in (Strategy.UNEVEN, Strategy.PIPELINE):
        rich = cluster.model_copy(
            update={"devices": tuple(one.model_copy(update={"memory_bytes": 1 << 37}) for one in cluster.devices)}
        )
        request = PlanRequest(job="train", profiles=profiles, cluster=rich, batch=16, strategies=(strategy,))
        made = plan(request, profiles).plan
        assert made is not None
        plans.append(json.loads(made.model_dump_json()))
    return (
        Kind("cluster.yaml", [yaml.safe_load(text)], _yaml, use_cluster, (BadFileError,)),
        Kind("plan.json", plans, _json, use_plan, (RefusedError,)),
    )


def _yaml(content: Any) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _json(content: Any) -> str:
    return json.dumps(content)


def spoiled(kind: Kind, random: Random) -> str:
    """A good file with one to five fields or characters spoiled."""
    content = json.loads(json.dumps(random.choice(kind.good)))
    ways = random.randint(1, 3)
    if ways & 1:
        for _ in range(random.choice((1, 1, 2, 5))):
            _spoil_field(content, random)
    text = kind.write(content)
    if ways & 2:
        for _ in range(random.choice((1, 1, 2, 5))):
            text = _spoil_text(text, random)
    return text


def _spoil_field(content: Any, random: Random) -> None:
    """Of one map or list, or of one that it holds."""
    while isinstance(content, dict | list) and content:
        place = random.choice(list(content)) if isinstance(content, dict) else random.randrange(len(content))
        inner = content[place]
        if isinstance(inner, dict | list) and inner and random.random() < 0.85:
            content = inner
            continue
        match random.randrange(6):
            case 0:
                del content[place]
            case 1 if isinstance(content, list):
                content.append(deepcopy(inner))
            case 1:
                content[random.choice(("extra", "", "kind", "devices"))] = deepcopy(inner)
            case 2:
                content[place] = [deepcopy(inner) for _ in range(random.randrange(4))]
            case 3:
                content[place] = {"x": inner}
            case _:
                content[place] = deepcopy(random.choice(_VALUES))  # else one file's spoiled value is the next one's
        return


def _spoil_text(text: str, random: Random) -> str:
    at, lines = random.randrange(len(text) + 1), text.split("\n")
    match random.randrange(6):
        case 0:
            return text[:at] + random.choice(_CHARACTERS) + text[at:]
        case 1:
            return text[:at] + random.choice(_CHARACTERS) + text[at + 1 :]
        case 2:
            return text[:at] + text[at + random.randint(1, 9) :]
        case 3:
            return text[:at]
        case 4:
            lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
        case _:
            place = random.randrange(len(lines))
            lines[place] = random.choice((" ", "  ", "\t", "- ", "&a ", "<<: *a")) + lines[place]
    return "\n".join(lines)


def try_one(report: FuzzReport, kind: Kind, number: int, folder: Path) -> None:
    """One spoiled file, read and used."""
    data = spoiled(kind, Random(f"{report.seed}-{kind.name}-{number}")).encode("utf-8", "surrogatepass")
    file = folder / kind.name
    file.write_bytes(data)
    try:
        result = kind.use(file)
    except kind.refusals as error:
        said = str(error)
        if kind.name not in said or any(len(line) > _MOST_LINE_CHARACTERS for line in said.splitlines()):
            report.note(number, data, error, _OURS)
        report.outcomes[f"{kind.name} refused"] += 1
    except Exception as error:  # noqa: BLE001 - that is what we look for
        report.note(number, data, error, _OURS)
    else:
        report.outcomes[f"{kind.name} {type(result).__name__}"] += 1


def fuzz(seed: int, count: int, *, told: Callable[[FuzzReport], None] = lambda _: None) -> FuzzReport:
    """Try so many files of each kind; `told` hears of the progress now and then."""
    report, start_s, both = FuzzReport(seed), time.monotonic(), kinds()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            for kind in both:
                try_one(report, kind, number, Path(folder))
            report.count += len(both)
            report.seconds = time.monotonic() - start_s
            if number % 5_000 == 0:
                told(report)
    return report


def main() -> int:
    """1 where there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.plan_files", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="files of each kind (default %(default)s)")
    given = parser.parse_args()
    report = fuzz(given.seed, given.count, told=lambda now: print(f"... {now.count}", file=sys.stderr, flush=True))
    print(report.text)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
