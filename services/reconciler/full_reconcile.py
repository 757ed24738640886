"""A full reconcile: dump, plan, write, verify by another dump. Blocks on the kernel, so it runs in a thread."""

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
from services.reconciler.core.errno_actions import (
    ErrnoAction,
    RejectedRules,
    compensating_deletes,
    errno_action,
    failure_problems,
)
from services.reconciler.core.operation import Operation, OperationKind
from services.reconciler.core.ownership import KnownFilters
from services.reconciler.core.plan import Plan, Tally, flush, plan
from services.reconciler.core.problems import Problem, ProblemKind, problem
from services.reconciler.ports import Network, UnreadableError

ROUNDS: Final = 3
"""Rounds of dump and write per reconcile while the kernel changes; remaining differences wait for the backoff."""
NO_REPLY: Final = errno.ENOBUFS
"""errno recorded for a write whose acknowledgement was lost: it may have taken effect."""
_NOT_REPORTED: Final = {ErrnoAction.DONE, ErrnoAction.REFUSED, ErrnoAction.FULL}
"""Not reported per write: of thousands of rejected rules a few are retried in each reconcile."""
_RETRY_NOW: Final = {ErrnoAction.DRIFT, ErrnoAction.VANISHED}
_RETRY_LATER: Final = {ErrnoAction.BUSY, ErrnoAction.UNEXPECTED, ErrnoAction.FATAL}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """An operation and the kernel's errno."""

    operation: Operation
    errno: int
    attempt: int
    in_hw: bool | None = None


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of a full reconcile: the state found, the writes, and what is left."""

    snapshot: Snapshot
    """The last dump."""
    wanted: Desired
    tally: Tally
    writes: tuple[WriteResult, ...]
    verified: bool
    """The last dump equals the desired state, except for rejected rules."""
    retry: bool
    """Something failed that a retry may mend."""
    problems: tuple[Problem, ...]
    digest_before: str = ""
    digest_after: str = ""
    duration_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time."""
    link_names: Mapping[int, str] = field(default_factory=dict)
    """By ifindex, of every dump: a device that was written to may be gone at the end."""

    @property
    def status(self) -> tuple[object, ...]:
        """What is published only when it has changed."""
        failed = frozenset(
            (write.operation.key, write.errno)
            for write in self.writes
            if errno_action(write.operation, write.errno) not in _NOT_REPORTED
        )
        return (self.tally, self.problems, failed, self.verified)

    @property
    def wrote(self) -> bool:
        """Whether the kernel was, or may have been, changed."""
        return any(not write.errno or write.errno == NO_REPLY for write in self.writes)


@dataclass(frozen=True, slots=True)
class CompletedReconcile:
    """A full reconcile, the events that caused it, and the delay since the first of them."""

    result: ReconcileResult
    causes: dict[str, int]
    lag_s: float


class Reconciliation:
    """State between reconciles: rules that the hardware rejected, known managed filters. Not thread-safe."""

    def __init__(self, network: Network, config: ForwardingConfig) -> None:
        self.before_write: Callable[[], None] = lambda: None
        """Called before each series of writes, in the thread that writes."""
        self._context = _Context(network, config, KnownFilters(config.pref), self._before_write)
        self._rejected = RejectedRules()

    def run(self) -> ReconcileResult:
        """Bring the kernel to the desired state.

        Raises:
            UnreadableError: its state cannot be read.
        """
        started_s, cpu_s = time.monotonic(), time.thread_time()
        return self._timed(_Rounds(self._context, self._rejected), started_s, cpu_s)

    def _before_write(self) -> None:
        self.before_write()

    def _timed(self, rounds: _Rounds, started_s: float, cpu_s: float) -> ReconcileResult:
        try:
            rounds.run()
        finally:
            self._rejected = rounds.rejected
        return rounds.result(time.monotonic() - started_s, time.thread_time() - cpu_s)

    def dry_run(self) -> tuple[Snapshot, Desired, Plan]:
        """Plan without writing."""
        snapshot = self._context.snapshot()
        wanted = desired(snapshot, self._context.config)
        return snapshot, wanted, plan(snapshot, wanted)

    def flush(self) -> ReconcileResult:
        """Remove all managed filters and actions."""
        started_s, cpu_s = time.monotonic(), time.thread_time()
        rounds = _Rounds(self._context, self._rejected, flushing=True)
        return self._timed(rounds, started_s, cpu_s)


@dataclass(frozen=True, slots=True)
class _Context:
    """What every round of a reconcile uses."""

    network: Network
    config: ForwardingConfig
    known_filters: KnownFilters
    before_write: Callable[[], None]

    def snapshot(self) -> Snapshot:
        """Dump everything, and recognise managed filters that were edited. Raises `UnreadableError`."""
        return self.known_filters.recognise(self.network.snapshot())


