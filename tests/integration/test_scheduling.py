"""The agent's wish to run soon, read back from the kernel."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from services._host import scheduling

READ_BACK = """
import ctypes, os, struct, sys
sys.path.insert(0, sys.argv[1])
from services._host import scheduling
os.nice(3)
reason = scheduling.request_short_slices()
attributes = ctypes.create_string_buffer(48)
getattr_number = {"x86_64": 315}.get(os.uname().machine, 275)
assert ctypes.CDLL(None).syscall(getattr_number, 0, attributes, 48, 0) == 0
print(reason, *struct.unpack("IIQiIQQQ", attributes.raw)[1:6])
"""


def test_short_slices_are_asked_for_and_nothing_else_is_changed():
    """In a process of its own, which would keep them."""
    root = str(Path(__file__).resolve().parents[2])
    output = subprocess.run([sys.executable, "-c", READ_BACK, root], capture_output=True, text=True, check=True).stdout
    reason, policy, _, nice, priority, slice_ns = output.split()

    assert (reason, policy, nice, priority) == ("None", "0", str(min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)), "0")
    assert int(slice_ns) in {scheduling.SLICE_NS, 0}, "kernels before 6.12 have no slices"


def test_an_unknown_machine_is_said(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")

    assert scheduling.request_short_slices() == "unknown system call number on pdp11"


def test_a_refusal_is_said(monkeypatch):
    class Refusing:
        def syscall(self, *_):
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Refusing())

    assert scheduling.request_short_slices() == "Operation not permitted"
