"""A host that swaps: which slabs of its swap devices go to remote memory, and back, round by round.

A round reads page I/O, compares each slab with the kernel, carries out evictions, and maps one slab at most, since each
mapping copies a slab from the disk. What a round needs of other hosts comes by `Peers`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from schemas.remote_memory import SlabChange, SlabReply
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services._runtime.telemetry.tracing import span
from services.memory.adapters.nbd_device import NbdDeviceError
from services.memory.adapters.programs import ProgramError
from services.memory.core.block_path import copied_within_s
from services.memory.core.mapping import Event, Evicted, Lost, Slab, State
from services.memory.core.placing import CHOICES, Activity, Choice, Daemon, NoRoom, choose, slabs_to_map
from services.memory.journal import JournalError, Record
from services.memory.mapper import Failure, SwapDevice, SwapDeviceError, UnusableExportError
from services.memory.swap_devices import DeviceBusyError, SwapDevices

ROUND_S: Final = 1.0
PROBE_S: Final = 5.0
"""Between two questions to all daemons whether they answer."""
RETRY_S: Final = 10.0
"""After a slab could not be mapped: for any slab of the swap device."""
AVOID_S: Final = 60.0
"""A host that wanted its memory back, was lost, or gave what cannot be used, gets nothing for so long; one that refused
is asked only where no other one has room."""
_LOG_EVERY_S: Final = 60.0
_ERRORS: Final = (ProgramError, NbdDeviceError, JournalError, SwapDeviceError, OSError)


class Cause(StrEnum):
    """Why a slab that swaps enough was not mapped."""

    NO_TRUSTED_HOST = "no_trusted_host"
    HOSTS_NOT_KNOWN = "hosts_not_known"
    NO_ROOM = "no_room"
    REFUSED = "refused"
    """By the host that was asked for it; or it did not answer."""
    UNUSABLE = "unusable"
    """What the host gave: it cannot be reached, or is not what was asked for."""
    STEP_FAILED = "step_failed"
    """Here."""


class PeersError(Exception):
    """Another host gives no slab, or cannot be asked; the text says why."""

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause = cause


class Peers(Protocol):
    """Other hosts."""

    async def daemons(self) -> Sequence[Daemon]:
        """Those that offer memory, as they said last; without this host's own."""

    async def take(self, daemon: Daemon, device: str, slab_bytes: int) -> SlabReply:
        """A slab of a daemon.

        Raises:
            PeersError: it gives none, or one that cannot be used.
        """

    def publish(self, device: str, change: SlabChange, slab: Slab, report: Report) -> None:
        """Say what became of a slab."""


@dataclass(frozen=True, slots=True)
class Report:
    """Why, and what was measured, of a change."""

    slab_bytes: int
    reason: str
    pages_per_s: float


@dataclass(slots=True)
class _Device:
    """What is known of a swap device beside its journal, since this process has seen it first."""

    recovered: bool = False
    slabs: tuple[Slab, ...] = ()
    """After the last round."""
    pages: dict[int, int] = field(default_factory=dict)
    """Counts of the last round, by slab."""
    counted_s: float = 0.0
    activities: dict[int, Activity] = field(default_factory=dict)
    events: dict[tuple[int, int], Event] = field(default_factory=dict)
    """To be taken in the next round, by slab and attempt: one each, however often a daemon says the same."""
    map_after_s: float = 0.0
    probed_s: float = 0.0
    probing: asyncio.Task[None] | None = None
    copying: dict[tuple[int, int], float] = field(default_factory=dict)
    """Since when a slab is copied, by slab and attempt."""
    said: set[Cause] = field(default_factory=set)
    """Why slabs were not mapped, as it was published since the last one was."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What the kernel and the journal said in a round."""

    before: tuple[Slab, ...]
    record: Record
    failures: tuple[Failure, ...]
    pages: dict[int, int]


