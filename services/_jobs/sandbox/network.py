"""Network namespaces of sandboxes, joined by a bridge that lies in a namespace of its own.

They have no names: only open descriptors, mappings and processes keep them, so nothing of them can be left behind, and
nothing is seen in the host's own namespace. Requests run in a thread of their own, which alone is moved; it may
therefore be called from a thread that runs an event loop, too.

Sources: network_namespaces(7), setns(2), tc-tbf(8).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from services._host.netns import CLONE_NEWNET, enter
from services._runtime.install_hint import package_missing

DEVICE: Final = "eth0"
"""A sandbox's device."""
BRIDGE: Final = "cells"
MAX_SANDBOXES: Final = 250 * 250
PREFIX_LENGTH: Final = 16
MAX_RATE_BITS_PER_S: Final = 34_000_000_000
"""tbf's first attribute has 32 bits for the bytes of a second."""
MIN_RATE_BITS_PER_S: Final = 8_000
_LOOPBACK: Final = 1
"""The index of ``lo`` in every namespace."""
_LEAST_BURST_BYTES: Final = 16 << 10
_BURST_S: Final = 0.01
_QUEUE_S: Final = 0.05
_LEAST_QUEUE_BYTES: Final = 64 << 10
_TABLE_BYTES: Final = 16 << 10
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Answer = TypeVar("Answer")


class NetworkUnavailableError(Exception):
    """The kernel refuses to create the network; the message gives the operation and the reason."""


class Traffic(NamedTuple):
    """Traffic of a sandbox's device since its creation."""

    rx_bytes: int
    tx_bytes: int


def address_of(position: int) -> str:
    """The address of the sandbox that was made as number `position`, from 0."""
    return f"10.77.{position // 250}.{position % 250 + 1}"


def check_rate(bits_per_s: int) -> int:
    """Return a rate that tbf can keep.

    Raises:
        ValueError: it cannot.
    """
    if not MIN_RATE_BITS_PER_S <= bits_per_s <= MAX_RATE_BITS_PER_S:
        raise ValueError(f"a rate of {bits_per_s} bit/s is not within 8 kbit/s and 34 Gbit/s")
    return bits_per_s


@dataclass(frozen=True, slots=True)
class NetworkNamespace:
    """A namespace without a name; lives as long as its descriptor, or a process in it."""

    descriptor: int

    @classmethod
    def create(cls) -> Self:
        """A new one, its loopback device up, without IPv6 on other devices (whose chatter would be counted).

        Raises:
            NetworkUnavailableError: the kernel refuses.
        """
        return cls(_apart(_unshare))

    def run(self, work: Callable[[Any], Answer]) -> Answer:
        """Call with a pyroute2 socket of this namespace.

        Raises:
            NetworkUnavailableError: the kernel refuses a request.
        """

        def within() -> Answer:
            enter(self.descriptor)
            return _requested(work)

        return _apart(within)

    def open_traffic(self) -> int:
        """A descriptor of this namespace's table of devices, which can be read from anywhere with `read_traffic`."""

        def within() -> int:
            enter(self.descriptor)
            return os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)

        return _apart(within)

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)


class Switch:
    """A bridge in a namespace of its own; sandboxes are plugged in."""

    def __init__(self) -> None:
        self._namespace = NetworkNamespace.create()
        self._made = 0
        try:
            self._bridge = self._namespace.run(lambda route: make_bridge(route, BRIDGE))
        except NetworkUnavailableError:
            self._namespace.close()
            raise

    def plug(self, sandbox: NetworkNamespace, rate_bits_per_s: int | None) -> str:
        """Connect a sandbox's new device; returns its address. A rate holds in each direction.

        Raises:
            NetworkUnavailableError: the kernel refuses.
        """
        position, self._made = self._made, self._made + 1
        if position >= MAX_SANDBOXES:
            raise NetworkUnavailableError(f"a run has at most {MAX_SANDBOXES} cells")
        port, address = f"port{position}", address_of(position)

        def inside_switch(route: Any) -> None:
            peer = {"ifname": DEVICE, "net_ns_fd": sandbox.descriptor}
            route.link("add", ifname=port, kind="veth", peer=peer)
            index = route.link_lookup(ifname=port)[0]
            _limit(route, index, rate_bits_per_s)
            route.link("set", index=index, master=self._bridge, state="up")

        def inside_sandbox(route: Any) -> None:
            index = route.link_lookup(ifname=DEVICE)[0]
            _limit(route, index, rate_bits_per_s)
            route.addr("add", index=index, address=address, prefixlen=PREFIX_LENGTH)
            route.link("set", index=index, state="up")

        self._namespace.run(inside_switch)
        sandbox.run(inside_sandbox)
        return address

    def close(self) -> None:
        """Let go of the bridge, and of every connection with it."""
        self._namespace.close()


def read_traffic(descriptor: int) -> Traffic:
    """Bytes of `DEVICE` in the table behind this descriptor (proc_net(5)); zeros where there is no such device."""
    for line in os.pread(descriptor, _TABLE_BYTES, 0).decode("ascii").splitlines():
        name, separator, counters = line.partition(":")
        if separator and name.strip() == DEVICE:
            words = counters.split()
            return Traffic(int(words[0]), int(words[8]))
    return Traffic(0, 0)


def _unshare() -> int:
    if _LIBC.unshare(CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare(CLONE_NEWNET)")
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a kernel without IPv6, or a container's read-only /proc/sys
            Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1", encoding="ascii")
        _requested(lambda route: route.link("set", index=_LOOPBACK, state="up"))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_bridge(route: Any, name: str) -> int:
    """Make a bridge in the socket's namespace, and set it up; returns its index."""
    route.link("add", ifname=name, kind="bridge")
    index = int(route.link_lookup(ifname=name)[0])
    route.link("set", index=index, state="up")
    return index


def _limit(route: Any, index: int, bits_per_s: int | None) -> None:
    """Shape what leaves by this device. The bucket holds 10 ms, the queue 50 ms or one large segment more."""
    if bits_per_s is None:
        return
    rate = bits_per_s // 8
    burst = max(_LEAST_BURST_BYTES, int(rate * _BURST_S))
    limit = burst + max(_LEAST_QUEUE_BYTES, int(rate * _QUEUE_S))
    route.tc("add", kind="tbf", index=index, handle=0x10000, rate=rate, burst=burst, limit=limit)


def _requested(work: Callable[[Any], Answer]) -> Answer:
    from pyroute2 import IPRoute, NetlinkError  # type: ignore[import-untyped]  # noqa: PLC0415 - 0.15 s to import

    try:
        with IPRoute() as route:
            return work(route)
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code), "netlink") from error


def _apart(work: Callable[[], Answer]) -> Answer:
    """Run in a thread of its own, so that no other one ever sees another namespace."""
    with ThreadPoolExecutor(1, thread_name_prefix="cell-network") as pool:
        try:
            return pool.submit(work).result()
        except OSError as error:
            raise NetworkUnavailableError(f"{error.filename or 'network'}: {error.strerror}") from error
        except ImportError as error:
            raise NetworkUnavailableError(package_missing(error.name or "pyroute2", "collector")) from error
