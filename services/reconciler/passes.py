"""One pass: look, compare, write, look again. Blocks for as long as the kernel takes, so it runs in a thread."""

from __future__ import annotations

import errno
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services._host.netlink.objects import Filter, Snapshot
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.desired import Desired, desired
from services.reconciler.core.digest import forwarding_digest, rules_digest
from services.reconciler.core.operation import Operation, OperationKind
from services.reconciler.core.outcome import Refusals, Verdict, failures, remedies, verdict
from services.reconciler.core.ownership import KnownPlaces
from services.reconciler.core.plan import Tally, flush, plan, tally
from services.reconciler.core.problems import Problem, ProblemKind, problem
from services.reconciler.ports import Network, UnreadableError

ROUNDS: Final = 3
"""Looks and writes of one pass, where the kernel changes meanwhile; what then still differs waits for the backoff."""
LOST: Final = errno.ENOBUFS
"""Of a write whose answer was lost: it may be done or not."""
_QUIET: Final = {Verdict.DONE, Verdict.REFUSED, Verdict.FULL}
"""No news by themselves: thousands of refused rules are tried again a few at a time."""
_AGAIN_AT_ONCE: Final = {Verdict.DRIFT, Verdict.VANISHED}
_AGAIN_LATER: Final = {Verdict.BUSY, Verdict.UNEXPECTED, Verdict.FATAL}


