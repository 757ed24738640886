"""Replicas that follow `ownership.members`, a store with compare-and-set, and agents, as events in simulated time.

Nothing of asyncio and of the bus: only the rules are tried, with every delay, loss and fault that a history asks for.
`rules` is the module that is tried, so that a test may try one from which a rule was taken.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

from services.allocator.ownership import members

TTL_S = 2.0
ROUGH_S = 20.0
"""Disturbances end here."""
SETTLED_S = ROUGH_S + 2 * TTL_S + 1
"""By now every application has an owner."""
FAIL_S = SETTLED_S + 1
"""One more disturbance, in calm: an owner cannot serve, or a replica loses (half of) its way to the store."""
ABLE_S = FAIL_S + 2 * TTL_S + 1
END_S = 45.0
AGENTS = ("n1", "n2", "n3")
APPS = tuple(f"a{number}" for number in range(5))
MOST_REPLICAS = 5
EARLIER_WALL_MS = 10**6


@dataclass(frozen=True)
class Disturbance:
    """One event of a history."""

    wait_s: float
    """After the one before."""
    kind: str
    which: int
    """Of the replicas that live, or of the applications."""
    long_s: float


@dataclass(frozen=True)
class History:
    """What happens to a world."""

    seed: int
    """Of delays and losses."""
    replicas: int = 3
    disturbances: tuple[Disturbance, ...] = ()
    roughness: float = 0.1
    """Share of messages that take up to the time to live, and four times that which are lost."""
    reads_lag: bool = False
    """A read may show the value before."""
    store_loses_end: bool = False
    """Twice the store goes back to what it held up to three seconds ago."""
    lost_way: str = ""
    """What one replica loses in calm, for good: `reads`, `writes`, `all`; empty: some owners cannot serve."""


class Replica:
    """A process with its clock, its connection and its queue."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, rng = world, name, world.rng
        self.rate, self.skew_s = rng.uniform(0.99, 1.01), rng.uniform(0, 1e4)
        self.wall_ms = rng.randint(-5000, 5000)
        self.up, self.frozen, self.cut_s, self.deaf_s, self.lost_way = True, False, -1.0, -1.0, ""
        self.queue: list[Callable[[], None]] = []
        self.acknowledged: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.newest: dict[str, int] = {}
        self.view = world.rules.View(name, TTL_S, 12.0, announced=frozenset(APPS))
        self.tick()
        self.act()

    def now_s(self) -> float:
        return self.skew_s + self.rate * self.world.now_s

    def acts_for(self) -> dict[str, int]:
        """Applications that it would decide for now."""
        rules = self.world.rules
        if not self.up or self.frozen or not rules.may_act(self.view, self.now_s()):
            return {}
        return dict(rules.held(self.view))

    def take(self, event: Any) -> None:
        """Handle an observation; while frozen it waits, and order is lost."""
        if not self.up:
            return
        if self.frozen:
            self.queue.append(partial(self.take, event))
            return
        wall_ms = int(self.world.now_s * 1000) + EARLIER_WALL_MS + self.wall_ms
        self.view, actions = self.world.rules.step(self.view, event, self.now_s(), wall_ms)
        for app, epoch in self.view.epochs.items():
            if epoch < self.newest.get(app, 0):
                self.world.fault("a replica's epoch fell")
            self.newest[app] = epoch
        for action in actions:
            self.world.send(self, action)

    def tick(self) -> None:
        if self.frozen:
            self.queue.append(self.tick)
        elif self.up:
            self.take(self.world.rules.Tick())
            self.world.after(TTL_S / 8 / self.rate, self.tick)

    def act(self) -> None:
        """Order something of the agents; what cannot be served is told."""
        if self.frozen:
            self.queue.append(self.act)
        elif self.up:
            world, mine = self.world, self.acts_for()
            for agent in AGENTS if mine else ():
                world.after(world.delay_s(), partial(world.agent_hears, agent, self, mine))
            for app in APPS:
                if (app, self.name) in world.broken and app in world.rules.held(self.view):
                    self.take(world.rules.Unable(app))
            world.after(0.2, self.act)


