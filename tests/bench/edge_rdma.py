"""Unmodified RDMA with the thesis' messages through a silent fault, between two emulated machines.

``python -m tests.bench.edge_rdma``, as root: minutes, and times are the emulation's. Now and then ib_send_lat polls for
ever there, and is killed: the test sends small messages (tests/lab/test_soft_roce.py).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.lab.vm.machine import build
from tests.lab.vm.rdma_lab import RdmaLab

SIZE_BYTES, MESSAGES = 1 << 23, 12
"""The message size of thesis figure 3.8: 2^23 bytes, by the slides; its text has lost the exponent ("223")."""
WITHIN_S = 900.0


def main() -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        lab = RdmaLab(build(directory), directory)
        try:
            lab.up()
            print(json.dumps(lab.send_through_a_fault(SIZE_BYTES, MESSAGES, WITHIN_S), indent=1))
        finally:
            lab.close()


if __name__ == "__main__":
    main()
