"""How often tests fail: ``make flaky`` runs the test files that differ from main, each run in a process of its own.

``ARGS="tests/unit/x.py --runs 50"`` chooses files and the number of runs. The exit code is 1 where any run of a test
failed, or where pytest could not run them at all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = 20
_FINISHED: Final = (0, 1)
"""Exit codes of pytest after a run to its end; others are usage errors, no tests, or an interruption."""


def changed_test_files(base: str = "main") -> list[str]:
    """Test files that were added or changed since this branch left the base, committed or not."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base, "--", "tests/**/test_*.py"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 - git
    return done.stdout.split()


def failed_tests(report: Path) -> Iterator[str]:
    """Names of the tests with a failure or an error, once each, out of a JUnit report."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our pytest wrote it
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.attrib['classname']}::{case.attrib['name']}"


def run_once(arguments: list[str], directory: Path) -> list[str] | None:
    """The tests that failed; None: pytest did not run to its end, and has said why."""
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", f"--junit-xml={report}", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603 - our pytest
    return sorted(set(failed_tests(report))) if code in _FINISHED else None


def main() -> int:
    """Run the tests again and again, and count."""
    parser = argparse.ArgumentParser(description="how often each test fails", prog="make flaky")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="how often (default: %(default)s)")
    options, arguments = parser.parse_known_args()
    arguments = arguments or changed_test_files()
    if not arguments:
        sys.stdout.write("no test file differs from main\n")
        return 0
    failures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.runs):
            failed = run_once(arguments, Path(directory))
            if failed is None:
                return 1
            failures.update(failed)
    for test, count in failures.most_common():
        sys.stdout.write(f"failed {count} of {options.runs}: {test}\n")
    sys.stdout.write(f"{options.runs} runs of {' '.join(arguments)}: {len(failures)} tests failed at least once\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
