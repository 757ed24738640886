"""What jobs' workers have sent to other nodes, from the kernel's counters of their TCP connections (sock_diag(7)).

A connection belongs to the worker of which a process has it open, in whatever network namespace. One with both ends in
the same namespace crosses no link and counts for nothing. Connections are found by a dump, now and then; their
counters are then asked for one by one, which costs microseconds on a host with many others.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from services._host.netlink.diag_codec import (
    NETLINK_SOCK_DIAG,
    TcpCounters,
    TcpSocket,
    counters_request,
    dump_request,
    read_counters,
    read_socket,
)
from services._host.netlink.socket import NetlinkSocket, Request
from services.runner.core.sending_phases import MOVED_BYTES

_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_RECEIVE_BYTES: Final = 1 << 20
_SOCKET: Final = "socket:["


class JobKey(NamedTuple):
    """One attempt of a job."""

    job: str
    attempt: int


class Processes(NamedTuple):
    """One worker's."""

    first: int
    """By whose network namespace its connections are found."""
    all: Iterable[int]
    """Asked for only where a connection is new."""


@dataclass(slots=True)
class _Connection:
    identity: bytes
    request: Request
    """For its counters."""
    counters: TcpCounters
    moved_bytes: int = 0
    """Since the last `JobTraffic.read`."""
    busy_us: int = 0
    """Likewise."""

    @property
    def quiet_us(self) -> int:
        """Since it has sent payload last."""
        return self.counters.quiet_ms * 1_000


@dataclass(slots=True)
class Sent:
    """What a job has sent to other nodes since its connections were found first; never falls."""

    sent_bytes: int = 0
    drops: int = 0
    """Segments that were sent again."""
    congestion_control: str = ""
    """Of its connections; empty: it has none."""
    busy_ns: int | None = None
    """Of the time since the last read: from when one of its connections had something to send until one has sent last;
    None: not known."""
    quiet_ns: int = 0
    """Since payload was sent last; only where something was since the last read, and `busy_ns` is known."""


@dataclass(slots=True)
class _Job:
    network: _Network
    sent: Sent = field(default_factory=Sent)
    connections: dict[bytes, _Connection] = field(default_factory=dict)
    """By identity."""

    def update(self, connection: _Connection, counters: TcpCounters) -> None:
        before = connection.counters
        moved_bytes = max(0, counters.sent_bytes - before.sent_bytes)
        self.sent.sent_bytes += moved_bytes
        self.sent.drops += max(0, counters.retransmitted - before.retransmitted)
        connection.moved_bytes += moved_bytes
        connection.busy_us += max(0, (counters.busy_us or 0) - (before.busy_us or 0))
        connection.counters = counters

    def note_times(self) -> None:
        """What the kernel knows of the time since the last call."""
        all_moved = [each for each in self.connections.values() if each.moved_bytes]
        # Heartbeats on other connections say nothing of a gradient's times.
        moved = [each for each in all_moved if each.moved_bytes > MOVED_BYTES] or all_moved
        known = all(each.counters.busy_us is not None for each in self.connections.values())
        quiet_us = min((each.quiet_us for each in moved), default=0)
        begun_us = max((each.quiet_us + each.busy_us for each in moved), default=0)
        self.sent.busy_ns = (begun_us - quiet_us) * 1_000 if known else None
        self.sent.quiet_ns = quiet_us * 1_000
        for each in self.connections.values():
            each.moved_bytes = each.busy_us = 0


class _Network:
    """Connections of one network namespace."""

    def __init__(self, netns: str | None) -> None:
        self._socket = NetlinkSocket(netns, receive_bytes=_RECEIVE_BYTES, protocol=NETLINK_SOCK_DIAG)
        self.owners: dict[int, JobKey | None] = {}
        """By inode, of the last dump; None: no job's."""

    def dump(self) -> list[TcpSocket]:
        """Those to other nodes."""
        found = [
            read_socket(message.payload) for family in _FAMILIES for message in self._socket.dump(dump_request(family))
        ]
        ends = {(each.local, each.remote) for each in found}
        return [each for each in found if (each.remote, each.local) not in ends and not _is_loopback(each.remote[0])]

    def ask(self, connections: Sequence[_Connection]) -> list[bytes | None]:
        return self._socket.ask([each.request for each in connections])

    def close(self) -> None:
        self._socket.close()


