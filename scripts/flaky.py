"""How often tests fail: ``make flaky`` runs the test files that differ from main, each run in a process of its own.

``ARGS="tests/unit/x.py --runs 50"`` chooses files and the number of runs. The exit code is 1 where any run of a test
failed, or where pytest could not run them at all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from scripts.rerun import read_run

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = 20


def changed_test_files(base: str = "main") -> list[str]:
    """Test files that were added or changed since this branch left the base, committed or not."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base, "--", "tests/**/test_*.py"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 - git
    return done.stdout.split()


def run_once(arguments: list[str], directory: Path) -> list[str] | None:
    """The tests that failed; None: pytest did not run to its end, and has said why."""
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", f"--junit-xml={report}", *arguments]
    run = read_run(report, subprocess.run(command, cwd=ROOT, check=False).returncode)  # noqa: S603 - our pytest
    return sorted(failure.test for failure in run.failures) if run.broken is None else None


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
