"""`tests.bench.thorn_rules` in the lab's machine: flower is to be had there whatever this machine's kernel is.

``make bench-thorn-rules``. Emulated, so only ratios between the ways to write the same rules mean something.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, write_record
from tests.bench.thorn_rules import Extent
from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import python
from tests.lab.vm.machine import build, missing

WITHIN_S = 900.0


def in_machine(extent: Extent | None = None) -> dict[str, Any]:
    """The record of `thorn_rules.measure`, from a machine that is booted for it and switched off.

    Raises:
        MachineError: it cannot be built, or it hangs.
        RuntimeError: the measurement failed; the message holds its output.
    """
    with tempfile.TemporaryDirectory(prefix="turnbuckle-vm-") as directory:
        work = Path(directory)
        guest = Guest(build(work), work)
        try:
            return measured_in(guest, extent or Extent())
        finally:
            guest.close()


def measured_in(guest: Guest, extent: Extent) -> dict[str, Any]:
    """As `in_machine`, in one that is there."""
    options = [
        *("--rules", *map(str, extent.counts)),
        *("--changes", str(extent.changes)),
        *("--tc-batch-up-to", str(extent.tc_batch_up_to)),
        *("--pyroute2-up-to", str(extent.pyroute2_up_to)),
    ]
    command = f'exec "$0" -m tests.bench.thorn_rules --json "$JOB_DIRECTORY/record.json" {" ".join(options)}'
    ended = guest.run(["sh", "-c", command, python()], within_s=WITHIN_S)
    if ended.exit_code:
        raise RuntimeError(f"exit code {ended.exit_code}\n{ended.output[-4000:]}")
    record: dict[str, Any] = json.loads((ended.directory / "record.json").read_text(encoding="utf-8"))
    print(ended.output.strip())
    return record | {"emulated": True, "machine": this_machine().as_dict()}


def main() -> int:
    """Measure and write the record; 69 where no machine can be built."""
    if reason := missing():
        print(f"bench-thorn-rules: {reason}", file=sys.stderr)
        return UNAVAILABLE
    print(f"written: {write_record(in_machine(), OUTPUT / 'thorn_rules.json')}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
