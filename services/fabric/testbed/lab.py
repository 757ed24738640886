"""A lab: built, found again, broken, mended, removed.

    with Lab.up(LabSettings(hosts=3)) as lab:  # `with`: removed at the end
        with lab.fault(Fault.blackhole(host=1, switch=2)):
            ...                                # processes of yours in lab.topology.hosts[0].application_netns

`Lab.attach("tb")` finds one that `turnbuckle lab up` has made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from services._runtime.command.failure import CommandError, UnavailableError
from services.fabric.testbed import build, companions, frr_daemons, reach, record
from services.fabric.testbed.faults import Fault, changed_ports, check, dead_switches
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.record import LabRecord
from services.fabric.testbed.topology import DualTor, LabSettings

READY_WITHIN_S: Final = 60.0
Progress = Callable[[str], None]


def silent(_: str) -> None:
    """No progress is told."""


class Lab:
    """One dual-ToR lab on this machine. Methods may be called from any thread, one at a time."""

    def __init__(self, held: LabRecord) -> None:
        """From its record; use `up` or `attach`."""
        self._record = held
        self.topology = DualTor.of(held.settings)

    @classmethod
    def up(cls, settings: LabSettings, progress: Progress = silent, *, within_s: float = READY_WITHIN_S) -> Self:
        """Build one and wait until it is whole (`wait_ready`).

        Raises:
            CommandError: it exists already, something is missing, or it does not get ready. What was made is removed.
        """
        with record.hold(settings.prefix):
            held = build.begin(settings, progress)
            lab = cls(held)
            try:
                started_s = time.monotonic()
                build.build(lab.topology, held, progress)
                lab.wait_ready(within_s, progress)
                companions.start(lab.topology, held, progress)
                held.ready, held.ready_after_s = True, round(time.monotonic() - started_s, 2)
                record.save(held)
            except BaseException:
                progress("it did not get ready: removing it again")
                with suppress(CommandError):
                    build.remove(held, silent)
                raise
        return lab

    @classmethod
    def attach(cls, prefix: str) -> Self:
        """The lab that stands already.

        Raises:
            CommandError: there is none, or it is not complete.
        """
        held = record.load(prefix)
        if held is None:
            raise UnavailableError(f"there is no lab {prefix}: turnbuckle lab up dual-tor --prefix {prefix}")
        if not held.ready:
            raise CommandError(f"lab {prefix} is not complete: turnbuckle lab down dual-tor --prefix {prefix}")
        return cls(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def settings(self) -> LabSettings:
        """What it was built with."""
        return self._record.settings

    @property
    def realtime(self) -> bool:
        """Whether FRR runs under SCHED_RR."""
        return self._record.realtime

    @property
    def ready_after_s(self) -> float:
        """How long it took to build."""
        return self._record.ready_after_s

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those in force."""
        return tuple(self._record.faults)

    def down(self, progress: Progress = silent) -> list[str]:
        """Remove everything that `up` has made; returns what had to be left, in sentences.

        Raises:
            CommandError: something of ours cannot be removed.
        """
        with record.hold(self.settings.prefix):
            return build.remove(self._record, progress)

    def inject(self, fault: Fault) -> int:
        """Break something; returns CLOCK_MONOTONIC in nanoseconds, just before it broke.

        Raises:
            CommandError: it is broken already.
            ValueError: the lab has no such thing.
            OSError: the kernel refused.
        """
        check(fault, self.topology)
        self._reload()
        if fault in self._record.faults:
            raise CommandError(f"{fault} is in force already")
        return self._become([*self._record.faults, fault])

    def restore(self, fault: Fault | None = None) -> int:
        """Mend one fault, or all; returns as `inject`.

        Raises:
            CommandError: this fault is not in force.
            OSError: the kernel refused.
        """
        self._reload()
        if fault is None:
            return self._become([])
        if fault not in self._record.faults:
            raise CommandError(f"{fault} is not in force")
        return self._become([other for other in self._record.faults if other != fault])

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[int]:
        """Broken within the block; gives what `inject` returned."""
        at_ns = self.inject(fault)
        try:
            yield at_ns
        finally:
            self.restore(fault)

    def next_hops(self, host: int, to: int) -> frozenset[str]:
        """Uplinks over which the kernel of one host sends to another's VTEP (main table)."""
        with LabNetlink(self.topology.host(host).netns) as netlink:
            return netlink.next_hops(self.topology.host(to).vtep)

    def wait_wide(self, within_s: float = READY_WITHIN_S) -> float:
        """Wait until every host has both uplinks to every other; returns the seconds that it took.

        Raises:
            UnavailableError: some have not.
        """
        started_s = time.monotonic()
        if wrong := reach.wait_until(lambda: reach.narrow_paths(self.topology), within_s):
            raise UnavailableError(f"after {within_s:g} s not over both uplinks: {', '.join(wrong)}")
        return time.monotonic() - started_s

    def wait_ready(self, within_s: float = READY_WITHIN_S, progress: Progress = silent) -> float:
        """As `wait_wide`, and until every application reaches every other, and the switches each other.

        Raises:
            UnavailableError: some do not.
        """
        started_s = time.monotonic()
        progress(f"every host has both uplinks to every other after {self.wait_wide(within_s):.1f} s")
        left_s = within_s - (time.monotonic() - started_s)
        if wrong := reach.wait_until(self._deaf, left_s):
            raise UnavailableError(f"after {within_s:g} s packets do not get through: {', '.join(wrong)}")
        took_s = time.monotonic() - started_s
        progress(f"every application reaches every other after {took_s:.1f} s")
        return took_s

    def restart_frr(self, netns: str, *, at_once: bool = False) -> None:
        """Stop one router's FRR (`at_once`: kill -9) and start it again with the same configuration.

        Raises:
            CommandError: it does not end, or does not start.
        """
        frr_daemons.stop([netns], at_once=at_once)
        build.start_router(self.topology, self._record, netns)

    def start_reconcilers(self, progress: Progress = silent) -> None:
        """A reconciler for every host, also where the kernel lacks what rules need: it watches, and writes nothing.

        Raises:
            UnavailableError: one does not start; holds the end of its log.
        """
        self._reload()
        companions.start_reconcilers(self.topology, self._record, progress)

    def companions(self) -> dict[str, bool]:
        """Fast paths and reconcilers that were started: whether each still lives."""
        self._reload()
        return {one.name: record.start_ticks(one.pid) == one.start_ticks for one in self._record.processes}

    def _deaf(self) -> list[str]:
        return reach.deaf_pairs(self.topology) + reach.deaf_switches(self.topology)

    def _reload(self) -> None:
        """Another process may have injected faults meanwhile."""
        held = record.load(self.settings.prefix)
        if held is None:
            raise UnavailableError(f"lab {self.settings.prefix} has been removed")
        self._record = held

    def _become(self, faults: list[Fault]) -> int:
        before = self._record.faults
        died, lives = dead_switches(faults) - dead_switches(before), dead_switches(before) - dead_switches(faults)
        # Written before it is done: after a crash in between, restore puts every port right all the same.
        self._record.faults = faults
        record.save(self._record)
        for number in lives:
            build.start_router(self.topology, self._record, self.topology.switch(number).netns)
        changes = changed_ports(self.topology, before, faults)
        at_ns = time.monotonic_ns()
        for netns, ports in changes.items():
            with LabNetlink(netns) as netlink:
                netlink.set_ports(ports)
        frr_daemons.stop([self.topology.switch(number).netns for number in died], at_once=True)
        return at_ns