@dataclass
class World:
    """One history. `faults` counts what must not happen, `first` tells when."""

    history: History
    rules: ModuleType = members
    now_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.history.seed)
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.count = self.revision = self.names = 0
        self.store: dict[str, tuple[int, Any]] = {}
        self.before: dict[str, tuple[int, Any]] = {}
        self.out_s = -1.0
        self.roughness = self.history.roughness
        self.known: dict[str, dict[str, int]] = {agent: {} for agent in AGENTS}
        self.user: dict[tuple[str, int], str] = {}
        self.broken: set[tuple[str, str]] = set()
        self.last_owner: dict[str, tuple[str, int]] = {}
        self.moves: Counter[str] = Counter()
        self.overlaps_s: list[float] = []
        self.two_since_s: dict[str, float] = {}
        self.replicas: list[Replica] = []
        for _ in range(self.history.replicas):
            self.join()

    def fault(self, kind: str) -> None:
        if not self.faults[kind]:
            self.first.append(f"{self.now_s:.2f} s: {kind}")
        self.faults[kind] += 1

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now_s + seconds, self.count, work))

    def delay_s(self) -> float:
        """One way; in rough times sometimes up to the time to live."""
        if self.now_s < ROUGH_S and self.rng.random() < self.roughness:
            return self.rng.choice((0.1, 0.5, TTL_S)) * self.rng.random()
        return 0.001 + 0.01 * self.rng.random()

    # -- the store -------------------------------------------------------------------------------------------------

    def send(self, replica: Replica, action: Any) -> None:
        if isinstance(action, self.rules.TryToServe):
            is_broken = (action.app, replica.name) in self.broken
            result = self.rules.Unable(action.app) if is_broken else self.rules.Able(action.app)
            self.after(self.delay_s(), partial(replica.take, result))
            return
        sent_s, answered = replica.now_s(), [False]
        self.after(self.delay_s(), partial(self.carry_out, replica, action, sent_s, answered))
        self.after(TTL_S / 2, partial(self.time_out, replica, sent_s, answered))

    def time_out(self, replica: Replica, sent_s: float, answered: list[bool]) -> None:
        if not answered[0]:
            answered[0] = True
            replica.take(self.rules.Failed(sent_s))

    def is_away(self, replica: Replica, action: Any) -> bool:
        reads = isinstance(action, self.rules.ReadRecord | self.rules.ReadHeartbeats)
        lost = replica.lost_way in {"all", "reads" if reads else "writes"}
        return lost or self.now_s < max(self.out_s, replica.cut_s)

    def carry_out(self, replica: Replica, action: Any, sent_s: float, answered: list[bool]) -> None:
        if self.is_away(replica, action):
            if self.rng.random() < 0.5:  # refused at once; otherwise silence
                self.time_out(replica, sent_s, answered)
            return
        event = self.event(replica, action, sent_s)
        if self.now_s >= ROUGH_S or self.rng.random() > self.roughness / 4:  # else done, but the answer is lost
            self.after(self.delay_s(), partial(self.answer, replica, event, answered))

    def event(self, replica: Replica, action: Any, sent_s: float) -> Any:
        rules = self.rules
        match action:
            case rules.ReadRecord():
                revision, record = self.store.get("members", (0, rules.NO_RECORD))
                if self.history.reads_lag and self.now_s < ROUGH_S and self.rng.random() < 0.3:
                    revision, record = self.before.get("members", (0, rules.NO_RECORD))
                return rules.RecordRead(record, revision, sent_s)
            case rules.ReadHeartbeats():
                found = {name: self.store[name][0] for name in action.replicas if name in self.store}
                return rules.HeartbeatsRead(found, sent_s)
            case rules.StoreHeartbeat():
                self.write(replica.name, None)
                return rules.HeartbeatStored(sent_s)
        revision, record = self.store.get("members", (0, rules.NO_RECORD))
        if revision != action.revision:
            return rules.WriteConflict()
        # A store that lost its end gives revisions out twice: a write may replace a record that it has not read.
        if action.record.epoch <= record.epoch and not self.history.store_loses_end:
            self.fault("the record's epoch fell")
        self.write("members", action.record)
        for other in self.replicas:
            hears = self.now_s >= max(other.deaf_s, other.cut_s) and other.lost_way != "all"
            if hears and (self.now_s >= ROUGH_S or self.rng.random() < 0.8):
                self.after(self.delay_s(), partial(other.take, rules.Watched(self.revision)))
        return rules.RecordWritten(action.record, self.revision, sent_s)

    def write(self, key: str, value: Any) -> None:
        self.revision += 1
        self.before[key] = self.store.get(key, (0, self.rules.NO_RECORD))
        self.store[key] = (self.revision, value)

    def answer(self, replica: Replica, event: Any, answered: list[bool]) -> None:
        """It comes although it was given up: a late answer."""
        answered[0] = True
        replica.take(event)

    def lose_end(self) -> None:
        """The store goes back to what it held; revisions are given out a second time."""
        kept, revision = dict(self.store), self.revision

        def lose() -> None:
            self.store, self.revision = kept, revision

        self.after(3 * self.rng.random(), lose)

    # -- agents ----------------------------------------------------------------------------------------------------

    def agent_hears(self, agent: str, replica: Replica, epochs: dict[str, int]) -> None:
        if self.now_s < ROUGH_S and self.rng.random() < self.roughness / 4:
            return
        for app, epoch in epochs.items():
            if self.user.setdefault((app, epoch), replica.name) != replica.name:
                self.fault("two replicas used one epoch")
            newest = self.known[agent][app] = max(epoch, self.known[agent].get(app, 0))
            if newest == epoch:
                self.after(self.delay_s(), partial(replica.acknowledged[app, epoch].add, agent))
            else:
                self.after(self.delay_s(), partial(replica.take, self.rules.Refused(app, newest)))

    # -- disturbances ----------------------------------------------------------------------------------------------

    def join(self) -> None:
        if len(self.replicas) < MOST_REPLICAS:
            self.names += 1
            self.replicas.append(Replica(self, f"r{self.names}"))

    def thaw(self, replica: Replica) -> None:
        if replica.frozen:
            replica.frozen = False
            queue, replica.queue = replica.queue, []
            self.rng.shuffle(queue)
            for work in queue:
                work()

    def kill(self, replica: Replica) -> None:
        replica.up = False
        self.replicas = [each for each in self.replicas if each is not replica]

    def disturb(self, disturbance: Disturbance) -> None:
        if not self.replicas:
            self.join()
        replica = self.replicas[disturbance.which % len(self.replicas)]
        long_s = min(disturbance.long_s, ROUGH_S - self.now_s)
        match disturbance.kind:
            case "freeze":
                replica.frozen = True
                self.after(long_s, partial(self.thaw, replica))
            case "crash" | "stop" if len(self.replicas) > 1:
                if disturbance.kind == "stop":
                    replica.take(self.rules.Stop())
                self.after(0.5 if disturbance.kind == "stop" else 0, partial(self.kill, replica))
                self.after(min(long_s + 0.5, ROUGH_S - self.now_s), self.join)
            case "join":
                self.join()
            case "store away" | "cut off" | "deaf":
                self.disturb_ways(disturbance.kind, replica, long_s)
            case "unable" | "able" | "not heard of":
                self.disturb_app(disturbance.kind, replica, APPS[disturbance.which % len(APPS)], long_s)

    def disturb_ways(self, kind: str, replica: Replica, long_s: float) -> None:
        """Of the store."""
        if kind == "store away":
            self.out_s = self.now_s + long_s
            for each in self.replicas:  # not all are connected again at once
                each.cut_s = max(each.cut_s, min(self.out_s + 1.5 * self.rng.random(), ROUGH_S))
        elif kind == "cut off":
            replica.cut_s = self.now_s + long_s
        else:
            replica.deaf_s = self.now_s + 3 * long_s

    def disturb_app(self, kind: str, replica: Replica, app: str, long_s: float) -> None:
        if kind == "unable":
            self.broken.add((app, replica.name))
        elif kind == "able":
            self.broken = {pair for pair in self.broken if pair[0] != app}
        else:
            replica.take(self.rules.Announced(app, announced=False))
            self.after(long_s, partial(replica.take, self.rules.Announced(app)))

    def announce_all(self) -> None:
        for replica in self.replicas:
            for app in APPS:
                replica.take(self.rules.Announced(app))

    def fail_in_calm(self) -> None:
        if self.history.lost_way and len(self.replicas) > 1:
            self.rng.choice(self.replicas).lost_way = self.history.lost_way
            return
        for app, acting in self.owners().items():
            if acting and self.rng.random() < 0.5:
                self.broken.add((app, acting[0][1].name))

    # -- what must hold --------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, list[tuple[int, Replica]]]:
        """Who acts for each application, by epoch."""
        found: dict[str, list[tuple[int, Replica]]] = {app: [] for app in APPS}
        for replica in self.replicas:
            for app, epoch in replica.acts_for().items():
                found[app].append((epoch, replica))
        for acting in found.values():
            acting.sort(key=lambda pair: pair[0])
        return found

    def check(self) -> None:
        for app, acting in self.owners().items():
            if len(acting) > 1:
                self.two_since_s.setdefault(app, self.now_s)
                (low, _), (top, new) = acting[-2:]
                if low == top:
                    self.fault("two act in one epoch")
                elif new.acknowledged[app, top] >= set(AGENTS) and any(self.known[n][app] <= low for n in AGENTS):
                    self.fault("an agent obeys the older of two")
            elif app in self.two_since_s:
                self.overlaps_s.append(self.now_s - self.two_since_s.pop(app))
                if self.overlaps_s[-1] > TTL_S:
                    self.fault("two act for longer than the time to live")
            if acting:
                epoch, replica = acting[-1]
                name, before = self.last_owner.get(app, ("", 0))
                is_newest = replica.view.revision == self.store.get("members", (0,))[0]
                if epoch < before and is_newest and not self.history.store_loses_end:
                    self.fault("epochs fell")
                if epoch > before:
                    self.moves[app] += name != replica.name and self.now_s >= SETTLED_S
                    self.last_owner[app] = (replica.name, epoch)

    def check_settled(self, when: str) -> None:
        live = [each for each in self.replicas if not each.lost_way]
        for app, acting in self.owners().items():
            if not acting and any((app, each.name) not in self.broken for each in live):
                self.fault(f"nobody acts {when}")
            elif len(acting) > 1:
                self.fault(f"two act {when}")
            elif acting and any(self.known[agent].get(app, 0) > acting[0][0] for agent in AGENTS):
                self.fault(f"agents refuse the owner {when}")
        if len({(each.view.revision, each.view.record.epoch) for each in live}) != 1:
            self.fault(f"replicas know different records {when}")

    def run(self) -> World:
        """The disturbances, then calm."""
        at_s = 0.5
        for disturbance in self.history.disturbances:
            at_s += disturbance.wait_s
            if at_s < ROUGH_S - 2.5:
                self.after(at_s, partial(self.disturb, disturbance))
        for _ in range(2 if self.history.store_loses_end else 0):
            self.after(3 + 12 * self.rng.random(), self.lose_end)
        self.after(ROUGH_S + 0.1, self.announce_all)
        self.after(SETTLED_S, lambda: self.check_settled("after the disturbances"))
        self.after(FAIL_S, self.fail_in_calm)
        self.after(ABLE_S, lambda: self.check_settled("after a failure in calm"))
        while self.heap and self.heap[0][0] < END_S:
            self.now_s, _, work = heapq.heappop(self.heap)
            work()
            self.check()
        self.check_settled("at the end")
        # Only who owns an application finds out that it cannot be served, so it may move once for each that cannot.
        if any(moves > 1 + MOST_REPLICAS for moves in self.moves.values()):
            self.fault("an application changes hands again and again")
        return self