class JobTraffic:
    """Counters of jobs' connections."""

    def __init__(self) -> None:
        self._networks: dict[tuple[int, int], _Network] = {}
        self._jobs: dict[JobKey, _Job] = {}

    def find(self, jobs: Mapping[JobKey, Sequence[Processes]]) -> None:
        """Find the connections of these jobs; others are forgotten. What a new connection has sent so far is left out.

        Raises:
            OSError: a namespace cannot be entered, or the kernel refuses.
            NetlinkError: its answer makes no sense.
        """
        own = Path("/proc/self/ns/net").stat() if jobs else None
        wanted = {key: self._network_of(workers, own) for key, workers in jobs.items()}
        if wanted.keys() - self._jobs.keys():  # a connection that was no job's may be theirs
            for network in self._networks.values():
                network.owners.clear()
        kept = {key: self._jobs.get(key) for key in wanted}
        self._jobs = {
            key: known if known is not None and known.network is network else _Job(network)
            for (key, network), known in zip(wanted.items(), kept.values(), strict=True)
            if network is not None
        }
        for network in {id(job.network): job.network for job in self._jobs.values()}.values():
            self._find_in(network, {key: jobs[key] for key, job in self._jobs.items() if job.network is network})
        used = [job.network for job in self._jobs.values()]
        for place, network in list(self._networks.items()):
            if network not in used:
                self._networks.pop(place).close()

    def _network_of(self, workers: Sequence[Processes], own: os.stat_result | None) -> _Network | None:
        """Of the first worker; None: it has ended."""
        for worker in workers:
            path = f"/proc/{worker.first}/ns/net"
            with suppress(FileNotFoundError, ProcessLookupError):
                found = Path(path).stat()
                place = (found.st_dev, found.st_ino)
                if place not in self._networks:
                    is_own = own is not None and os.path.samestat(found, own)
                    self._networks[place] = _Network(None if is_own else path)
                return self._networks[place]
        return None

    def _find_in(self, network: _Network, jobs: Mapping[JobKey, Sequence[Processes]]) -> None:
        found = [each for each in network.dump() if each.inode]
        owners = {each.inode: network.owners.get(each.inode) for each in found}
        if owners.keys() - network.owners.keys():
            for key, workers in jobs.items():
                for inode in _open_sockets(pid for worker in workers for pid in worker.all):
                    if inode in owners:
                        owners[inode] = key
        network.owners = owners
        for key in jobs:
            self._keep(self._jobs[key], [each for each in found if owners[each.inode] == key])

    @staticmethod
    def _keep(job: _Job, found: Sequence[TcpSocket]) -> None:
        known = job.connections
        job.connections = {}
        for each in found:
            connection = known.get(each.identity) or _Connection(each.identity, counters_request(each), each.counters)
            job.update(connection, each.counters)
            job.connections[each.identity] = connection
        job.sent.congestion_control = max((each.congestion_control for each in found), default="")

    def has_connections(self, key: JobKey) -> bool:
        """Whether a job has any connection to another node."""
        return key in self._jobs and bool(self._jobs[key].connections)

    def read(self, keys: Iterable[JobKey]) -> dict[JobKey, Sent]:
        """What some jobs have sent; those without connections are left out.

        Raises:
            OSError: the kernel refuses.
            NetlinkError: its answer makes no sense.
        """
        asked = {key: self._jobs[key] for key in keys if self.has_connections(key)}
        for network in {id(job.network): job.network for job in asked.values()}.values():
            rows = [
                (job, each) for job in asked.values() if job.network is network for each in job.connections.values()
            ]
            for (job, connection), answer in zip(rows, network.ask([each for _, each in rows]), strict=True):
                counters = None if answer is None else read_counters(answer)
                if counters is None:
                    del job.connections[connection.identity]
                else:
                    job.update(connection, counters)
        for job in asked.values():
            job.note_times()
        return {key: job.sent for key, job in asked.items()}

    def close(self) -> None:
        """Let go of the namespaces."""
        self._jobs.clear()
        for network in self._networks.values():
            network.close()
        self._networks.clear()


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _open_sockets(pids: Iterable[int]) -> Iterator[int]:
    """Inodes of the sockets that processes have open; those of others' processes are left out."""
    for pid in pids:
        directory = f"/proc/{pid}/fd"
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115 - hundreds of them
                    if target.startswith(_SOCKET):
                        yield int(target[len(_SOCKET) : -1])
