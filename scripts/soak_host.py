"""How often each host test fails: ``make soak-host ARGS="--hours 2 --room agent"`` repeats the parts and counts.

Nothing that failed runs again alone: each run of a part counts. Once the time is up, the part that runs is the last;
Ctrl-C ends sooner, without the part that runs. Either way a table says how often each test failed, of how many runs,
and with what; ``--json FILE`` writes the same to a file. Exit code 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.host_parts import Part
from scripts.rerun import RunReport, say
from scripts.run_host_parts import (
    add_choice,
    chosen_parts,
    clean,
    end_like_ctrl_c,
    pytest_command,
    read_part,
    run_pytest,
)


@dataclass(slots=True)
class Counts:
    """What has come of the runs so far."""

    runs: Counter[str] = field(default_factory=Counter)
    """Of each part to its end; a run of pytest that broke off is a failure of the part itself."""
    part_of: dict[str, str] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    """By node id."""
    errors: dict[str, str] = field(default_factory=dict)
    """First line of the latest failure, by node id."""
    seconds: float = 0.0

    def add(self, part: str, run: RunReport) -> None:
        """Count a run of a part."""
        self.runs[part] += 1
        failed = [(failure.test, failure.error) for failure in run.failures]
        if run.broken is not None:
            failed.append((part, run.broken))
        for test, error in failed:
            self.part_of[test], self.errors[test] = part, error
            self.failures[test] += 1

    def rows(self) -> list[dict[str, str | int]]:
        """A row for each test that failed, the most frequent first."""
        return [
            {
                "test": test,
                "failed": count,
                "runs": self.runs[self.part_of[test]],
                "part": self.part_of[test],
                "error": self.errors[test],
            }
            for test, count in self.failures.most_common()
        ]

    def table(self) -> str:
        """For people."""
        lines = [f"failed {row['failed']} of {row['runs']}: {row['test']}  {row['error']}" for row in self.rows()]
        parts = ", ".join(f"{part} {runs}" for part, runs in self.runs.items())
        return "\n".join([*lines, f"{self.seconds:.0f} s; runs: {parts or 'none'}; failed tests: {len(self.failures)}"])


def soak(parts: Sequence[Part], marks: str | None, options: Sequence[str], hours: float) -> Counts:
    """Repeat the parts in turn until the time is up, or until Ctrl-C."""
    counts, began_s = Counts(), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for part in parts:
                counts.seconds = time.monotonic() - began_s
                if counts.seconds >= hours * 3_600:
                    return counts
                say(f"\n== soak-host: {part.name}, run {counts.runs[part.name] + 1}, after {counts.seconds:.0f} s")
                clean()
                with tempfile.TemporaryDirectory(prefix="soak-host-") as directory:
                    code = run_pytest(pytest_command(part, marks, options, Path(directory)))
                    counts.add(part.name, read_part(Path(directory) / "report.xml", code))
    counts.seconds = time.monotonic() - began_s
    return counts


def main() -> int:
    """Soak the chosen parts."""
    parser = argparse.ArgumentParser(prog="make soak-host", description=__doc__, allow_abbrev=False)
    parser.add_argument("--hours", type=float, default=1.0, help="begin no part after this long (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there, too")
    add_choice(parser)
    given, options = parser.parse_known_args()
    parts = chosen_parts(parser, given.room, given.changed)
    if not parts:
        parser.error(f"no part differs from {given.changed}")
    end_like_ctrl_c()
    counts = soak(parts, given.marks, options, given.hours)
    say(f"\n{counts.table()}")
    if given.json:
        content = {"seconds": counts.seconds, "runs": counts.runs, "failed": counts.rows()}
        given.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return bool(counts.failures)


if __name__ == "__main__":
    sys.exit(main())
