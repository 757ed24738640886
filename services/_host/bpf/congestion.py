"""The programs for congestion control (kernel/congestion.c): MLTCP, and one that gives a name to a control group."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from services._host.bpf.loader_process import LoaderProcess
from services._host.bpf.records import Kind
from services._host.bpf.syscall import bpf
from services._host.kernel_programs import CONGESTION_LOADER

UNIT: Final = 1024
"""Slope and intercept are in parts of this."""
AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
DEFAULT: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_LINK_CREATE: Final = 28
"""BPF_LINK_CREATE of bpf(2)."""
_CGROUP_SOCK_OPS: Final = 3
"""BPF_CGROUP_SOCK_OPS of enum bpf_attach_type."""
_COUNTERS: Final = struct.Struct("=4Q")


class CongestionCounters(NamedTuple):
    """``struct tb_congestion_counters``: since the programs were loaded, of all connections under MLTCP."""

    flows: int = 0
    iterations: int = 0
    scaled_acks: int = 0
    lost: int = 0


class CongestionPrograms:
    """The loader, once everything has been tried."""

    def __init__(self, directory: Path, mltcp: str, slope: int | None = None, intercept: int | None = None) -> None:
        """Start it.

        Args:
            directory: where the loader and its objects are.
            mltcp: ``off``, ``restricted`` (who may choose any congestion control may choose it) or ``everybody``.
            slope: of MLTCP's function of the share that is sent, in parts of `UNIT`; None: as published.
            intercept: likewise.

        Raises:
            KernelProgramsError: there is no loader here, it does not answer, or the kernel refuses all programs.
        """
        arguments = ["--objects", str(directory), "--mltcp", mltcp]
        for name, value in (("--slope", slope), ("--intercept", intercept)):
            arguments += [name, str(value)] if value is not None else []
        self.sockops: dict[str, int] = {}
        """Programs that give this name to connections of a control group."""
        self.registered: dict[str, str] = {}
        """The name that this host knows it by: another one where several runners offer the same."""
        self.status: dict[str, str] = {}
        """Why a program is not there, by its name; empty: it is."""
        self.counters = CongestionCounters()
        """As of the last `take_iterations`."""
        self._process = LoaderProcess(directory / CONGESTION_LOADER, arguments)
        try:
            for kind, payload, descriptors in self._process.packets_until_ready():
                if kind == Kind.SOCKOPS:
                    name, _, registered = payload.decode().partition(" ")
                    (self.sockops[name],), self.registered[name] = descriptors, registered
                elif kind == Kind.STATUS:
                    name, _, outcome = payload.decode(errors="replace").partition(" ")
                    self.status[name] = outcome.removeprefix("ok").removeprefix("failed: ")
        except BaseException:
            self.close()
            raise

    def attach(self, directory: str, name: str) -> int:
        """Give a congestion control to connections that a group of version 2 makes from now on.

        Returns:
            A link: closed, or with the group removed, it is no more so.

        Raises:
            KeyError: the host does not have this congestion control.
            OSError: the kernel refuses.
        """
        program = self.sockops[name]
        group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return bpf(_LINK_CREATE, (ctypes.c_uint32 * 4)(program, group, _CGROUP_SOCK_OPS, 0))
        finally:
            os.close(group)

    def fileno(self) -> int:
        """For an event loop: readable where `take_iterations` has some."""
        return self._process.fileno()

    def take_iterations(self) -> bytes:
        """``struct tb_iteration[]`` since the last call. Raises OSError: the loader has ended."""
        records = b""
        for kind, payload, _ in self._process.waiting_packets():
            if kind == Kind.ITERATIONS:
                records += payload
            elif kind == Kind.CONGESTION_COUNTERS:
                self.counters = CongestionCounters(*_COUNTERS.unpack(payload))
        return records

    def ask_counters(self) -> None:
        """Let `take_iterations` find counters as of now. Raises OSError: the loader has ended."""
        self._process.ask()

    def close(self) -> None:
        """End the loader: MLTCP is gone from the host."""
        for program in self.sockops.values():
            os.close(program)
        self.sockops.clear()
        self._process.close()
