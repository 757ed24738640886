"""A loader of kernel/ in a small process of its own, and the socket that it hands descriptors and records over.

The loader needs the rights to load programs (CAP_BPF and CAP_PERFMON, or root), who starts it none of them. When the
socket closes, the loader ends, and the kernel takes back what it held.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services._host.bpf.records import HEADER_BYTES, VERSION, Kind
from services._runtime.child_process import wait_or_kill

LOAD_DEADLINE_S: Final = 20.0
"""Loading takes some tenths of a second; on a machine that is busy or emulated, many times as long."""
_PACKET_BYTES: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 4
_END_S: Final = 1.0


class KernelProgramsError(Exception):
    """They cannot be used: a sentence for people."""


class Packet(NamedTuple):
    """One datagram of a loader's."""

    kind: int
    payload: bytes
    descriptors: tuple[int, ...] = ()
    """The receiver's."""


class LoaderProcess:
    """A loader that runs."""

    def __init__(self, loader: Path, arguments: Sequence[str]) -> None:
        """Start it.

        Args:
            loader: the program.
            arguments: all but its socket.

        Raises:
            KernelProgramsError: it is not there, or cannot be started.
        """
        if not os.access(loader, os.X_OK):
            raise KernelProgramsError(f"{loader} is not there; build it with: make kernel")
        self._name = loader.name
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [str(loader), *arguments, "--socket", str(other_end.fileno())]
        try:
            with other_end:
                self._process = subprocess.Popen(  # noqa: S603 - this project's program, by its path
                    command, pass_fds=[other_end.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
        except OSError as error:
            self._socket.close()
            raise KernelProgramsError(f"{loader} cannot be started: {error.strerror}") from error

    def packets_until_ready(self) -> Iterator[Packet]:
        """What it sends until everything has been tried; close what they hold also after an error.

        Raises:
            KernelProgramsError: it ends, says nothing for too long, or is of another version.
        """
        deadline_s = time.monotonic() + LOAD_DEADLINE_S
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._socket], [], [], left_s)[0]:
                raise KernelProgramsError(f"{self._name} said nothing for {LOAD_DEADLINE_S:g} s")
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, _PACKET_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if len(data) < HEADER_BYTES:
                raise KernelProgramsError(self._why_ended())
            version, kind = struct.unpack_from("=II", data)
            if descriptors:
                yield Packet(kind, data[HEADER_BYTES:], tuple(descriptors))
            if version != VERSION:
                raise KernelProgramsError(f"{self._name} speaks version {version}, not {VERSION}: make kernel")
            if kind == Kind.READY:
                return
            if not descriptors:
                yield Packet(kind, data[HEADER_BYTES:])

    def _why_ended(self) -> str:
        try:
            return f"{self._name} ended with exit code {self._process.wait(_END_S)}"
        except subprocess.TimeoutExpired:
            return f"{self._name} sends packets of an unknown form"

    def fileno(self) -> int:
        """For an event loop: readable where `waiting_packets` has some."""
        return self._socket.fileno()

    def waiting_packets(self) -> Iterator[Packet]:
        """Those that have come. Raises OSError: the loader has ended."""
        while True:
            try:
                data = self._socket.recv(_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if len(data) < HEADER_BYTES:
                raise OSError(errno.EPIPE, f"{self._name} has ended")
            yield Packet(struct.unpack_from("=II", data)[1], data[HEADER_BYTES:])

    def ask(self) -> None:
        """Let it say what it says when asked. Raises OSError: it has ended."""
        self._socket.send(b"?")

    def close(self) -> None:
        """End the loader: it exits when the socket closes."""
        self._socket.close()
        wait_or_kill(self._process, _END_S)
