"""`tests.bench.thorn_rules` in the lab's machine: flower is to be had there whatever this machine's kernel is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.thorn_rules import RULES
from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import python
from tests.lab.vm.machine import build

WITHIN_S = 900.0


def in_machine(counts: Sequence[int] = RULES, *, changes: int = 100, pyroute2_up_to: int = 100) -> dict[str, Any]:
    """The record of `thorn_rules.measure`, from a machine that is booted for it and switched off.

    Raises:
        MachineError: it cannot be built, or it hangs.
        RuntimeError: the measurement failed; the message holds its output.
    """
    with tempfile.TemporaryDirectory(prefix="turnbuckle-vm-") as directory:
        work = Path(directory)
        guest = Guest(build(work), work)
        try:
            return measured_in(guest, counts, changes=changes, pyroute2_up_to=pyroute2_up_to)
        finally:
            guest.close()


def measured_in(guest: Guest, counts: Sequence[int], *, changes: int, pyroute2_up_to: int) -> dict[str, Any]:
    """As `in_machine`, in one that is there."""
    options = ["--rules", *map(str, counts), "--changes", str(changes), "--pyroute2-up-to", str(pyroute2_up_to)]
    command = f'exec "$0" -m tests.bench.thorn_rules --json "$JOB_DIRECTORY/record.json" {" ".join(options)}'
    ended = guest.run(["sh", "-c", command, python()], within_s=WITHIN_S)
    if ended.exit_code:
        raise RuntimeError(f"exit code {ended.exit_code}\n{ended.output[-4000:]}")
    record: dict[str, Any] = json.loads((ended.directory / "record.json").read_text(encoding="utf-8"))
    return record | {"emulated": True}
