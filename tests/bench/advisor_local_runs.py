"""Ten local runs of unlike scripts, cut at 10 to 30 %: ``make bench-advisor ARGS=--local-runs`` (15 minutes, root).

Each script of `local_runs` is profiled as `turnbuckle profile` does it: once to its end, and again stopped at a part of
that duration. From the second profile the advisor's core estimates the whole duration, with the interval of its nominal
level; "not known" is neither right nor wrong. ``--resume`` keeps what was measured before, ``--only NAME,NAME``
measures some anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from schemas.runs import RunEnd, RunProfile
from services.advisor.core.whole_job_duration import whole_job_duration
from services.advisor.models.gp.algorithm import LEVEL
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.pictures import panels, save

PARTS: Final = OUTPUT / "advisor-local-runs"
SHARES: Final = (0.1, 0.2, 0.3)
"""Of the whole duration, at which scripts are stopped, in turn."""
CPUS: Final = 0.5
LEAST_S: Final = 5.5
"""Of a run that is cut: an eleventh of it is an interval, as a profile has ten samples."""
WITHIN_S: Final = 600.0
SCRIPTS: Final = {
    "epochs_validated": "line per epoch, after its validation",
    "steps_of_total": "line each 200 steps, of a total",
    "bars_per_epoch": "tqdm bar per epoch, one per validation",
    "long_loading": "shards loaded first, then torchvision's lines; --epochs",
    "unequal_epochs": "line per epoch; epochs of 0.5 to 1.5 times the mean",
    "learning_rate_finder": "bar of a learning-rate finder, then Lightning's bars",
    "progress_file": "TURNBUCKLE_PROGRESS_FILE",
    "gradient_accumulation": "transformers' bar of optimizer steps, and its logs",
    "curriculum": "line each 20 steps; sequences grow eightfold",
    "slow_first_epoch": "line per epoch; the first computes the features",
}
"""How each script prints its progress."""
OPTIONS: Final = {"long_loading": ("--epochs", "45")}
"""Of the profile: what a script's output does not say."""


