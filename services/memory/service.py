"""The memory service's wiring: a daemon for other hosts, and this host's swap devices mapped to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import ClassVar, Final

from schemas.message import Message
from schemas.queries import QueryError
from schemas.remote_memory import MemoryHostInfo, SlabChange, SlabEvent, SlabReply, SlabRequest
from schemas.streams import MEMORY_HOSTS
from schemas.subjects import SLAB_EVENTS, SLAB_REQUESTS
from services._host.instance_lock import InstanceLock
from services._runtime.bus.api import BusError, Delivery, Subscription
from services._runtime.bus.name_registration import HEARTBEAT_S, RETRY_S, Holder, NameHolder
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.logging import LogLimiter, log_once
from services._runtime.telemetry.tracing import span
from services.memory.adapters.locked_memory import LockedMemoryError, lock_process
from services.memory.consumer import Cause, Consumer, PeersError, Report
from services.memory.core import placing
from services.memory.core.mapping import Slab, export_label
from services.memory.daemon import Daemon, DaemonLostError, DaemonPort, LeavingSlab, OfferState, TakeRefusedError
from services.memory.settings import MemorySettings
from services.memory.swap_devices import SERVICE_LOCK, SwapDevices

READ_S: Final = 1.0
"""Between two readings of what the daemon holds: it gives owners five seconds to leave."""
TAKE_S: Final = 65.0
"""The daemon locks GiB of memory meanwhile."""
_LOG_EVERY_S: Final = 60.0
_MOST_REASON: Final = 1_000
_OUTCOMES: Final = ("given", "refused")


class MemoryService:
    """Offers memory of this host to other hosts' swap, and maps this host's swap devices to theirs."""

    name: ClassVar[str] = "memory"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = MemorySettings
    bus_wait_s: ClassVar[float] = 1.0
    """A swap device is watched also where no server can be reached: its daemons may have died."""

    def __init__(
        self,
        runtime: Runtime[MemorySettings],
        daemon: DaemonPort | None = None,
        devices: SwapDevices | None = None,
        lock: Callable[[], None] = lock_process,
    ) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._bus, self._clock, self._log = runtime.bus, runtime.clock, runtime.log
        self._incarnation = self._clock.time_ns()
        self._published = 0
        self._limiter = LogLimiter()
        self._lock: InstanceLock | None = None
        self._holder: Holder | None = None
        self._registered = False
        self._tasks: list[asyncio.Task[None]] = []
        self._events: Subscription | None = None
        self._hosts: list[MemoryHostInfo] = []
        self._hosts_read_s = -HEARTBEAT_S
        self._evicted: frozenset[LeavingSlab] = frozenset()
        self._being_given: set[str] = set()
        """Hosts with a request for a slab under way."""
        self._lock_process = lock
        self.daemon: DaemonPort | None = daemon or (Daemon(settings) if settings.offer_bytes else None)
        devices = devices or SwapDevices(settings.state_directory)
        self.consumer = Consumer(devices, self, self._clock, self._log, settings.map_above_pages_per_s)
        served = {SLAB_REQUESTS.pattern(self._bus.root, daemon=settings.node): self._give}
        self._name = NameHolder(self._bus, MEMORY_HOSTS, self.name, settings.node, self._clock, self._log, served)
        count = runtime.telemetry.counter
        self._evictions = count("turnbuckle_memory_evictions_total")
        self._requests = {name: count("turnbuckle_memory_requests_total", outcome=name) for name in _OUTCOMES}
        self._changes = {change: count("turnbuckle_memory_changes_total", change=str(change)) for change in SlabChange}

    async def start(self) -> None:
        """Offer, map and register; the bus may be unreachable."""
        settings, telemetry = self._settings, self._runtime.telemetry
        self._lock = InstanceLock(
            settings.state_directory / SERVICE_LOCK,
            role="memory service",
            node=settings.node,
            managed="this host's swap devices are",
            remedy="stop it, or set TURNBUCKLE_MEMORY__STATE_DIRECTORY here",
            setting="TURNBUCKLE_MEMORY__STATE_DIRECTORY",
        )
        self._holder = Holder(settings.state_directory, self.name, settings.node)
        try:
            self._lock_process()
        except LockedMemoryError as error:
            self._log.warning("process_not_locked", error=str(error), effect="it may wait for pages of its own")
        telemetry.observe("turnbuckle_memory_offered_bytes", lambda: self._offer.offered_bytes)
        telemetry.observe("turnbuckle_memory_held_bytes", lambda: self._offer.held_bytes)
        telemetry.observe("turnbuckle_memory_failed_steps_total", lambda: self.consumer.failed_steps)
        telemetry.observe_by_label("turnbuckle_memory_slabs", "state", self.consumer.by_state)
        telemetry.observe_by_label("turnbuckle_memory_not_mapped_total", "cause", lambda: self.consumer.not_mapped)
        work = {"heartbeat": self._heartbeat(), "swap devices": self.consumer.run()}
        if self.daemon is not None:
            work["daemon"] = self._watch_daemon(self.daemon)
        self._tasks = [self._runtime.spawn(each, name=name) for name, each in work.items()]
        self._log.info("memory_started", node=settings.node, offered_bytes=int(settings.offer_bytes))

    async def stop(self) -> None:
        """Answer no more. Swap devices stay as they are; slabs of other hosts end, they have them on their disks."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._name.stop_serving()
        if self._events is not None:
            await self._events.stop()
        if self.daemon is not None:
            await self.daemon.stop()
        await self._name.release()
        for held in (self._lock, self._holder):
            if held is not None:
                held.release()

    def not_ready(self) -> str | None:
        """What keeps it from working, or None."""
        if self._name.unconfirmed is not None:
            return self._name.unconfirmed
        if self.daemon is not None and not self._offer.address:
            return "the daemon does not run yet"
        return None if self._registered else "the host is not registered yet"

    @property
    def _offer(self) -> OfferState:
        return self.daemon.state if self.daemon is not None else OfferState()

    # -- name ------------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        while True:
            await self._listen()
            self._registered = await self._name.try_hold(self._info())
            pause_s = HEARTBEAT_S if self._registered else RETRY_S
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)

    async def _listen(self) -> None:
        if self._events is None:
            try:
                self._events = await self._bus.subscribe(SLAB_EVENTS.pattern(self._bus.root), self._on_event)
            except BusError as error:
                self._log.debug("events_not_heard", error=str(error))

    def _info(self) -> MemoryHostInfo:
        offer = self._offer
        return MemoryHostInfo(
            node=self._settings.node,
            address=offer.address,
            offered_bytes=offer.offered_bytes,
            held_bytes=offer.held_bytes,
            free_bytes=offer.free_bytes,
            headroom_bytes=offer.headroom_bytes,
            incarnation=self._incarnation,
            time_ns=self._clock.time_ns(),
            version=self.version,
            holder=self._holder.token if self._holder is not None else "",
        )

    # -- daemon ----------------------------------------------------------------------------------------------------

    async def _watch_daemon(self, daemon: DaemonPort) -> None:
        while True:
            try:
                offer = await daemon.read()
            except DaemonLostError as error:
                log_once(self._log.error, self._limiter, "daemon_lost", _LOG_EVERY_S, error=str(error))
                self._evicted = frozenset()
            else:
                self._announce_evictions(offer)
            await self._clock.sleep_until(self._clock.monotonic() + READ_S)

    def _announce_evictions(self, offer: OfferState) -> None:
        before, self._evicted = self._evicted, frozenset(offer.leaving)
        for slab in self._evicted - before:
            self._evictions.add()
            reason = f"{offer.free_bytes} bytes of {self._settings.node} are free, {offer.headroom_bytes} have to be"
            event = SlabEvent(
                node=self._settings.node,
                change=SlabChange.EVICTED,
                label=slab.label,
                address=offer.address,
                slab_bytes=slab.slab_bytes,
                free_bytes=offer.free_bytes,
                headroom_bytes=offer.headroom_bytes,
                reason=reason,
                time_ns=self._clock.time_ns(),
            )
            self._log.info("slab_evicted", label=slab.label, reason=reason)
            self._publish(event)

    async def _give(self, delivery: Delivery) -> Message:
        request = delivery.message
        if not isinstance(request, SlabRequest):
            return QueryError(code=400, message=f"expected a SlabRequest, not {request.type_name}")
        asks = request.node  # as the subject says: else it is not read
        if asks in self._being_given:  # a host maps one slab at a time; many requests would keep others waiting
            self._requests["refused"].add()
            return QueryError(code=429, message=f"a request of {asks} is under way: ask again once it is answered")
        self._being_given.add(asks)
        with span("memory.take", turnbuckle__node=asks) as current:
            try:
                reply = await self._given(request)
            except (TakeRefusedError, DaemonLostError) as error:
                current.fail("refused", str(error))
                self._requests["refused"].add()
                return QueryError(code=409, message=str(error))
            finally:
                self._being_given.discard(asks)
        self._requests["given"].add()
        return reply

    async def _given(self, request: SlabRequest) -> SlabReply:
        if self.daemon is None:
            raise TakeRefusedError(f"{self._settings.node} offers no memory (TURNBUCKLE_MEMORY__OFFER_BYTES)")
        export = await self.daemon.take(request.slab_bytes, request.node)
        return SlabReply(address=self.daemon.state.address, export=export)

    # -- other hosts -----------------------------------------------------------------------------------------------

    async def daemons(self) -> list[placing.Daemon]:
        """As `Peers.daemons`: as they were registered at the last heartbeats, those that this host trusts."""
        settings = self._settings
        if not settings.trusted_hosts:
            text = f"no host is trusted with pages of {settings.node}: set TURNBUCKLE_MEMORY__TRUSTED_HOSTS"
            raise PeersError(text, Cause.NO_TRUSTED_HOST)
        if self._clock.monotonic() >= self._hosts_read_s + HEARTBEAT_S and (error := await self._read_hosts()):
            raise PeersError(f"which hosts offer memory is not known: {error}", Cause.HOSTS_NOT_KNOWN)
        return [
            placing.Daemon(info.address, info.node, info.offered_bytes)
            for info in self._hosts
            if info.address
            and info.node != settings.node
            and (settings.trusts_all or info.node in settings.trusted_hosts)
        ]

    async def _read_hosts(self) -> str:
        """Read all registrations; returns why they cannot be read."""
        try:
            entries = await self._bus.bucket(MEMORY_HOSTS).entries()
        except BusError as error:
            return str(error)
        found = {key: entry.message for key, entry in entries.items()}
        # A host may write its own key only: another one's name in it is none of its.
        self._hosts = [info for key, info in found.items() if isinstance(info, MemoryHostInfo) and info.node == key]
        self._hosts_read_s = self._clock.monotonic()
        return ""

    async def take(self, daemon: placing.Daemon, device: str, slab_bytes: int) -> SlabReply:
        """As `Peers.take`."""
        node = self._settings.node
        subject = SLAB_REQUESTS.subject(self._bus.root, daemon=daemon.host, node=node)
        request = SlabRequest(node=node, device=device, slab_bytes=slab_bytes)
        self._hosts_read_s = -HEARTBEAT_S  # what it offers is another amount now, whatever it answers
        try:
            reply = await self._bus.request(subject, request, timeout_s=TAKE_S)
        except BusError as error:
            raise PeersError(f"{daemon.host} gives no slab: {error}", Cause.REFUSED) from error
        if not isinstance(reply, SlabReply):
            text = f"{daemon.host} answers with {reply.type_name}: are the versions the same?"
            raise PeersError(text, Cause.UNUSABLE)
        if await self._is_own(reply.export):
            text = f"{daemon.host} gives a slab of {node}'s own daemon: a host that swaps to itself frees no memory"
            raise PeersError(text, Cause.UNUSABLE)
        return reply

    async def _is_own(self, export: str) -> bool:
        """Whether the memory is this host's: another one may have taken it here, and be registered at this address.

        Known by the export, which is nobody else's; an address can be written in many ways.
        """
        if self.daemon is None:
            return False
        try:
            return export_label(export) in (await self.daemon.read()).labels
        except DaemonLostError:  # with every slab
            return False

    def publish(self, device: str, change: SlabChange, slab: Slab, report: Report) -> None:
        """As `Peers.publish`."""
        self._changes[change].add()
        decided = change in {SlabChange.MAPPED, SlabChange.NOT_MAPPED}
        self._publish(
            SlabEvent(
                node=self._settings.node,
                change=change,
                label=slab.label,
                device=device,
                slab=slab.number,
                attempt=slab.attempt,
                address=slab.daemon,
                slab_bytes=report.slab_bytes,
                pages_per_s=report.pages_per_s,
                map_above_pages_per_s=self._settings.map_above_pages_per_s if decided else 0.0,
                reason=report.reason[:_MOST_REASON],
                time_ns=self._clock.time_ns(),
            )
        )

    def _publish(self, event: SlabEvent) -> None:
        if self._name.unconfirmed is not None:
            return
        self._published += 1
        subject = SLAB_EVENTS.subject(self._bus.root, node=self._settings.node)
        message_id = f"{self._settings.node}.{self._incarnation}.{self._published}"
        self._bus.publish_event(subject, event, message_id=message_id)

    def _on_event(self, delivery: Delivery) -> None:
        """A host wants memory back: it is believed about slabs that it has given.

        Not by the address in the event or its registration: each host writes its own, and any address into it.
        """
        event = delivery.message
        if not isinstance(event, SlabEvent) or event.change is not SlabChange.EVICTED:
            return
        reason = f"{event.node} needs its memory: {event.reason}"[:_MOST_REASON]
        self.consumer.evict(event.node, event.label, reason)
