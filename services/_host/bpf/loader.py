"""Loads the programs of kernel/ in a small process of its own, and receives their records over a socket.

The loader needs the rights to load programs (CAP_BPF and CAP_PERFMON, or root), the agent none of them. Whatever is
missing is a reason to read files instead, and never a reason not to start.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from services._host.bpf.cfs_periods import PERIOD_FIELDS
from services._host.bpf.records import HEADER_BYTES, OOM_FIELDS, VERSION, Kind
from services._host.cgroup_snapshot import IntArray
from services._host.kernel_programs import LOADER, loader_command
from services._runtime.child_process import wait_or_kill

LOAD_DEADLINE_S: Final = 20.0
"""Loading takes some tenths of a second; on a machine that is busy or emulated, many times as long."""
STREAM_INTERVAL_MS: Final = 20
"""Records are held back for this long at most: the agent reads them with its sample, and a wakeup costs more."""
_PACKET_BYTES: Final = 1 << 16
_MOST_LINKS: Final = 4
_END_S: Final = 1.0
_STREAMING: Final = {"periods", "decisions", "victims", "throttles", "writers"}
_OK: Final = "ok"


_NO_PERIODS: Final = np.zeros((0, PERIOD_FIELDS), dtype=np.int64)
_NO_OOMS: Final = np.zeros((0, OOM_FIELDS), dtype=np.int64)


class KernelProgramsError(Exception):
    """They cannot be used: a sentence for people."""


class Records(NamedTuple):
    """Records since the last read."""

    periods: IntArray
    """``struct tb_period[]``, shape (M, 8), in the order of time."""
    oom_groups: tuple[int, ...]
    """Memory groups in which the kernel was about to kill, or has."""
    is_whole: bool
    """Nothing was lost meanwhile."""


class KernelPrograms:
    """The loader, once everything has been tried."""

    def __init__(self, directory: Path, hierarchies: Sequence[str]) -> None:
        """Start it.

        Args:
            directory: where the loader and its objects are.
            hierarchies: directories whose groups shall be seen, one per hierarchy.

        Raises:
            KernelProgramsError: there is no loader here, it does not answer, or the kernel refuses the table.
        """
        loader = directory / LOADER
        if not os.access(loader, os.X_OK):
            raise KernelProgramsError(f"{loader} is not there; build it with: make kernel")
        self.links: list[int] = []
        """Iterator links, one per hierarchy, and then the maps that they fill; they are the caller's."""
        self.throttle_ring: int | None = None
        """Ring buffer that becomes readable when a group is throttled; the caller's."""
        self.writers: int | None = None
        """Map of who wrote CPU quotas, by group; the caller's."""
        self.status: list[str] = []
        self._socket, loader_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        interval = ("--interval-ms", str(STREAM_INTERVAL_MS))
        command = loader_command(directory, hierarchies, *interval, "--socket", str(loader_socket.fileno()))
        try:
            with loader_socket:
                self._process = subprocess.Popen(  # noqa: S603 - this project's program, by its path
                    command, pass_fds=[loader_socket.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
        except OSError as error:
            self._socket.close()
            raise KernelProgramsError(f"{loader} cannot be started: {error.strerror}") from error
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + LOAD_DEADLINE_S
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._socket], [], [], left_s)[0]:
                raise KernelProgramsError(f"{LOADER} said nothing for {LOAD_DEADLINE_S:g} s")
            data, descriptors, _, _ = socket.recv_fds(self._socket, _PACKET_BYTES, _MOST_LINKS)
            if len(data) < HEADER_BYTES:
                raise KernelProgramsError(self._why_ended())
            version, kind = struct.unpack_from("=II", data)
            if kind == Kind.THROTTLE_RING:
                (self.throttle_ring,) = descriptors
            elif kind == Kind.WRITERS:
                (self.writers,) = descriptors
            else:
                self.links += descriptors
            if version != VERSION:
                raise KernelProgramsError(f"{LOADER} speaks version {version}, the agent {VERSION}: make kernel")
            if kind == Kind.STATUS:
                self.status.append(data[HEADER_BYTES:].decode(errors="replace"))
            elif kind == Kind.READY:
                if not self.links:
                    raise KernelProgramsError("; ".join(self.status) or f"{LOADER} has no table of control groups")
                return

    def _why_ended(self) -> str:
        try:
            return f"{LOADER} ended with exit code {self._process.wait(_END_S)}"
        except subprocess.TimeoutExpired:
            return f"{LOADER} says what nobody understands"

    @property
    def streams(self) -> bool:
        """Whether the loader has to stay: it holds programs, and records come."""
        return any(f"{name} {_OK}" in self.status for name in _STREAMING)

    @property
    def streams_periods(self) -> bool:
        """Whether each CFS period is recorded."""
        return f"periods {_OK}" in self.status

    def take_records(self) -> Records:
        """Everything that waits. Raises OSError: the loader has ended."""
        periods, ooms, is_whole = [_NO_PERIODS], [_NO_OOMS], True
        while True:
            try:
                data = self._socket.recv(_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if len(data) < HEADER_BYTES:
                raise OSError(errno.EPIPE, f"{LOADER} has ended")
            kind = struct.unpack_from("=II", data)[1]
            if kind == Kind.PERIODS:
                periods.append(np.frombuffer(data, np.int64, offset=HEADER_BYTES).reshape(-1, PERIOD_FIELDS))
            elif kind == Kind.OOMS:
                ooms.append(np.frombuffer(data, np.int64, offset=HEADER_BYTES).reshape(-1, OOM_FIELDS))
            elif kind == Kind.LOST:
                is_whole = False
        return Records(np.concatenate(periods), tuple(np.concatenate(ooms)[:, 0].tolist()), is_whole)

    def take_links(self) -> list[int]:
        """From now on they are closed by the caller."""
        links, self.links = self.links, []
        return links

    def take_throttle_ring(self) -> int | None:
        """From now on it is closed by the caller."""
        throttle_ring, self.throttle_ring = self.throttle_ring, None
        return throttle_ring

    def take_writers(self) -> int | None:
        """From now on it is closed by the caller."""
        writers, self.writers = self.writers, None
        return writers

    def close(self) -> None:
        """End the loader: it exits when the socket closes, and the kernel frees what it held."""
        for descriptor in (*self.take_links(), self.take_throttle_ring(), self.take_writers()):
            if descriptor is not None:
                os.close(descriptor)
        self._socket.close()
        wait_or_kill(self._process, _END_S)
