"""Replicas in one process over a store that is slow, lossy and forgetful on demand, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from schemas.leases import MEMBERS_KEY, Members
from services._runtime.bus.api import BusUnavailableError, Entry, RevisionConflictError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Telemetry
from services.allocator.ownership.membership import Callbacks, Membership
from services.allocator.settings import AllocatorSettings

STEP_S = 0.05
_SPINS = 8
"""Turns of the event loop that let everything run that can."""


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """Deadlines are in simulated time too."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


class Store:
    """A bucket on a server. Its writes are kept for those who watch, and for the test."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.writes: list[tuple[float, Entry]] = []
        self.watchers: list[Member] = []

    def write(self, key: str, message: Any, now_s: float) -> int:
        self.revision += 1
        entry = Entry(key, message, self.revision)
        if key == MEMBERS_KEY:
            self.writes.append((now_s, entry))
            assert message.epoch > self.record().epoch, (message, self.record())
        self.entries[key] = entry
        for member in self.watchers:
            member.news.append((key, entry))
        return self.revision

    def record(self) -> Members:
        """The members' record; an unreadable one is as none."""
        entry = self.entries.get(MEMBERS_KEY)
        return entry.message if entry is not None and isinstance(entry.message, Members) else Members()

    def remove(self, key: str) -> None:
        if self.entries.pop(key, None):
            for member in self.watchers:
                member.news.append((key, None))


@dataclass(eq=False)
class Operation:
    """One request under way."""

    member: Member
    act: Callable[[], Any]
    answer: asyncio.Future[Any]
    apply_s: float
    reply_s: float
    result: Any = None
    applied: bool = False

    def apply(self) -> None:
        if self.applied:
            return
        self.applied = True
        try:
            self.result = self.act()
        except RevisionConflictError as error:
            self.result = error

    def reply(self) -> None:
        self.member.operations.remove(self)
        if self.answer.done():
            return
        if isinstance(self.result, Exception):
            self.answer.set_exception(self.result)
        else:
            self.answer.set_result(self.result)

    def lose(self) -> None:
        """Whether or not it was carried out: nobody learns of it."""
        self.result = BusUnavailableError("lost")
        self.reply()


class Member:
    """One replica: bus, bucket and clock as it sees them."""

    connected = True
    root = "tb"

    def __init__(self, lab: ReplicaLab, name: str, skew_ms: int) -> None:
        self.lab = lab
        self.skew_ms = skew_ms
        self.operations: list[Operation] = []
        self.news: list[tuple[str, Entry | None]] = []
        self.on_news: Callable[[str, Entry | None], None] | None = None
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.reconnected: list[Callable[[], None]] = []
        self.unservable: set[str] = set()
        """Applications whose subjects it cannot subscribe to."""
        self.frozen = self.holds_requests = self.holds_answers = self.holds_news = False
        self.read_delay_s: Callable[[], float] = lambda: 0.0
        """After which an answer to a read of the record is handled."""
        self.owned: dict[str, int] = {}
        self.runtime = Runtime(
            AllocatorSettings.load({}, lease_store_outage_grace_s=lab.store_outage_grace_s),
            self,
            self,
            Telemetry(),
            get_logger("replica"),
        )  # type: ignore[arg-type]
        self.replicas = Membership(self.runtime, Callbacks(self._own, self._disown, self._try_to_serve), name)

    async def _own(self, app: str, epoch: int) -> None:
        assert epoch > self.owned.get(app, 0)
        self.owned[app] = epoch
        await self._try_to_serve(app)

    async def _try_to_serve(self, app: str) -> None:
        if app in self.unservable:
            raise BusUnavailableError("no subscription")

    def _disown(self, app: str) -> None:
        self.owned.pop(app, None)

    @property
    def deciding(self) -> dict[str, int]:
        """What it would decide about now."""
        return self.owned if self.replicas.may_act() else {}

    # -- clock --

    def monotonic(self) -> float:
        return self.lab.loop.now_s

    def monotonic_ns(self) -> int:
        return int(self.lab.loop.now_s * 1e9)

    def time_ns(self) -> int:
        return int(self.lab.loop.now_s * 1e9) + self.skew_ms * 1_000_000

    async def sleep_until(self, deadline: float) -> None:
        future = self.lab.loop.create_future()
        self.sleepers.append((deadline, future))
        await future

    # -- bus and bucket --

    def bucket(self, _spec: Any) -> Member:
        return self

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self.reconnected.append(callback)

    async def _ask(self, act: Callable[[], Any]) -> Any:
        if self.lab.down:
            raise BusUnavailableError("down")
        apply_s = self.lab.loop.now_s + self.lab.delay_s()
        operation = Operation(self, act, self.lab.loop.create_future(), apply_s, apply_s + self.lab.delay_s())
        self.operations.append(operation)
        return await operation.answer

    async def get(self, key: str) -> Entry | None:
        entry: Entry | None = await self._ask(lambda: self.lab.store.entries.get(key))
        if key == MEMBERS_KEY and (late_s := self.read_delay_s()):
            await self.sleep_until(self.monotonic() + late_s)
        return entry

    async def put(self, key: str, message: Any) -> int:
        return int(await self._ask(lambda: self.lab.store.write(key, message, self.monotonic())))

    async def create(self, key: str, message: Any) -> int:
        return await self.update(key, message, 0)

    async def update(self, key: str, message: Any, revision: int) -> int:
        def swap() -> int:
            entry = self.lab.store.entries.get(key)
            if (entry.revision if entry else 0) != revision:
                raise RevisionConflictError(key)
            return self.lab.store.write(key, message, self.monotonic())

        return int(await self._ask(swap))

    async def delete(self, key: str) -> None:
        await self._ask(lambda: self.lab.store.remove(key))

    @asynccontextmanager
    async def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AsyncIterator[None]:
        self.on_news = on_entry
        self.lab.store.watchers.append(self)
        for key, entry in self.lab.store.entries.items():
            on_entry(key, entry)
        try:
            yield
        finally:
            self.lab.store.watchers.remove(self)