@dataclass(frozen=True, slots=True)
class LocalRunOutcome:
    """One script's whole run, and what the advisor says after a part of it."""

    script: str
    form: str
    share: float
    """Of the whole duration, at which it was asked to stop."""
    cut_s: float
    true_s: float
    predicted_s: float | None
    """None: not known."""
    low_s: float | None
    high_s: float | None
    why_unknown: str
    rate_error: float | None
    """Relative standard error of the rate, as the profile says it."""
    lost_share: float
    """`CpuContention.lost_share` of the run that was cut."""
    lost_share_of_whole: float

    @property
    def inside(self) -> bool | None:
        """Whether the true duration is inside the interval; None: not known."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.true_s <= self.high_s


def outcome(script: str, share: float, whole: RunProfile, cut: RunProfile) -> LocalRunOutcome:
    """Compare the whole run's duration with the advisor's estimate from the cut run.

    Raises:
        ValueError: the whole run did not finish.
    """
    if whole.end is not RunEnd.FINISHED:
        raise ValueError(f"{script}: the whole run is {whole.end.value}: {whole.reason}")
    found = whole_job_duration(cut.task, cut)
    known = math.isfinite(found.time_s)
    half = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0) * math.sqrt(found.log_variance)
    error = cut.configuration.attributes.get("rate_error")
    return LocalRunOutcome(
        script,
        SCRIPTS[script],
        share,
        cut.duration_s,
        whole.duration_s,
        found.time_s if known else None,
        found.time_s * math.exp(-half) if known else None,
        found.time_s * math.exp(half) if known else None,
        found.why_unknown,
        float(error) if isinstance(error, int | float) else None,
        cut.contention.lost_share if cut.contention else 0.0,
        whole.contention.lost_share if whole.contention else 0.0,
    )


def profiled(script: str, kind: str, seconds: float | None = None) -> RunProfile:
    """Profile a script, to its end or for so many seconds; its files are kept in `PARTS`.

    Raises:
        ValueError: there is no profile; the text has the tool's own words.
    """
    folder = (PARTS / script / kind).absolute()
    options = ["--no-bus", "--workers", "1", "--cpus", str(CPUS), "--out", str(folder)]
    options += ["--seconds", f"{seconds or WITHIN_S:.1f}", "--interval", f"{min(1.0, (seconds or WITHIN_S) / 11):.2f}"]
    options += OPTIONS.get(script, ())
    command = [sys.executable, "-m", f"tests.bench.local_runs.{script}"]
    done = subprocess.run(
        [sys.executable, "-m", "services.collector.profiler.run", *options, "--", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    results = [event for line in done.stdout.splitlines() if (event := json.loads(line))["event"] == "result"]
    if done.returncode or not results:
        raise ValueError(f"{script}: exit code {done.returncode}: {done.stderr[-2_000:]}")
    return RunProfile.model_validate_json(Path(results[0]["profile"]).read_text(encoding="utf-8"))


def measured(script: str, share: float) -> LocalRunOutcome:
    """Run a script to its end, then to a part of it.

    Raises:
        ValueError: as `profiled` and `outcome`.
    """
    whole = profiled(script, "whole")
    cut = profiled(script, "cut", max(share * whole.duration_s, LEAST_S))
    return outcome(script, share, whole, cut)


def kept(script: str, share: float) -> LocalRunOutcome | None:
    """What was measured before, estimated anew from the newest profiles that are kept; None where they are not."""
    found = [sorted((PARTS / script / kind / "profiles").glob("*.json")) for kind in ("whole", "cut")]
    if not all(found):
        return None
    whole, cut = (RunProfile.model_validate_json(one[-1].read_text(encoding="utf-8")) for one in found)
    return outcome(script, share, whole, cut)


def rows(outcomes: Sequence[LocalRunOutcome]) -> list[list[str]]:
    """Cells of the table, as `COLUMNS` names them."""
    verdicts = {True: "inside", False: "outside", None: "not known"}
    return [
        [
            one.script.replace("_", " "),
            one.form,
            f"{one.cut_s / one.true_s:.0%}",
            "-" if one.predicted_s is None else f"{one.predicted_s:.3g} ({one.low_s:.3g}-{one.high_s:.3g})",
            f"{one.true_s:.3g}",
            f"{one.lost_share:.0%}, {one.lost_share_of_whole:.0%}",
            verdicts[one.inside],
        ]
        for one in outcomes
    ]


COLUMNS: Final = ["script", "prints", "cut at", "predicted, s", "true, s", "lost to other work: cut, whole", "true is"]


def text(outcomes: Sequence[LocalRunOutcome], machine: str) -> str:
    """Everything for people."""
    table = [COLUMNS, *rows(outcomes)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join([machine, *lines, summary(outcomes)])


def summary(outcomes: Sequence[LocalRunOutcome]) -> str:
    """How often the interval holds the true duration."""
    inside = sum(one.inside is True for one in outcomes)
    unknown = sum(one.inside is None for one in outcomes)
    return f"inside: {inside} of {len(outcomes)}, not known: {unknown}; intervals of {LEVEL:.0%}"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def draw(outcomes: Sequence[LocalRunOutcome], caption: str, path: Path) -> Path:
    """Predicted against true durations with their intervals, logarithmic; returns the path."""
    figure, axes = panels(1, (7, 5.4))
    marks = {0.1: "o", 0.2: "s", 0.3: "^"}
    ends = [one.true_s for one in outcomes]
    for number, one in enumerate(outcomes, start=1):
        if one.predicted_s is None or one.low_s is None or one.high_s is None:
            continue
        ends += [one.low_s, one.high_s]
        colour = "tab:blue" if one.inside else "tab:red"
        around = [[one.predicted_s - one.low_s], [one.high_s - one.predicted_s]]
        axes.errorbar(one.true_s, one.predicted_s, around, fmt=marks[one.share], color=colour, capsize=3, markersize=5)
        axes.annotate(str(number), (one.true_s, one.predicted_s), (5, 4), textcoords="offset points", fontsize=8)
        axes.plot([], [], marks[one.share], color=colour, label=f"{number}: {one.script.replace('_', ' ')}")
    limits = [0.9 * min(ends), 1.1 * max(ends)]
    axes.plot(limits, limits, color="grey", linestyle=":", label="predicted = true")
    for share, mark in marks.items():
        axes.plot([], [], mark, color="grey", label=f"cut at {share:.0%}")
    axes.set(xlabel="true, s", ylabel="predicted, s", xscale="log", yscale="log", xlim=limits, ylim=limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.legend(fontsize=7)
    return save(figure, caption, path)


def record_of(outcomes: Sequence[LocalRunOutcome], machine: Any) -> dict[str, Any]:
    """The record as JSON, with the table for `scripts.generate_figures`."""
    table = {"machine": machine.line, "columns": COLUMNS, "rows": rows(outcomes)}
    runs = [asdict(one) | {"inside": one.inside} for one in outcomes]
    return {"machine": machine.as_dict(), "cpus": CPUS, "level": LEVEL, "runs": runs, "tables": {"local-runs": table}}


def main(arguments: Sequence[str]) -> int:
    """Measure and report; 69 without root."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.advisor --local-runs", description=__doc__)
    parser.add_argument("--only", default=",".join(SCRIPTS), help="some of %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep what was measured before")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    asked = given.only.split(",")
    if unknown := sorted(set(asked) - set(SCRIPTS)):
        parser.error(f"--only: there is no {', '.join(unknown)}")
    if os.geteuid() != 0:
        print("bench-advisor: local runs need root", file=sys.stderr)
        return UNAVAILABLE
    machine = this_machine()
    say(machine.line)
    outcomes = []
    for at, script in enumerate(SCRIPTS):
        share = SHARES[at % len(SHARES)]
        known = kept(script, share) if given.resume or script not in asked else None
        if known is None and script in asked:
            known = measured(script, share)
        if known is not None:
            outcomes.append(known)
            say(", ".join(rows([known])[0]))
    record = record_of(outcomes, machine)
    written = [write_record(record, PARTS.with_suffix(".json"))]
    caption = f"{summary(outcomes)}\n{machine.line}; a quota of {CPUS} cores; {_today()}"
    written.append(draw(outcomes, caption, PARTS.with_suffix(".svg")))
    tell(text(outcomes, machine.line), record, written, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
