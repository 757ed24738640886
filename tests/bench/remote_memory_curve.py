"""Pages a second of a process of which 100, 75 and 50 % are in memory: on a slow disk, on remote memory, in memory.

A part of ``make bench-remote-memory``. All of it runs in one machine of User-Mode Linux, daemons too: only ratios of
its figures mean something, no latency does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Spread
from tests.bench.outcome import say
from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import python
from tests.lab.vm.machine import build_user_mode

ROUNDS: Final = 5
ROUND_S: Final = 3.0
QUICK_ROUND_S: Final = 1.0
WITHIN_S: Final = 1_200.0
BOOT_WITHIN_S: Final = 600.0
ASKED_RATIO: Final = 5.0
"""Remote memory by disk, with half of the pages in memory."""
HALF: Final = "50"

Curve = Mapping[str, Mapping[str, list[float]]]
"""Pages a second of each round, by medium and by the per cent of the pages that fit in memory."""


def measure_curve(rounds: int = ROUNDS, round_s: float = ROUND_S) -> dict[str, Any]:
    """The record, from a machine that is booted for it and switched off.

    Raises:
        MachineError: it cannot be built, or it hangs.
        RuntimeError: the measurement failed; the message holds its output.
    """
    with tempfile.TemporaryDirectory(prefix="turnbuckle-vm-") as directory:
        guest = Guest(build_user_mode(Path(directory)), Path(directory))
        try:
            say("booting a machine")
            command = f'exec "$0" -m tests.lab.vm.guest_swap_curve "$JOB_DIRECTORY/curve.json" {rounds} {round_s:g}'
            job = guest.machine(BOOT_WITHIN_S).start(["sh", "-c", command, python()])
            said = 0
            for _ in range(round(WITHIN_S)):
                ended = job.ended.wait(1.0)
                lines = job.output().splitlines()
                for line in lines[said:]:
                    say(line)
                said = len(lines)
                if ended:
                    break
            done = job.wait(0.0)
            if done.exit_code:
                raise RuntimeError(f"exit code {done.exit_code}\n{done.output[-4000:]}")
            record: dict[str, Any] = json.loads((done.directory / "curve.json").read_text(encoding="utf-8"))
        finally:
            guest.close()
        return record | {"kernel": guest.image.release, "remote_by_disk": ratios(record["pages_per_s"])}


def ratios(curve: Curve) -> dict[str, float]:
    """Remote memory by disk, of the medians, by the per cent in memory."""
    return {
        share: Spread.of(rates).median / Spread.of(curve["disk"][share]).median
        for share, rates in curve["remote"].items()
    }


def curve_table(record: Mapping[str, Any]) -> str:
    """For people."""
    curve: Curve = record["pages_per_s"]
    disk = f"disk of {record['disk_iops']} IOPS"
    lines = [
        f"pages a second of a process that reads {record['data_mib']} MiB at random, median (range) of rounds",
        f"all in one machine of User-Mode Linux {record['kernel']}: ratios mean something, no latency does",
        "",
        f"{'in memory':<12}{disk:>28}{'remote memory':>28}{'remote / disk':>16}",
    ]
    lines += [
        f"{share + ' %':<12}{Spread.of(curve['disk'][share]).text(0):>28}{Spread.of(rates).text(0):>28}"
        f"{record['remote_by_disk'][share]:>16.1f}"
        for share, rates in curve["remote"].items()
    ]
    met = "met" if record["remote_by_disk"][HALF] >= ASKED_RATIO else "MISSED"
    lines += [
        f"all in memory, without a limit: {Spread.of(curve['memory']['100']).text(0)}",
        f"asked: remote / disk at {HALF} % at least {ASKED_RATIO:g}: {met}",
    ]
    return "\n".join(lines)


def draw_curve(record: Mapping[str, Any], path: Path) -> Path:
    """The same as a picture; returns the path."""
    from tests.bench.pictures import panels, save  # noqa: PLC0415 - matplotlib takes seconds

    curve: Curve = record["pages_per_s"]
    names = {"remote": "remote memory", "disk": f"disk of {record['disk_iops']} IOPS"}
    figure, axes = panels(1, (6.0, 4.0))
    for medium, name in names.items():
        spreads = [Spread.of(rates) for rates in curve[medium].values()]
        errors = [[s.median - s.least for s in spreads], [s.most - s.median for s in spreads]]
        shares = [int(share) for share in curve[medium]]
        axes.errorbar(shares, [s.median for s in spreads], yerr=errors, marker="o", capsize=3, label=name)
    axes.axhline(Spread.of(curve["memory"]["100"]).median, linestyle="--", color="gray", label="all in memory")
    axes.set(xlabel="% of the pages that fit in memory", ylabel="pages read per second", yscale="log")
    axes.set_xticks([int(share) for share in curve["disk"]])
    axes.invert_xaxis()
    axes.legend()
    caption = (
        f"A process reads {record['data_mib']} MiB at random, medians and ranges of "
        f"{len(curve['memory']['100'])} rounds. All in one machine of User-Mode Linux: no latency is claimed."
    )
    return save(figure, caption, path)