@dataclass
class ReplicaLab:
    """Everything moves by `live`. Checked all the time: no two decide for an application in one epoch."""

    store: Store = field(default_factory=Store)
    members: list[Member] = field(default_factory=list)
    apps: set[str] = field(default_factory=set)
    down: bool = False
    store_outage_grace_s: float = 0.0
    """More, and an owner that alone is cut off from the store may decide beside its successor: agents then tell."""
    started: int = 0
    chance: Random | None = None
    """Makes messages slow, most of them a little, a few beyond every deadline."""
    loop: _SimulatedLoop = field(default_factory=_SimulatedLoop)

    def start(self, skew_ms: int = 0) -> Member:
        self.started += 1
        member = Member(self, f"r{self.started}", skew_ms)
        for app in self.apps:
            self.loop.call_soon(partial(member.replicas.set_announced, app, announced=True))
        self.members.append(member)
        self.loop.run_until_complete(member.replicas.start())
        self.settle()
        return member

    def stop(self, member: Member) -> None:
        """Gracefully; it may take a while, or fail."""
        task = self.loop.create_task(member.replicas.stop())
        for _ in range(40):
            self.settle()
            self._move()
            if task.done():
                break
            self.loop.now_s += STEP_S
            self._wake()
            self.check()
        assert task.done()
        task.result()
        self.crash(member)

    def crash(self, member: Member) -> None:
        """What it has sent may still arrive."""
        self.members.remove(member)
        self.loop.run_until_complete(member.runtime.cancel_tasks())
        self.settle()

    def announce(self, app: str, *members: Member, announced: bool = True) -> None:
        for member in members or self.members:
            self.loop.call_soon(partial(member.replicas.set_announced, app, announced=announced))
        (self.apps.add if announced else self.apps.discard)(app)
        self.settle()

    def settle(self) -> None:
        async def spin() -> None:
            for _ in range(_SPINS):
                await asyncio.sleep(0)
            for member in self.members:
                if member.runtime.crashed.done():
                    raise member.runtime.crashed.result()

        self.loop.run_until_complete(spin())

    def live(self, seconds: float) -> None:
        """Time passes; whatever is not held back moves."""
        for _ in range(max(1, round(seconds / STEP_S))):
            self.loop.now_s += STEP_S
            self._wake()
            for _ in range(4):
                self._move()
                self.settle()
                self.check()

    def delay_s(self) -> float:
        """Of the next message."""
        if self.chance is None:
            return 0.0
        longest_s = self.chance.choices((0.02, 0.5, 2.0, 5.0), (70, 15, 10, 5))[0]
        return self.chance.uniform(0, longest_s)

    def wander(self, seconds: float) -> None:
        """Time passes in a bad neighbourhood."""
        assert self.chance is not None
        for _ in range(round(seconds / STEP_S)):
            for member in self.members:
                for fault, often, ends in (("frozen", 0.02, 0.03), ("holds_news", 0.02, 0.05)):
                    if self.chance.random() < (ends if getattr(member, fault) else often):
                        setattr(member, fault, not getattr(member, fault))
            self.live(STEP_S)

    def _wake(self) -> None:
        for member in self.members:
            if not member.frozen:
                due = [future for deadline, future in member.sleepers if deadline <= self.loop.now_s]
                member.sleepers = [entry for entry in member.sleepers if entry[0] > self.loop.now_s]
                for future in due:
                    if not future.done():
                        future.set_result(None)
        self.settle()
        self.check()

    def _move(self) -> None:
        for member in self.members:
            for operation in list(member.operations):
                if not member.holds_requests and operation.apply_s <= self.loop.now_s:
                    operation.apply()
                answers = not member.holds_answers and not member.frozen
                if operation.applied and answers and operation.reply_s <= self.loop.now_s:
                    operation.reply()
            if not member.holds_news and not member.frozen:
                self.tell(member)

    def tell(self, member: Member) -> None:
        """Deliver what a watch has to say."""
        news, member.news = member.news, []
        for key, entry in news:
            if member.on_news is not None:
                self.loop.call_soon(member.on_news, key, entry)

    def break_connections(self) -> None:
        """The server goes away, with everything that is under way."""
        self.down = True
        for member in self.members:
            for operation in list(member.operations):
                operation.lose()
        self.settle()

    def mend(self) -> None:
        """The server is back; watches list everything anew."""
        if self.down:
            self.down = False
            for member in self.members:
                member.news = [*member.news, *self.store.entries.items()]
                for callback in member.reconnected:
                    callback()

    def check(self) -> None:
        """At most one decides in one epoch: of two, agents obey the one with the higher."""
        deciding = [(app, epoch) for member in self.members for app, epoch in member.deciding.items()]
        assert len(deciding) == len(set(deciding)), [(m.replicas.id, m.deciding) for m in self.members]

    def owners(self) -> dict[str, list[str]]:
        """Who decides, by application."""
        return {app: [m.replicas.id for m in self.members if app in m.deciding] for app in self.apps}

    def close(self) -> None:
        for member in list(self.members):
            self.crash(member)
        self.loop.close()