@dataclass(frozen=True, slots=True)
class Write:
    """An operation and its outcome."""

    operation: Operation
    errno: int
    attempt: int
    in_hw: bool | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass found and did."""

    snapshot: Snapshot
    """The last look."""
    wanted: Desired
    tally: Tally
    writes: tuple[Write, ...]
    verified: bool
    """The last look showed what should be there, but for what is refused."""
    retry: bool
    """Something failed that may work soon."""
    problems: tuple[Problem, ...]
    digest_before: str = ""
    digest_after: str = ""
    duration_s: float = 0.0
    cost_s: float = 0.0
    """Processor time."""
    link_names: Mapping[int, str] = field(default_factory=dict)
    """By ifindex, of every look of the pass: a device that is written to may be gone at the end."""

    @property
    def verdict(self) -> tuple[object, ...]:
        """What is told again only when it has changed."""
        failed = frozenset(
            (write.operation.key, write.errno)
            for write in self.writes
            if verdict(write.operation, write.errno) not in _QUIET
        )
        return (self.tally, self.problems, failed, self.verified)

    @property
    def wrote(self) -> bool:
        """Whether the kernel is not what it was."""
        return any(not write.errno or write.errno == LOST for write in self.writes)


class Reconciliation:
    """State between passes: what the hardware has refused, where filters of ours are. Of one thread at a time."""

    def __init__(self, network: Network, config: ForwardingConfig) -> None:
        self.before_write: Callable[[], None] = lambda: None
        """Called before each series of writes, in the thread that writes."""
        self._host = _Host(network, config, KnownPlaces(config.pref), self._before_write)
        self._refusals = Refusals()

    def run(self) -> Pass:
        """Make the kernel hold what it should.

        Raises:
            UnreadableError: nothing can be said about it.
        """
        started_s, cost_s = time.monotonic(), time.thread_time()
        return self._timed(_Rounds(self._host, self._refusals), started_s, cost_s)

    def _before_write(self) -> None:
        self.before_write()

    def _timed(self, rounds: _Rounds, started_s: float, cost_s: float) -> Pass:
        try:
            rounds.run()
        finally:
            self._refusals = rounds.refusals
        return rounds.result(time.monotonic() - started_s, time.thread_time() - cost_s)

    def look(self) -> tuple[Snapshot, Desired, tuple[Operation, ...], Tally]:
        """What would be written now; nothing is."""
        snapshot = self._host.snapshot()
        wanted = desired(snapshot, self._host.config)
        return snapshot, wanted, plan(snapshot, wanted), tally(snapshot, wanted)

    def flush(self) -> Pass:
        """Remove everything of ours."""
        started_s, cost_s = time.monotonic(), time.thread_time()
        rounds = _Rounds(self._host, self._refusals, flushing=True)
        return self._timed(rounds, started_s, cost_s)


@dataclass(frozen=True, slots=True)
class _Host:
    """What a pass is about."""

    network: Network
    config: ForwardingConfig
    places: KnownPlaces
    before_write: Callable[[], None]

    def snapshot(self) -> Snapshot:
        """Everything, with filters of ours recognised that were edited. Raises `UnreadableError`."""
        return self.places.recognise(self.network.snapshot())


class _Rounds:
    """The looks and writes of one pass."""

    def __init__(self, host: _Host, refusals: Refusals, *, flushing: bool = False) -> None:
        self._host = host
        self._network = host.network
        self._config = host.config
        self.refusals = refusals
        self._flushing = flushing
        self._writes: list[Write] = []
        self._failed: tuple[list[Operation], list[int]] = ([], [])
        self._lacks: str | None = None
        self._unread = ""
        self._retry = False
        self._names: dict[int, str] = {}
        self._first = self._snapshot = Snapshot()
        self._wanted = Desired(host.config)
        self._left: tuple[Operation, ...] = ()

    def run(self) -> None:
        self._look()
        self._first = self._snapshot
        for attempt in range(1, ROUNDS + 1):
            operations = self.refusals.hold_back(self._left)
            if not operations:
                return
            if not self._flushing and (lacks := self._network.unsupported()) is not None:
                self._lacks = lacks
                return
            try:
                verdicts = self._write(operations, attempt)
                self._look()
            except UnreadableError as error:  # what was written has to be told all the same
                self._unread, self._retry = str(error), True
                return
            self._retry = bool(verdicts & _AGAIN_LATER)
            if not verdicts & _AGAIN_AT_ONCE and (self._retry or verdicts != {Verdict.DONE}):
                return
        self._retry = self._retry or bool(self.refusals.hold_back(self._left))

    def _look(self) -> None:
        snapshot = self._snapshot = self._host.snapshot()
        self._names |= {link.ifindex: link.name for link in snapshot.links}
        self._wanted = desired(snapshot, self._config)
        self._left = flush(snapshot, self._config.pref) if self._flushing else plan(snapshot, self._wanted)

    def _write(self, operations: Sequence[Operation], attempt: int) -> set[Verdict]:
        errnos = self._apply(operations, attempt)
        self.refusals = self.refusals.learn(operations, errnos)
        self._failed = ([*operations], [*errnos])
        if further := remedies(operations, errnos):
            numbers = self._apply(further, attempt)
            self._failed = ([*operations, *further], [*errnos, *numbers])
        return {verdict(operation, number) for operation, number in zip(*self._failed, strict=True)}

    def _apply(self, operations: Sequence[Operation], attempt: int) -> list[int]:
        self._host.before_write()
        numbers = [LOST] * len(operations)
        try:
            numbers = self._network.apply(operations)
        finally:
            pairs = zip(operations, numbers, strict=True)
            self._writes += [Write(operation, number, attempt) for operation, number in pairs]
        return numbers

    def result(self, duration_s: float, cost_s: float) -> Pass:
        found, snapshot = list(self._wanted.problems), self._snapshot
        if self._lacks is not None:
            found.append(problem(ProblemKind.UNSUPPORTED, "kernel", *_split(self._lacks)))
        if self._unread:
            found.append(problem(ProblemKind.UNEXPECTED, "kernel", self._unread, "retried within a second"))
        found += [*_failures(*self._failed), *self._refused()]
        told = bool(self._writes)
        return Pass(
            snapshot=snapshot,
            wanted=self._wanted,
            tally=tally(snapshot, self._wanted),
            writes=self._with_offload(),
            verified=not self._unread and all(operation.key in self.refusals.errno_of for operation in self._left),
            retry=self._retry,
            problems=tuple(found),
            digest_before=self._digest(self._first) if told else "",
            digest_after=self._digest(snapshot) if told else "",
            duration_s=duration_s,
            cost_s=cost_s,
            link_names=self._names,
        )

    def _refused(self) -> list[Problem]:
        """All that the hardware did not take, also what was not tried again this time."""
        macs: dict[tuple[int, int], list[str]] = defaultdict(list)
        for (_, ifindex, mac), number in self.refusals.errno_of.items():
            macs[number, ifindex].append(mac)
        found = []
        for (number, ifindex), subjects in sorted(macs.items()):
            full = number == errno.ENOSPC
            what = "the table of rules is full" if full else "the NIC refuses rules"
            remedy = "raise the NIC's flow table size" if full else "check switchdev mode and hw-tc-offload"
            kind = ProblemKind.TABLE_FULL if full else ProblemKind.REFUSED
            place = self._names.get(ifindex, f"ifindex {ifindex}")
            what = f"{what} [{errno.errorcode.get(number, number)}], {len(subjects)} go by the bridge"
            found.append(problem(kind, place, what, remedy, subjects))
        return found

    def _digest(self, snapshot: Snapshot) -> str:
        return f"{forwarding_digest(snapshot)}/{rules_digest(snapshot, self._config.pref)}"

    def _with_offload(self) -> tuple[Write, ...]:
        places = {(rule.ifindex, rule.pref, rule.handle): rule.in_hw for rule in self._snapshot.filters}

        def in_hw(operation: Operation) -> bool | None:
            target = operation.target
            if not isinstance(target, Filter) or operation.kind is OperationKind.DELETE:
                return None
            return places.get((target.ifindex, target.pref, target.handle))

        return tuple(Write(w.operation, w.errno, w.attempt, in_hw(w.operation)) for w in self._writes)


def _failures(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Problem, ...]:
    told = [(o, number) for o, number in zip(operations, errnos, strict=True) if verdict(o, number) not in _QUIET]
    return failures([operation for operation, _ in told], [number for _, number in told])


def _split(text: str) -> tuple[str, str]:
    """What is wrong, and the remedy behind the last semicolon."""
    what, _, remedy = text.rpartition("; ")
    return what, remedy