class Consumer:
    """The swap devices of this host."""

    def __init__(
        self, devices: SwapDevices, peers: Peers, clock: Clock, log: Logger, map_above_pages_per_s: float
    ) -> None:
        self._files = devices
        self._peers = peers
        self._clock = clock
        self._log = log
        self._map_above = map_above_pages_per_s
        self._devices: dict[str, _Device] = {}
        self._avoided: dict[str, float] = {}
        """Hosts by their names on the bus, and until when. Not by addresses: a host registers whichever it likes."""
        self._refused: dict[str, float] = {}
        """So, too."""
        self.not_mapped = Counter[str](dict.fromkeys(Cause, 0))
        """How often a slab that swaps enough was not mapped, by cause."""
        self._random = random.SystemRandom()
        self._limiter = LogLimiter()
        self.failed_steps = 0

    async def run(self) -> None:
        """Round after round."""
        while True:
            await self.round()
            await self._clock.sleep_until(self._clock.monotonic() + ROUND_S)

    def by_state(self) -> dict[str, float]:
        """Slabs of all swap devices by state."""
        counts = {state.value: 0.0 for state in State}
        for device in self._devices.values():
            for slab in device.slabs:
                counts[slab.state.value] += 1
        return counts

    def evict(self, host: str, label: str, reason: str) -> None:
        """A host wants the memory of a slab back that it has given; a label of another one's is left alone."""
        for device in self._devices.values():
            for slab in device.slabs:
                if (slab.host, slab.label) == (host, label):
                    device.events.setdefault((slab.number, slab.attempt), Evicted(slab.attempt, reason))

    async def round(self) -> None:
        """One round of each swap device; one that fails does not keep the others."""
        names = self._files.names()
        for name in set(self._devices) - set(names):
            del self._devices[name]
        for name in names:
            try:
                await self._round_of(name)
            except DeviceBusyError:
                continue  # `turnbuckle swap` attaches or detaches it
            except _ERRORS as error:
                self._failed(name, str(error))

    def _failed(self, name: str, error: str) -> None:
        self.failed_steps += 1
        log_once(self._log.warning, self._limiter, "mapper_step_failed", _LOG_EVERY_S, device=name, error=error)

    async def _round_of(self, name: str) -> None:
        known = self._devices.get(name) or _Device()
        step = await asyncio.to_thread(self._step, name, known)
        if step is None:
            self._devices.pop(name, None)
            return
        self._devices[name] = known
        for failure in step.failures:
            self._failed(name, f"slab {failure.slab}: {failure.error}")
        now_s = self._clock.monotonic()
        self._count(known, step.pages, now_s)
        self._took_place(name, known, step.before, step.record)
        self._bound_copies(known, step.record, now_s)
        self._probe(name, known, now_s)
        if now_s >= known.map_after_s:
            await self._map_one(name, known, step.record)

    def _step(self, name: str, known: _Device) -> _Step | None:
        """Everything that blocks; None: it is not attached, or a command is half way: `detach` ends that."""
        with self._files.locked(name) as device:
            if device.record is None or not device.record.attached:
                return None
            before, failures = device.record.slabs, self._carry_out(device, known)
            return _Step(before, device.record, tuple(failures), device.pages())

    @staticmethod
    def _carry_out(device: SwapDevice, known: _Device) -> list[Failure]:
        if not known.recovered:
            failures = device.recover()
            known.recovered = True
            return failures
        events, known.events = known.events, {}
        for (number, _), event in events.items():
            device.apply(number, event)
        return device.advance()

    @staticmethod
    def _count(known: _Device, pages: dict[int, int], now_s: float) -> None:
        elapsed_s = now_s - known.counted_s
        if known.pages and elapsed_s > 0:
            for number, count in pages.items():
                moved = max(0, count - known.pages.get(number, count))  # a device of the same name that was made anew
                known.activities[number] = known.activities.get(number, Activity()).after(moved, elapsed_s)
        known.pages, known.counted_s = pages, now_s

    # -- what took place ---------------------------------------------------------------------------------------------

    def _took_place(self, name: str, known: _Device, before: Sequence[Slab], record: Record) -> None:
        for was, slab in zip(before, record.slabs, strict=True):
            if was.state is State.MAPPING and slab.state is State.REMOTE:
                self._say(name, known, SlabChange.MAPPED, replace(slab, reason=""), record)
            elif was.state in {State.MAPPING, State.REMOTE, State.DRAINING} and slab.state is State.DISK:
                if known.slabs:  # otherwise it is this process that has interrupted the mapping
                    self._avoided[was.host] = self._clock.monotonic() + AVOID_S
                left = replace(slab, daemon=was.daemon, label=was.label)
                self._say(name, known, SlabChange.FALLEN_BACK, left, record)
        known.slabs = record.slabs

    def _say(self, name: str, known: _Device, change: SlabChange, slab: Slab, record: Record) -> None:
        activity = known.activities.get(slab.number, Activity())
        report = Report(record.layout.slab_bytes, slab.reason, activity.pages_per_s)
        keys = {"device": name, "slab": slab.number, "daemon": slab.daemon, "reason": slab.reason or None}
        self._log.info("slab_changed", change=str(change), **keys)
        self._peers.publish(name, change, slab, report)

    # -- daemons that do not answer, or too slowly -------------------------------------------------------------------

    @staticmethod
    def _bound_copies(known: _Device, record: Record, now_s: float) -> None:
        within_s = copied_within_s(record.layout.slab_bytes)
        copied = {(slab.number, slab.attempt): slab for slab in record.slabs if slab.state is State.MAPPING}
        known.copying = {key: known.copying.get(key, now_s) for key in copied}
        for key, since_s in known.copying.items():
            if now_s - since_s > within_s:
                slab = copied[key]
                reason = f"{slab.daemon} has not taken its {record.layout.slab_bytes} bytes within {within_s:g} s"
                known.events.setdefault(key, Lost(slab.attempt, reason))

    def _probe(self, name: str, known: _Device, now_s: float) -> None:
        if known.probing is not None and known.probing.done():
            task, known.probing = known.probing, None
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failed(name, f"daemons cannot be asked: {error}")
        if known.probing is None and now_s >= known.probed_s + PROBE_S:
            known.probed_s = now_s
            known.probing = asyncio.get_running_loop().create_task(self._find_silent(name, known))

    async def _find_silent(self, name: str, known: _Device) -> None:
        # An attempt that begins meanwhile stands in the journal before it has its connection: it is not silent.
        begun = {(slab.number, slab.attempt) for slab in known.slabs}
        for slab in await asyncio.to_thread(lambda: self._files.unlocked(name).silent()):
            if (slab.number, slab.attempt) not in begun:
                continue
            lost = Lost(slab.attempt, f"{slab.daemon} does not answer")
            known.events.setdefault((slab.number, slab.attempt), lost)

    # -- mapping -----------------------------------------------------------------------------------------------------

    async def _map_one(self, name: str, known: _Device, record: Record) -> None:
        """The most active slab that is not mapped, unless one is being copied still."""
        slabs = record.slabs
        busy = {slab.number for slab in slabs if slab.state not in {State.UNMAPPED, State.DISK}}
        hot = slabs_to_map(known.activities, busy, self._map_above)
        if not hot or any(slab.state is State.MAPPING for slab in slabs):
            return
        number = hot[0]
        now_s = self._clock.monotonic()
        known.map_after_s = now_s + RETRY_S
        for hosts in (self._avoided, self._refused):
            for host in [host for host, until_s in hosts.items() if until_s <= now_s]:
                del hosts[host]
        try:
            daemon = self._choose(await self._peers.daemons(), slabs, record.layout.slab_bytes)
            slab = await self._map(name, number, daemon, record.layout.slab_bytes)
        except PeersError as error:
            self._not_mapped(name, known, record.slabs[number], record, error)
        except (DeviceBusyError, *_ERRORS) as error:
            failed = PeersError(str(error), Cause.STEP_FAILED)
            self._not_mapped(name, known, record.slabs[number], record, failed)
        else:
            known.slabs = (*slabs[:number], slab, *slabs[number + 1 :])
            known.map_after_s, known.said = now_s, set()

    def _choose(self, daemons: Sequence[Daemon], slabs: Sequence[Slab], slab_bytes: int) -> Daemon:
        used = {slab.host for slab in slabs if slab.host}
        candidates = [daemon for daemon in daemons if daemon.host not in self._avoided]
        draws = [self._random.random() for _ in range(CHOICES)]
        found = choose([daemon for daemon in candidates if daemon.host not in self._refused], used, slab_bytes, draws)
        if isinstance(found, NoRoom):
            found = choose(candidates, used, slab_bytes, draws)
        match found:
            case Choice(daemon=daemon):
                return daemon
            case NoRoom(most_offered_bytes=offered):
                avoided = len(daemons) - len(candidates)
                text = (
                    f"no daemon offers {slab_bytes} bytes; the most that one of {len(candidates)} offers are {offered}"
                )
                more = f", {avoided} more wanted memory back, were lost or gave none that can be used just now"
                raise PeersError(text + (more if avoided else ""), Cause.NO_ROOM)

    async def _map(self, name: str, number: int, daemon: Daemon, slab_bytes: int) -> Slab:
        with span("memory.map", turnbuckle__node=daemon.host):
            try:
                reply = await self._peers.take(daemon, name, slab_bytes)
                return await asyncio.to_thread(self._map_slab, name, number, reply, daemon)
            except PeersError as error:
                hosts = self._avoided if error.cause is Cause.UNUSABLE else self._refused
                hosts[daemon.host] = self._clock.monotonic() + AVOID_S
                raise

    def _map_slab(self, name: str, number: int, reply: SlabReply, daemon: Daemon) -> Slab:
        if reply.address != daemon.address:
            text = f"{daemon.host} is registered at {daemon.address}, and says {reply.address}"
            raise PeersError(text, Cause.UNUSABLE)
        with self._files.locked(name) as device:
            try:
                return device.map_slab(number, reply.address, reply.export, daemon.host)
            except UnusableExportError as error:
                raise PeersError(str(error), Cause.UNUSABLE) from error

    def _not_mapped(self, name: str, known: _Device, slab: Slab, record: Record, error: PeersError) -> None:
        """Counted each time; said once for each cause until a slab is mapped: figures in the text differ each time."""
        reason = str(error)
        self.not_mapped[error.cause] += 1
        keys = {"device": name, "slab": slab.number, "cause": str(error.cause), "reason": reason}
        log_once(self._log.warning, self._limiter, "slab_not_mapped", _LOG_EVERY_S, **keys)
        if error.cause not in known.said:
            known.said.add(error.cause)
            activity = known.activities.get(slab.number, Activity())
            report = Report(record.layout.slab_bytes, reason, activity.pages_per_s)
            self._peers.publish(name, SlabChange.NOT_MAPPED, replace(slab, reason=reason), report)
