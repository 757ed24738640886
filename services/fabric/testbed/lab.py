"""A dual-ToR lab: build, attach, inject faults, restore, remove.

    with Lab.up(LabSettings(hosts=3)) as lab:  # `with`: removed at the end
        with lab.fault(Fault(kind=FaultKind.BLACKHOLE, host=1, switch=2)):
            ...                                # processes of yours in lab.topology.hosts[0].application_netns

`Lab.attach("tb")` finds one that `turnbuckle lab up` has made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from services._runtime.command.errors import CommandError, UnavailableError
from services.fabric.testbed import build, connectivity, frr_daemons, sidecars, state_file
from services.fabric.testbed.faults import Fault, changed_ports, check, dead_switches
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.state_file import LabState
from services.fabric.testbed.topology import DualTor, LabSettings

READY_TIMEOUT_S: Final = 60.0
Progress = Callable[[str], None]


def no_progress(_: str) -> None:
    """Discards progress."""


class Lab:
    """One dual-ToR lab on this machine. Methods may be called from any thread, one at a time."""

    def __init__(self, state: LabState) -> None:
        """From its state file; use `up` or `attach`."""
        self._state = state
        self.topology = DualTor.of(state.settings)

    @classmethod
    def up(cls, settings: LabSettings, progress: Progress = no_progress, *, within_s: float = READY_TIMEOUT_S) -> Self:
        """Build one and wait until it is ready (`wait_ready`).

        Raises:
            CommandError: it exists already, something is missing, or it does not get ready. What was made is removed.
        """
        with state_file.lock_lab(settings.prefix):
            state = build.begin(settings, progress)
            lab = cls(state)
            try:
                started_s = time.monotonic()
                build.build(lab.topology, state, progress)
                lab.wait_ready(within_s, progress)
                sidecars.start(lab.topology, state, progress)
                state.ready, state.ready_after_s = True, round(time.monotonic() - started_s, 2)
                state_file.save(state)
            except BaseException:
                progress("it did not get ready: removing it again")
                with suppress(CommandError):
                    build.remove(state, no_progress)
                raise
        return lab

    @classmethod
    def attach(cls, prefix: str) -> Self:
        """An existing lab.

        Raises:
            CommandError: there is none, or it is not complete.
        """
        state = state_file.load(prefix)
        if state is None:
            raise UnavailableError(f"there is no lab {prefix}: turnbuckle lab up dual-tor --prefix {prefix}")
        if not state.ready:
            raise CommandError(f"lab {prefix} is not complete: turnbuckle lab down dual-tor --prefix {prefix}")
        return cls(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def settings(self) -> LabSettings:
        """What it was built with."""
        return self._state.settings

    @property
    def realtime(self) -> bool:
        """Whether FRR runs under SCHED_RR."""
        return self._state.realtime

    @property
    def ready_after_s(self) -> float:
        """How long it took to build."""
        return self._state.ready_after_s

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those in force."""
        return tuple(self._state.faults)

    def down(self, progress: Progress = no_progress) -> list[str]:
        """Remove everything that `up` has made; returns what had to be left, in sentences.

        Raises:
            CommandError: something of the lab cannot be removed.
        """
        with state_file.lock_lab(self.settings.prefix):
            return build.remove(self._state, progress)

    def inject(self, fault: Fault) -> int:
        """Inject a fault; returns CLOCK_MONOTONIC in nanoseconds, just before it.

        Raises:
            CommandError: it is broken already.
            ValueError: the lab has no such thing.
            OSError: the kernel refused.
        """
        check(fault, self.topology)
        self._reload()
        if fault in self._state.faults:
            raise CommandError(f"{fault} is in force already")
        return self._apply_faults([*self._state.faults, fault])

    def restore(self, fault: Fault | None = None) -> int:
        """Restore one fault, or all; returns as `inject`.

        Raises:
            CommandError: this fault is not in force.
            OSError: the kernel refused.
        """
        self._reload()
        if fault is None:
            return self._apply_faults([])
        if fault not in self._state.faults:
            raise CommandError(f"{fault} is not in force")
        return self._apply_faults([other for other in self._state.faults if other != fault])

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[int]:
        """A fault within the block; yields what `inject` returned."""
        at_ns = self.inject(fault)
        try:
            yield at_ns
        finally:
            self.restore(fault)

    def next_hops(self, host: int, to: int) -> frozenset[str]:
        """Uplinks over which the kernel of one host sends to another's VTEP (main table)."""
        with LabNetlink(self.topology.host(host).netns) as netlink:
            return netlink.next_hops(self.topology.host(to).vtep)

    def wait_for_both_uplinks(self, within_s: float = READY_TIMEOUT_S) -> float:
        """Wait until every host has both uplinks to every other; returns the seconds that it took.

        Raises:
            UnavailableError: some have not.
        """
        started_s = time.monotonic()
        if failures := connectivity.wait_until(lambda: connectivity.incomplete_routes(self.topology), within_s):
            raise UnavailableError(f"after {within_s:g} s not over both uplinks: {', '.join(failures)}")
        return time.monotonic() - started_s

    def wait_ready(self, within_s: float = READY_TIMEOUT_S, progress: Progress = no_progress) -> float:
        """As `wait_for_both_uplinks`, and until every application reaches every other, and the switches each other.

        Raises:
            UnavailableError: some do not.
        """
        started_s = time.monotonic()
        progress(f"every host has both uplinks to every other after {self.wait_for_both_uplinks(within_s):.1f} s")
        left_s = within_s - (time.monotonic() - started_s)
        if failures := connectivity.wait_until(self._unreachable, left_s):
            raise UnavailableError(f"after {within_s:g} s packets do not get through: {', '.join(failures)}")
        took_s = time.monotonic() - started_s
        progress(f"every application reaches every other after {took_s:.1f} s")
        return took_s

    def start_reconcilers(self, progress: Progress = no_progress) -> None:
        """A reconciler for every host, also where the kernel lacks what rules need: it watches, and writes nothing.

        Raises:
            UnavailableError: one does not start; holds the end of its log.
        """
        self._reload()
        sidecars.start_reconcilers(self.topology, self._state, progress)

    def sidecars(self) -> dict[str, bool]:
        """Fast paths and reconcilers that were started: whether each still lives."""
        self._reload()
        return {one.name: one.is_alive for one in self._state.processes}

    def status(self) -> dict[str, Any]:
        """Paths, daemons and faults, as `turnbuckle lab status` shows them."""
        topology = self.topology
        return {
            "prefix": self.settings.prefix,
            "hosts": self.settings.hosts,
            "bfd": "off" if self.settings.bfd is None else str(self.settings.bfd),
            "scheduling": "SCHED_RR" if self.realtime else "normal priority",
            "ready_after_s": self.ready_after_s,
            "paths": [
                {"from": one.name, "to": other.name, "uplinks": sorted(self.next_hops(one.number, other.number))}
                for one in topology.hosts
                for other in topology.hosts
                if one is not other
            ],
            "deaf": connectivity.unreachable_pairs(topology),
            "daemons": {netns: sorted(frr_daemons.running(netns)) for netns in topology.routers},
            "companions": self.sidecars(),
            "faults": [str(fault) for fault in self.faults],
        }

    def _unreachable(self) -> list[str]:
        return connectivity.unreachable_pairs(self.topology) + connectivity.unreachable_switches(self.topology)

    def _reload(self) -> None:
        """Another process may have injected faults meanwhile."""
        state = state_file.load(self.settings.prefix)
        if state is None:
            raise UnavailableError(f"lab {self.settings.prefix} has been removed")
        self._state = state

    def _apply_faults(self, faults: list[Fault]) -> int:
        before = self._state.faults
        failed_switches, restored_switches = (
            dead_switches(faults) - dead_switches(before),
            dead_switches(before) - dead_switches(faults),
        )
        # Saved before it is applied: after a crash in between, `restore` still resets every port.
        self._state.faults = faults
        state_file.save(self._state)
        for number in restored_switches:
            build.start_router(self.topology, self._state, self.topology.switch(number).netns)
        changes = changed_ports(self.topology, before, faults)
        at_ns = time.monotonic_ns()
        for netns, ports in changes.items():
            with LabNetlink(netns) as netlink:
                netlink.set_ports(ports)
        frr_daemons.stop([self.topology.switch(number).netns for number in failed_switches], at_once=True)
        return at_ns
