"""What must hold of memory and CPU limits at every moment, checked against files and messages. Pure: times come in.

1. In the files: the sum of limits never exceeds the application's.
2. In a node's batch: the sum of limits and what is left of its reserve do not either.
3. No kill while memory was available, unless an event said before why nothing could be granted.
4. Nobody waits at a limit for longer than the deadline.
5. Epochs of an application only rise.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.oom import OomEvent, OomKind
from tests.support.limit_observer import Reading

GRACE_S: Final = 10.0
"""Beyond the deadline: agent, watchdog and we may get no processor for seconds; whom nobody answers waits for ever."""
ROOM_BYTES: Final = 24 << 20
"""So much slack per container cannot be taken back at once: what it needs for the loop, and a margin."""
RECENT_S: Final = 1.5
"""A kill is judged by the most that was used in so much time before it."""
EXPLAINED_S: Final = 5.0
"""An event that is not further away than this from a kill explains it."""


class Kill(NamedTuple):
    """One rise of a kernel's counter, or one that only an event tells of: the group may be gone before it is read."""

    time_s: float
    app: str
    container: str
    usage_bytes: int
    """Most that the application used lately."""
    exhausted: bool
    """Whether the application had nothing left that could have been given."""


class _Recent(NamedTuple):
    time_s: float
    usage_bytes: int
    groups: int


@dataclass(slots=True)
class _Wait:
    """Consecutive samples in which tasks wait at one limit."""

    since_s: float
    latest_s: float
    limit_bytes: int


@dataclass(slots=True)
class Excess:
    """Successive samples in which a sum is above its limit."""

    index: int
    """In `violations`."""
    since_s: float
    until_s: float
    most: int


def container_of(directory: str) -> str:
    """Key of a managed group."""
    return directory.rpartition("/")[2]