class _Rounds:
    """The rounds of one reconcile, each a dump and a batch of writes."""

    def __init__(self, context: _Context, rejected: RejectedRules, *, flushing: bool = False) -> None:
        self._context = context
        self._network = context.network
        self._config = context.config
        self.rejected = rejected
        self._flushing = flushing
        self._writes: list[WriteResult] = []
        self._failed: tuple[list[Operation], list[int]] = ([], [])
        self._unsupported: str | None = None
        self._read_error = ""
        self._retry = False
        self._names: dict[int, str] = {}
        self._first = self._snapshot = Snapshot()
        self._tally = Tally()
        self._wanted = Desired(context.config)
        self._remaining: tuple[Operation, ...] = ()

    def run(self) -> None:
        self._read_and_plan()
        self._first = self._snapshot
        for attempt in range(1, ROUNDS + 1):
            operations = self.rejected.without_rejected(self._remaining)
            if not operations:
                return
            if not self._flushing and (unsupported := self._network.unsupported()) is not None:
                self._unsupported = unsupported
                return
            try:
                actions = self._write(operations, attempt)
                self._read_and_plan()
            except UnreadableError as error:  # what was written is published all the same
                self._read_error, self._retry = str(error), True
                return
            self._retry = bool(actions & _RETRY_LATER)
            if not actions & _RETRY_NOW and (self._retry or actions != {ErrnoAction.DONE}):
                return
        self._retry = self._retry or bool(self.rejected.without_rejected(self._remaining))

    def _read_and_plan(self) -> None:
        snapshot = self._snapshot = self._context.snapshot()
        self._names |= {link.ifindex: link.name for link in snapshot.links}
        self._wanted = desired(snapshot, self._config)
        self._remaining, self._tally = plan(snapshot, self._wanted)
        if self._flushing:
            self._remaining = flush(snapshot, self._config.pref)

    def _write(self, operations: Sequence[Operation], attempt: int) -> set[ErrnoAction]:
        errnos = self._apply(operations, attempt)
        self.rejected = self.rejected.updated(operations, errnos)
        self._failed = ([*operations], [*errnos])
        if further := compensating_deletes(operations, errnos):
            numbers = self._apply(further, attempt)
            self._failed = ([*operations, *further], [*errnos, *numbers])
        return {errno_action(operation, number) for operation, number in zip(*self._failed, strict=True)}

    def _apply(self, operations: Sequence[Operation], attempt: int) -> list[int]:
        self._context.before_write()
        numbers = [NO_REPLY] * len(operations)
        try:
            numbers = self._network.apply(operations)
        finally:
            pairs = zip(operations, numbers, strict=True)
            self._writes += [WriteResult(operation, number, attempt) for operation, number in pairs]
        return numbers

    def result(self, duration_s: float, cpu_s: float) -> ReconcileResult:
        found, snapshot = list(self._wanted.problems), self._snapshot
        if self._unsupported is not None:
            found.append(problem(ProblemKind.UNSUPPORTED, "kernel", *_split(self._unsupported)))
        if self._read_error:
            found.append(problem(ProblemKind.UNEXPECTED, "kernel", self._read_error, "retried within a second"))
        found += [*_reportable(*self._failed), *self._rejected_problems()]
        wrote = bool(self._writes)
        return ReconcileResult(
            snapshot=snapshot,
            wanted=self._wanted,
            tally=self._tally,
            writes=self._with_offload(),
            verified=not self._read_error
            and all(operation.key in self.rejected.errno_of for operation in self._remaining),
            retry=self._retry,
            problems=tuple(found),
            digest_before=self._digest(self._first) if wrote else "",
            digest_after=self._digest(snapshot) if wrote else "",
            duration_s=duration_s,
            cpu_s=cpu_s,
            link_names=self._names,
        )

    def _rejected_problems(self) -> list[Problem]:
        """Rules that the hardware rejected, also those that were not retried this time."""
        macs: dict[tuple[int, int], list[str]] = defaultdict(list)
        for (_, ifindex, mac), number in self.rejected.errno_of.items():
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

    def _with_offload(self) -> tuple[WriteResult, ...]:
        offloaded = {(rule.ifindex, rule.pref, rule.handle): rule.in_hw for rule in self._snapshot.filters}

        def in_hw(operation: Operation) -> bool | None:
            target = operation.target
            if not isinstance(target, Filter) or operation.kind is OperationKind.DELETE:
                return None
            return offloaded.get((target.ifindex, target.pref, target.handle))

        return tuple(WriteResult(w.operation, w.errno, w.attempt, in_hw(w.operation)) for w in self._writes)


def _reportable(operations: Sequence[Operation], errnos: Sequence[int]) -> tuple[Problem, ...]:
    failed = [
        (operation, number)
        for operation, number in zip(operations, errnos, strict=True)
        if errno_action(operation, number) not in _NOT_REPORTED
    ]
    return failure_problems([operation for operation, _ in failed], [number for _, number in failed])


def _split(text: str) -> tuple[str, str]:
    """Split a text into the problem and its remedy, which follows the last semicolon."""
    what, _, remedy = text.rpartition("; ")
    return what, remedy
