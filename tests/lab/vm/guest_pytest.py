"""pytest inside of a machine."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from tests.lab.vm.guest import Ended, Guest
from tests.lab.vm.machine import CHECKOUT

OPTIONS: Final = ("-p", "no:cacheprovider", "-o", "timeout=600", "--durations=5")


def python() -> str:
    """This checkout's interpreter, as seen from inside: the same path."""
    return str(CHECKOUT / ".venv/bin/python") if (CHECKOUT / ".venv").exists() else sys.executable


def outcomes(report: Path) -> dict[str, set[str]]:
    """Names of the tests by outcome."""
    found: dict[str, set[str]] = {"passed": set(), "skipped": set(), "failure": set(), "error": set()}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & found.keys()
        for kind in kinds or {"passed"}:
            found[kind].add(case.attrib["name"])
    return found


def run_pytest(
    guest: Guest, capsys: pytest.CaptureFixture[str], *arguments: str, within_s: float = 1_400.0
) -> dict[str, set[str]]:
    """Run pytest in the machine, print its last line and what tests printed themselves; names of the tests by outcome.

    Raises:
        MachineError: it does not end.
    """
    machine = guest.machine()
    report = "report.xml"
    # Directories of its own: what an earlier one has left mounted is none of its business.
    places = f'--junit-xml="$JOB_DIRECTORY/{report}" --basetemp="/run/pytest-${{JOB_DIRECTORY##*/}}"'
    job = machine.start(
        ["sh", "-c", f'exec "$0" -m pytest {places} "$@"', python(), *arguments, *OPTIONS], {"CI": "true"}
    )
    ended = job.wait(within_s)
    with capsys.disabled():
        print(f"\n  {guest.image.release}, {ended.seconds:.0f} s: {ended.output.strip().splitlines()[-1]}")  # noqa: T201
        for line in figures(ended):
            print(f"  {line}")  # noqa: T201
    assert ended.exit_code == 0, ended.output[-8000:]
    return outcomes(ended.directory / report)


def figures(ended: Ended) -> list[str]:
    """What tests in the machine want to be read outside: lines that begin with "figure: "."""
    return [line.partition("figure: ")[2] for line in ended.output.splitlines() if "figure: " in line]
