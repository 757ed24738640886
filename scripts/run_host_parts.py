"""``make test-host``: the parts of `scripts/host_parts.py`, one after another, each with nothing of ours beside it.

``ROOM=agent`` runs that room's parts and ``CHANGED=main`` those that differ from main; both together what is both.
``ARGS`` goes to pytest, such as ``ARGS="-k drift"`` or ``ARGS="-m core"``; ``ARGS=--list`` prints the table.

Before each part `scripts/ci_clean.sh` removes what a killed run has left. What failed runs again, alone: twice is a
failure, once a line ``FLAKY``. A part ends with one line, the whole with a table; exit code 1 where a test failed
twice, 130 after Ctrl-C, which lets the test's fixtures clean up (a second one does not).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from scripts.host_parts import ROOMS, ROOT, Part, changed_files, differing, of_rooms, table
from scripts.rerun import RunReport, read_run, run_alone, say, settle

CLEAN: Final = ROOT / "scripts" / "ci_clean.sh"
INTERRUPTED: Final = 130
FIXTURES_END_WITHIN_S: Final = 60.0
"""After Ctrl-C; then the tests are killed."""
_NOTHING_FAILED: Final = (0, 5)
"""Exit codes of pytest; 5 is where options such as -k leave none of a part's tests."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a part."""

    part: str
    passed: int
    skipped: int
    failed: tuple[str, ...]
    """Node ids of what failed twice; a run of pytest that broke off counts as one."""
    flaky: tuple[str, ...]
    seconds: float

    def line(self) -> str:
        """The last line of a part."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        counts = f"{self.passed} passed, {len(self.failed)} failed, {len(self.flaky)} flaky{skipped}"
        return f"== test-host: {self.part}: {counts}, {self.seconds:.0f} s"


def clean() -> None:
    """Remove what killed runs have left. It fails never, and this goes on without it."""
    if CLEAN.exists():
        subprocess.run([str(CLEAN)], cwd=ROOT, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 - ours


def pytest_command(part: Part, marks: str | None, options: Sequence[str], directory: Path) -> list[str]:
    """One pytest over the files of a part, which leaves `directory`/report.xml."""
    return [
        *(sys.executable, "-m", "pytest", *part.files),
        *("-m", f"host and ({marks})" if marks else "host"),
        *("-o", f"cache_dir={directory}/cache", f"--junit-xml={directory}/report.xml"),
        *(("--numprocesses", "auto", "--dist", "loadfile") if part.spread else ()),
        *options,
    ]


def run_pytest(command: Sequence[str]) -> int:
    """Run it in a process group of its own and return its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C, once the tests' fixtures have cleaned up; a second one does not wait for that.
    """
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0) as process:  # noqa: S603 - pytest
        try:
            return process.wait()
        except KeyboardInterrupt:
            say("== test-host: interrupted; the fixtures of the test that ran clean up (Ctrl-C: kill them)")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(FIXTURES_END_WITHIN_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def read_part(report: Path, code: int) -> RunReport:
    """What a part's run left; nothing is wrong where options chose none of its tests, or none can run here."""
    run = read_run(report, code)
    return replace(run, broken=None) if code in _NOTHING_FAILED else run


def run_part(part: Part, marks: str | None, options: Sequence[str]) -> Result:
    """Clean up, run a part, run what failed again alone, and print the part's line."""
    say(f"\n== test-host: {part.name}")
    clean()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="test-host-") as directory:
        code = run_pytest(pytest_command(part, marks, options, Path(directory)))
        run = read_part(Path(directory) / "report.xml", code)
    outcome = settle(run, partial(run_alone, ROOT))
    flaky = tuple(failure.test for failure in outcome.flaky)
    result = Result(part.name, outcome.passed, run.skipped, outcome.failed, flaky, time.monotonic() - began_s)
    say(result.line())
    return result


def summary(results: Iterable[Result]) -> str:
    """A line for each part, and each test that failed."""
    lines = [f"{'part':<22}{'passed':>7}{'failed':>7}{'flaky':>7}{'skipped':>8}{'seconds':>8}"]
    for result in results:
        counts = f"{result.passed:>7}{len(result.failed):>7}{len(result.flaky):>7}{result.skipped:>8}"
        lines.append(f"{result.part:<22}{counts}{result.seconds:>8.0f}")
        lines += [f"    failed twice: {test}" for test in result.failed]
        lines += [f"    failed once: {test}" for test in result.flaky]
    return "\n".join(lines)


def chosen_parts(parser: argparse.ArgumentParser, rooms: Sequence[str], changed: str | None) -> list[Part]:
    """Parts by room and by what differs; the parser says what is wrong with either."""
    try:
        parts = of_rooms(rooms)
        return parts if changed is None else differing(parts, changed_files(changed))
    except ValueError as error:
        parser.error(str(error))


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Options that choose parts and tests."""
    parser.add_argument("--room", action="append", default=[], help=f"a part, or one of {', '.join(ROOMS)}")
    parser.add_argument("--changed", metavar="REVISION", help="only parts that differ from it, such as main")
    parser.add_argument("-m", dest="marks", metavar="MARKS", help="only these of the host's tests, such as core")


def end_like_ctrl_c() -> None:
    """Interrupt at SIGINT, also where a shell without job control has it ignored, and at SIGTERM."""

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def main() -> int:
    """Run the chosen parts and say what came of them."""
    parser = argparse.ArgumentParser(prog="make test-host", description=__doc__, allow_abbrev=False)
    add_choice(parser)
    parser.add_argument("--list", action="store_true", help="print the parts that would run, with their files")
    given, options = parser.parse_known_args()
    parts = chosen_parts(parser, given.room, given.changed)
    if given.list:
        say(table(parts))
        return 0
    if given.changed is not None:
        say(f"differing from {given.changed}: {', '.join(part.name for part in parts) or 'no part'}")
    end_like_ctrl_c()
    results, code = [], 0
    try:
        for part in parts:
            results.append(run_part(part, given.marks, options))
            code |= bool(results[-1].failed)
    except KeyboardInterrupt:
        say(f"\n== test-host: {part.name}: interrupted")
        code = INTERRUPTED
    say(f"\n{summary(results)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
