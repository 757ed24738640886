"""When the agent runs: a growing container fills tens of MiB while the agent waits for a processor.

Sources: sched_setattr(2), Documentation/scheduler/sched-eevdf.rst.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

SLICE_NS: Final = 100_000
"""The shortest that the kernel takes. Measured on 2 processors with 6 busy processes: woken within 0.1 ms in 90 of 100
cases instead of 3.8 ms. It changes who runs first, not who gets how much."""
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_SCHED_OTHER: Final = 0
_ATTRIBUTES: Final = struct.Struct("IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime (the slice), deadline, period."""


def request_short_slices() -> str | None:
    """Ask the default scheduler to run us soon after each wake-up; needs no privilege. Returns why not, or None.

    Kernels before 6.12 take the request and ignore it. Child processes inherit it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return f"unknown system call number on {platform.machine()}"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0):
        return os.strerror(ctypes.get_errno())
    return None


def become_realtime(priority: int) -> str | None:
    """SCHED_FIFO for this process, not for its children. Returns why not, or None."""
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError as error:
        return error.strerror or str(error)
    return None