@dataclass
class Rules:
    """Feed it in any order; `violations` grows at once where that is possible, else in `finish`."""

    deadline_s: float = 2.0
    specs: dict[str, AppSpec] = field(default_factory=dict)
    """Applications that are watched; messages and files of others are ignored."""
    violations: list[str] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    events: list[tuple[float, OomEvent]] = field(default_factory=list)
    newest: dict[tuple[str, str], CfsBatch] = field(default_factory=dict)
    """Batches by application and node."""
    longest_pause_s: float = 0.0
    pauses: int = 0
    samples: int = 0
    batches: int = 0
    highest_limit_share: float = 0.0
    """Largest sum of memory limits seen, as a share of the application's."""
    _waits: dict[str, _Wait] = field(default_factory=dict)
    excesses: list[Excess] = field(default_factory=list)
    _excesses: dict[tuple[str, str], Excess] = field(default_factory=dict)
    """Those that last, by application and unit."""
    _kill_counts: dict[str, int] = field(default_factory=dict)
    _recent: defaultdict[str, deque[_Recent]] = field(default_factory=lambda: defaultdict(deque))
    _epochs: dict[str, int] = field(default_factory=dict)

    # -- files -------------------------------------------------------------------------------------------------

    def sample(self, time_s: float, apps: dict[str, dict[str, Reading]]) -> None:
        """Take in one sample of all groups."""
        self.samples += 1
        for app, groups in apps.items():
            if app in self.specs:
                self._sums(time_s, app, groups)
                for directory, reading in groups.items():
                    self._wait(time_s, directory, reading)
                    self._count_kills(time_s, app, directory, reading)
        gone = [directory for directory in self._waits if not any(directory in groups for groups in apps.values())]
        for directory in gone:
            self._end_wait(directory)

    def _sums(self, time_s: float, app: str, groups: dict[str, Reading]) -> None:
        spec = self.specs[app]
        limit_bytes = sum(max(reading.limit_bytes, 0) for reading in groups.values())
        quota_us = sum(max(reading.quota_us, 0) for reading in groups.values())
        # A container that has its floor, and no more, counts: nothing is raised until the sum fits (decision 117).
        floors_us = sum(reading.quota_us == spec.floor_quota_us for reading in groups.values()) * spec.floor_quota_us
        floor_bytes = int(spec.container_floor_memory)
        floors_bytes = sum(reading.limit_bytes == floor_bytes for reading in groups.values()) * floor_bytes
        self._compare(time_s, (app, "bytes"), limit_bytes, int(spec.memory_limit) + floors_bytes)
        self._compare(time_s, (app, "us"), quota_us, spec.cpu_limit_us + floors_us)
        self.highest_limit_share = max(self.highest_limit_share, limit_bytes / spec.memory_limit)
        recent = self._recent[app]
        recent.append(_Recent(time_s, sum(reading.usage_bytes for reading in groups.values()), len(groups)))
        while recent[0].time_s < time_s - RECENT_S:
            recent.popleft()

    def _compare(self, time_s: float, what: tuple[str, str], held: int, limit: int) -> None:
        """Successive samples above the limit are one violation."""
        if held <= limit:
            self._excesses.pop(what, None)
            return
        excess = self._excesses.get(what)
        if excess is None:
            excess = self._excesses[what] = Excess(len(self.violations), time_s, time_s, held)
            self.excesses.append(excess)
            self.violations.append("")
        excess.most, excess.until_s = max(excess.most, held), time_s
        self.violations[excess.index] = (
            f"{excess.since_s:.2f} s: {what[0]}: files hold up to {excess.most} of {limit} {what[1]} "
            f"for {time_s - excess.since_s:.2f} s"
        )

    def _wait(self, time_s: float, directory: str, reading: Reading) -> None:
        wait = self._waits.get(directory)
        if not reading.waiting:
            if wait is not None:
                self._end_wait(directory)
        elif wait is None or reading.limit_bytes != wait.limit_bytes or reading.kills > self._kill_counts[directory]:
            if wait is not None:
                self._end_wait(directory)  # more was granted, or one was killed, between two samples
            self.pauses += 1
            self._waits[directory] = _Wait(time_s, time_s, reading.limit_bytes)
        else:
            wait.latest_s = time_s

    def _end_wait(self, directory: str) -> None:
        wait = self._waits.pop(directory)
        lasted_s = wait.latest_s - wait.since_s
        self.longest_pause_s = max(self.longest_pause_s, lasted_s)
        if lasted_s > self.deadline_s + GRACE_S:
            self._violated(wait.since_s, f"{container_of(directory)} waited for {lasted_s:.2f} s")

    def _count_kills(self, time_s: float, app: str, directory: str, reading: Reading) -> None:
        before = self._kill_counts.get(directory, 0)
        self._kill_counts[directory] = reading.kills
        for _ in range(reading.kills - before):
            self._killed(time_s, app, container_of(directory))

    def _killed(self, time_s: float, app: str, container: str) -> None:
        before = [recent for recent in self._recent[app] if recent.time_s <= time_s]
        usage_bytes = max((recent.usage_bytes for recent in before), default=0)
        groups = max((recent.groups for recent in before), default=0)
        spec = self.specs[app]
        left_bytes = int(spec.memory_limit) - usage_bytes
        # Kept for the others, where it was above its fair share
        kept_bytes = int(spec.memory_limit * spec.sigma) * max(groups - 1, 0) // max(groups, 1)
        exhausted = left_bytes < groups * ROOM_BYTES + kept_bytes
        self.kills.append(Kill(time_s, app, container, usage_bytes, exhausted))

    # -- messages ----------------------------------------------------------------------------------------------

    def batch(self, time_s: float, batch: CfsBatch) -> None:
        """Take in a batch."""
        spec, before = self.specs.get(batch.app), self.newest.get((batch.app, batch.node))
        if spec is None or (before is not None and (batch.incarnation, batch.report_seq) < _identity(before)):
            return
        self.newest[batch.app, batch.node] = batch
        self.batches += 1
        held_bytes = held_by(batch)
        floor_bytes = int(spec.container_floor_memory)
        floors_bytes = batch.column("memory_limit_bytes").tolist().count(floor_bytes) * floor_bytes
        if held_bytes > spec.memory_limit + floors_bytes:
            self._violated(time_s, f"{batch.app}: {batch.node} reports {held_bytes} of {int(spec.memory_limit)} bytes")

    def decisions(self, time_s: float, decisions: LimitDecisions) -> None:
        """Take in decisions."""
        before = self._epochs.get(decisions.app, 0)
        if decisions.epoch < before and decisions.app in self.specs:
            self._violated(time_s, f"{decisions.app}: epoch {decisions.epoch} decides after {before}")
        self._epochs[decisions.app] = max(before, decisions.epoch)

    def oom(self, time_s: float, event: OomEvent) -> None:
        """Take in what an agent tells; time_s: when it happened, on our clock."""
        if event.app in self.specs:
            self.events.append((time_s, event))

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Everything that was wrong."""
        for directory in list(self._waits):
            self._end_wait(directory)
        for kill in self.kills:
            if not kill.exhausted and not self.reasons_of(kill):
                left_mib = (int(self.specs[kill.app].memory_limit) - kill.usage_bytes) >> 20
                self._violated(kill.time_s, f"{kill.container} was killed while {left_mib} MiB were left, unexplained")
        return self.violations

    def reasons_of(self, kill: Kill) -> list[str]:
        """What was said about a kill."""
        wanted = {OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED, OomKind.KILL}
        return [
            event.reason
            for time_s, event in self.events
            if event.container == kill.container
            and event.kind in wanted
            and abs(time_s - kill.time_s) < EXPLAINED_S
            and event.reason
        ]

    @property
    def killed_while_available(self) -> list[Kill]:
        """Kills, explained or not, while the application had memory left."""
        return [kill for kill in self.kills if not kill.exhausted]

    def _violated(self, time_s: float, what: str) -> None:
        self.violations.append(f"{time_s:.2f} s: {what}")


def _identity(batch: CfsBatch) -> tuple[int, int]:
    return batch.incarnation, batch.report_seq


def held_by(batch: CfsBatch) -> int:
    """Limits and what is left of the reserve, bytes."""
    limits = batch.column("memory_limit_bytes")
    return int(limits[limits > 0].sum()) + reserve_left(batch)


def reserve_left(batch: CfsBatch) -> int:
    """What the node may still grant, bytes."""
    return batch.reserve_given_bytes - batch.reserve_used_bytes
