"""bpf(2), for the few commands that need no more than a descriptor."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_NUMBER: Final = {"x86_64": 321, "aarch64": 280}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: ctypes.Array[ctypes.c_uint32] | ctypes.Structure) -> int:
    """Call it with the beginning of ``union bpf_attr`` that the command has.

    Raises:
        OSError: as the kernel answers.
    """
    size = ctypes.sizeof(attributes)
    result: int = _LIBC.syscall(_NUMBER[os.uname().machine], command, ctypes.byref(attributes), size)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf({command}): {os.strerror(number)}")
    return result
