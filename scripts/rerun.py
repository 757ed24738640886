"""Runs pytest, and what failed once more, alone: ``python -m scripts.rerun PYTEST-ARGUMENTS``.

A test that fails again is red. One that passes is a ``FLAKY`` line, which closes no gate and is a defect until
`tests/flaky_ledger.toml` says of what. Nothing is run again where pytest did not run to its end, where a file could not
be collected, or where more than `MOST` tests failed: that is no flake. The last line is ``N passed, N failed``; exit
code 0: nothing is red.

Nothing runs beside a test that is run again, so that another test's load or leftovers no longer matter. With CI=true
hypothesis derandomizes: a property that was refuted is refuted again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MOST: Final = 8
"""Failed tests that are run again."""
DEADLINE_S: Final = 360.0
"""Of one test alone: more than pytest's own `timeout` in pyproject.toml, which says where it hung."""
_PASSED: Final = 0
_SOME_FAILED: Final = 1
_COLLECTION: Final = "collection failure"
"""What pytest writes instead of a message of its own (`_pytest.junitxml.append_collect_error`)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, in its call or in a fixture."""

    test: str
    """Its node id."""
    error: str
    """The first line."""
    trace: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one run of pytest left."""

    passed: int
    failures: tuple[Failure, ...]
    broken: str | None = None
    """Why there is nothing to run again: pytest did not run to its end, or a file could not be collected."""
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known after failed tests have run once more."""

    passed: int
    """Flaky ones are among them."""
    failed: tuple[str, ...]
    """Node ids; a run that broke off counts as one."""
    flaky: tuple[Failure, ...] = ()

    @property
    def red(self) -> bool:
        """Whether the gate is closed."""
        return bool(self.failed)


def node_id(case: ET.Element) -> str:
    """The node id of a ``testcase`` of family xunit1: a method's class stands between the module and its name."""
    file, name = case.get("file", ""), case.attrib["name"]
    within = case.attrib["classname"].removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, within.replace(".", "::"), name) if part)


def failures_of(suite: ET.Element) -> Iterator[Failure]:
    """Each failed test once, with its first failure: a teardown's error may follow one of the call."""
    known = set()
    for case in suite.iter("testcase"):
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None and node_id(case) not in known:
                known.add(node_id(case))
                lines = (found.get("message") or found.text or "no message").strip().splitlines()
                yield Failure(node_id(case), lines[0] if lines else "no message", (found.text or "").strip())


def uncollected(suite: ET.Element) -> list[str]:
    """Files that could not be imported, or processes that collected other tests than the others."""
    return [
        case.get("file") or case.attrib["name"]
        for case in suite.iter("testcase")
        if any(error.get("message") == _COLLECTION for error in case.findall("error"))
    ]


def read_run(report: Path, exit_code: int) -> RunReport:
    """A run of pytest by its report and its exit code."""
    ended = f"pytest did not run to its end (exit code {exit_code})"
    try:
        suite = ET.parse(report).getroot()  # noqa: S314 - our pytest wrote it
    except (OSError, ET.ParseError) as error:
        return RunReport(0, (), f"{ended} and left no report: {error}")
    if files := uncollected(suite):
        return RunReport(0, (), f"could not be collected: {', '.join(files)}")
    failures = tuple(failures_of(suite))
    cases = list(suite.iter("testcase"))
    ran = {node_id(case) for case in cases if case.find("skipped") is None}
    broken = None if ran else "no test ran"
    if exit_code not in (_PASSED, _SOME_FAILED):
        broken = ended
    elif bool(failures) != (exit_code == _SOME_FAILED):
        broken = f"pytest ended with {exit_code}, its report has {len(failures)} failures"
    passed = len(ran - {failure.test for failure in failures})
    return RunReport(passed, failures, broken, sum(case.find("skipped") is not None for case in cases))


def run_alone(root: Path, test: str) -> str | None:
    """Run one test in a pytest of its own; return what that printed where it failed, None where it passed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--no-header", "-q", test]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        run = partial(subprocess.run, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = run(command, cwd=root, check=False, timeout=DEADLINE_S).returncode
            end = f"pytest ended with {code}"
        except subprocess.TimeoutExpired:
            code, end = None, f"killed after {DEADLINE_S:g} s"
        output.seek(0)
        return None if code == _PASSED else f"{output.read().strip()}\n({end})"


def say(text: str) -> None:
    """Print at once: what follows may take minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def settle(run: RunReport, again: Callable[[str], str | None]) -> Outcome:
    """Run what failed once more, one test after another, and print what is known of each."""
    failures, broken = run.failures, run.broken
    if len(failures) > MOST:
        broken = broken or f"{len(failures)} tests failed, at most {MOST} are run again"
    if broken is not None:
        say(f"RED {broken}")
        for failure in failures:
            say(f"RED {failure.test}  {failure.error}")
        return Outcome(run.passed, tuple(failure.test for failure in failures) or (broken,))
    failed, flaky = [], []
    for number, failure in enumerate(failures, 1):
        say(f"once more, alone ({number} of {len(failures)}): {failure.test}")
        if (trace := again(failure.test)) is None:
            flaky.append(failure)
            say(f"FLAKY {failure.test}  {failure.error}")
        else:
            failed.append(failure.test)
            say(f"RED {failure.test}  {failure.error}\n-- the first time:\n{failure.trace}\n-- alone:\n{trace}")
    return Outcome(run.passed + len(flaky), tuple(failed), tuple(flaky))


def run_and_settle(arguments: Sequence[str], root: Path = ROOT) -> Outcome:
    """Run pytest with the arguments in a process of its own, then what failed there once more."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", *arguments, f"--junit-xml={report}"]
        code = subprocess.run(command, cwd=root, check=False).returncode  # noqa: S603 - our pytest
        return settle(read_run(report, code), partial(run_alone, root))


def main(arguments: Sequence[str]) -> int:
    """Run, run again, count."""
    # An exception: subprocess.run ends pytest on its way out, which would go on without us.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    outcome = run_and_settle(arguments)
    say(f"{outcome.passed} passed, {len(outcome.failed)} failed")
    return int(outcome.red)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
