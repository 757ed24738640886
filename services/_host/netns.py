"""Sockets and commands in a network namespace that is not this process' own.

A service that looks after a namespace need not live in it: its sockets are made there, its bus stays reachable here.
A namespace is a name below /run/netns (``ip netns``), a path, or None for our own.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NETNS_DIRECTORY: Final = Path("/run/netns")
CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def netns_path(netns: str) -> Path:
    """The file that stands for a namespace."""
    return Path(netns) if "/" in netns else NETNS_DIRECTORY / netns


@contextmanager
def inside(netns: str | None) -> Iterator[None]:
    """Put the calling thread into a namespace until the end of the block. Never await inside.

    Raises:
        OSError: there is no such namespace, or no right to enter it.
    """
    if netns is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        entered = os.open(netns_path(netns), os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(entered)
        finally:
            os.close(entered)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)


def socket_in(netns: str | None, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of a namespace, usable from anywhere.

    Raises:
        OSError: as `inside`, or the socket cannot be made.
    """
    with inside(netns):
        return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)


def command_in(netns: str | None, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a namespace."""
    if netns is None:
        return list(command)
    return ["nsenter", f"--net={netns_path(netns)}", "--", *command]


def enter(descriptor: int) -> None:
    """Move the calling thread into a namespace for good.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
