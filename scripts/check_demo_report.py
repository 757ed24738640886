"""What ``make run ARGS="--for 10 --json"`` must have done: ``python -m scripts.check_demo_report < report.json``.

The main job on real control groups: containers of one application were sampled, and none was given a limit that the
kernel held already. Figures that depend on the machine's speed are printed and not asserted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

CONTAINERS: Final = 5
SHOWN: Final = ("containers", "periods", "decisions", "quota_writes", "memory_writes", "no_op_writes", "oom_kills")


def faults(report: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the report of `turnbuckle up --demo`."""
    if report["maker"] == "simulated":
        yield f"the host was simulated, so no control group was written: {'; '.join(report['notes']) or 'no reason'}"
    if report["containers"] != CONTAINERS:
        yield f"{report['containers']} containers were seen instead of {CONTAINERS}"
    if report["periods"] <= 0:
        yield "no period was sampled"
    if not report["quota_writes"]:
        yield "no CPU quota was written"
    if report["no_op_writes"] != 0:
        yield f"{report['no_op_writes']} writes set the value that the kernel held already"


def main() -> int:
    """Print figures, then faults."""
    try:
        report = json.load(sys.stdin)
    except ValueError as error:
        sys.stdout.write(f"demo: its report is no JSON: {error}\n")
        return 1
    sys.stdout.write(f"demo ({report['maker']}): {', '.join(f'{name} {report[name]}' for name in SHOWN)}\n")
    found = list(faults(report))
    sys.stdout.writelines(f"demo: {fault}\n" for fault in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
