"""A job's ranges on this aggregator: contents of pushes, the steps made of them, and who waits for which answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from services._jobs.aggregation_frames import (
    MOST_TEXT,
    VALUE_BYTES,
    FetchHeader,
    Header,
    MovedHeader,
    PushHeader,
    RefusedHeader,
    ResultHeader,
    StateHeader,
)
from services.aggregator.core.load import LoadMeter
from services.aggregator.core.memory import most_bytes
from services.aggregator.core.packing import JobLoad
from services.aggregator.core.versions import Outcome, Push, RangeOwnership
from services.aggregator.range_state import OptimizerSpec, RangeState, StateError


class Answering(Protocol):
    """A worker's connection."""

    def answer(self, header: Header, content: bytes = b"") -> None:
        """Queue an answer; a peer that does not read loses its connection."""

    def abort(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is the same for all ranges of a job."""

    job: str
    ranks: int
    optimizer: OptimizerSpec


@dataclass(slots=True)
class _Range:
    length_bytes: int
    owned: RangeOwnership
    state: RangeState | None = None
    leaving: tuple[StateHeader, bytes] | None = None
    """What the next owner has not acknowledged."""
    result: bytes = b""
    """Parameters after the last finished step, once for all ranks' answers."""
    contents: dict[int, bytearray] = field(default_factory=dict)
    reading: dict[int, Answering] = field(default_factory=dict)
    """By rank, or `STATE`, the connection on which its content is coming."""
    waiting: dict[int, set[Answering]] = field(default_factory=dict)
    begin: PushHeader | None = None
    """Of rank 0's content at step 0: which moments stand behind the parameters."""
    fetching: dict[Answering, FetchHeader] = field(default_factory=dict)
    """Who asked for a moment while the range was on its way here."""


class RangeError(ValueError):
    """A range cannot be added, moved or taken; the text says why."""


STATE: Final = -1
"""In place of a rank: an aggregator that sends a range's state."""
MOST_UNFINISHED_STEPS: Final = 16
"""Whose processor time is remembered: ranges of a job differ by one step at most."""


class HostedJob:
    """The ranges of one job here. Each method ends at once: a step takes as long as its arithmetic."""

    def __init__(self, spec: JobSpec, own_address: str, clock_us: Callable[[], int], cpu_us: Callable[[], int]) -> None:
        self.spec = spec
        self._own_address = own_address
        self._clock_us = clock_us
        self._cpu_us = cpu_us
        self._ranges: dict[int, _Range] = {}
        self._load = LoadMeter(spec.job)
        self._busy_us: dict[int, int] = {}
        """Processor time of steps by their number, until the last range has finished them."""

    def add(self, index: int, values: int, version: int, *, moving: bool) -> None:
        """A range that begins here, or (moving) comes from another aggregator.

        Raises:
            RangeError: it is here, or its state from here is not acknowledged, or has another length, or this is no
                later version.
        """
        known = self._ranges.get(index)
        if known is None:
            owned = (
                RangeOwnership(self.spec.ranks, version, None) if moving else RangeOwnership(self.spec.ranks, version)
            )
            self._ranges[index] = _Range(values * VALUE_BYTES, owned)
            return
        expected = known.owned.expect(version) if moving and known.length_bytes == values * VALUE_BYTES else None
        if expected is None or known.leaving:
            raise RangeError(f"range {index} of {self.spec.job} is known here as version {known.owned.version}")
        known.owned = expected

    def wants(self, peer: Answering, rank: int, header: PushHeader, content_bytes: int) -> bool:
        """Whether the content of a push has to be read; others are answered without.

        Where it is coming on another connection already, that one is ended: of two, the older one is the broken one.
        """
        found = self._ranges.get(header.range)
        if found is None or not self._fits(found, rank, header, content_bytes):
            return False
        _, outcome = found.owned.push(Push(rank, header.step, header.version))
        return outcome is Outcome.KEEP and self._reads(found, rank, peer)

    def _fits(self, found: _Range, rank: int, header: PushHeader, content_bytes: int) -> bool:
        """Whether the content has its range's length; rank 0's parameters to begin with may have moments behind them.

        These take no more memory than the state that they become: it is not there before.
        """
        if header.vectors or header.scalars:
            begins = rank == 0 and header.step == 0
            if not begins or not self.spec.optimizer.has_moments(header.vectors, header.scalars):
                return False
        return content_bytes == found.length_bytes * (1 + len(header.vectors))

    @staticmethod
    def _reads(found: _Range, rank: int, peer: Answering) -> bool:
        if (other := found.reading.get(rank)) is not None:
            other.abort()
        found.reading[rank] = peer
        return True

    def push(self, peer: Answering, rank: int, header: PushHeader, content: bytearray | None) -> None:
        """Take a push, answer it or let it wait, and make the step where it was the last one.

        Args:
            peer: who waits for the answer.
            rank: whose push it is.
            header: as it came.
            content: None where `wants` was false; what was wanted then and no longer is, is dropped.
        """
        found = self._ranges.get(header.range)
        if found is None:
            peer.answer(_refused(header.range, header.step, f"{self.spec.job} has no such range here"))
            return
        if found.reading.get(rank) is peer:
            del found.reading[rank]
        owned, outcome = found.owned.push(Push(rank, header.step, header.version))
        if outcome is Outcome.KEEP:
            if content is None:
                reason = f"the range has {found.length_bytes} bytes"
                if header.vectors or header.scalars:
                    reason += f", and moments of {self.spec.optimizer.kind} stand behind rank 0's first push only"
                peer.answer(_refused(header.range, header.step, reason))
                return
            found.owned, found.contents[rank] = owned, content
            if rank == 0 and header.step == 0:
                found.begin = header
        if outcome in (Outcome.KEEP, Outcome.DUPLICATE):
            found.waiting.setdefault(rank, set()).add(peer)
            self._step_if_complete(header.range)
        else:
            self._answer(peer, header.range, header.step, outcome)

    def fetch(self, peer: Answering, header: FetchHeader) -> None:
        """Answer with a moment after the last finished step: at once, or when the range's state has come here."""
        found = self._ranges.get(header.range)
        if found is None:
            peer.answer(_refused(header.range, header.step, f"{self.spec.job} has no such range here"))
        elif header.version < found.owned.version or found.owned.gone_to is not None:
            peer.answer(self._moved(header.range))
        elif found.owned.done is None:
            found.fetching[peer] = header
        else:
            self._answer_fetch(found, peer, header)

    def _answer_fetch(self, found: _Range, peer: Answering, header: FetchHeader) -> None:
        current = header.step == found.owned.done and header.version == found.owned.version
        kept = found.state.vector(header.vector) if found.state is not None and current else None
        if kept is None:
            done = f"version {found.owned.version} is at step {found.owned.done}"
            peer.answer(_refused(header.range, header.step, f"{done}, and has no such {header.vector}"))
            return
        content, scalars = kept
        answer = ResultHeader(range=header.range, step=header.step, vector=header.vector, scalars=scalars)
        peer.answer(answer, content)

    def forget(self, peer: Answering, rank: int) -> None:
        """A connection has ended: its answers go nowhere."""
        for found in self._ranges.values():
            found.fetching.pop(peer, None)
            found.waiting.get(rank, set()).discard(peer)
            if found.reading.get(rank) is peer:
                del found.reading[rank]

    def _answer(self, peer: Answering, index: int, step: int, outcome: Outcome) -> None:
        found = self._ranges[index]
        match outcome:
            case Outcome.RESULT:
                peer.answer(ResultHeader(range=index, step=step), found.result)
            case Outcome.MOVED:
                peer.answer(self._moved(index))
            case Outcome.REFUSED:
                peer.answer(_refused(index, step, f"version {found.owned.version} is at step {found.owned.done}"))

    def _moved(self, index: int) -> MovedHeader:
        owned = self._ranges[index].owned
        return MovedHeader(range=index, version=owned.version, address=owned.gone_to or self._own_address)

    def _step_if_complete(self, index: int) -> None:
        found = self._ranges[index]
        if not found.owned.complete:
            return
        began_us = self._cpu_us()
        contents = [found.contents[rank] for rank in range(self.spec.ranks)]
        if found.state is None:
            begin, found.begin = found.begin, None
            assert begin is not None
            found.state = RangeState.unpacked(self.spec.optimizer, begin.vectors, begin.scalars, contents[0])
        else:
            found.state.step(contents)
        found.result = found.state.parameters
        found.owned = found.owned.finish()
        found.contents = {}
        step = found.owned.done
        assert step is not None
        for peer in self._released(found):
            peer.answer(ResultHeader(range=index, step=step), found.result)
        self._measure(step, self._cpu_us() - began_us)

    @staticmethod
    def _released(found: _Range) -> list[Answering]:
        peers = [peer for waiting in found.waiting.values() for peer in waiting]
        found.waiting = {}
        return peers

    def _measure(self, step: int, busy_us: int) -> None:
        self._busy_us[step] = self._busy_us.get(step, 0) + busy_us
        here = [found.owned.done for found in self._ranges.values() if found.owned.done is not None]
        for finished in sorted(number for number in self._busy_us if number <= min(here)):
            self._load.step(self._clock_us(), self._busy_us.pop(finished))
        if len(self._busy_us) > MOST_UNFINISHED_STEPS:  # workers that push one range only
            del self._busy_us[min(self._busy_us)]

    @property
    def length_bytes(self) -> int:
        """Of all ranges that are here, come or go; not of those that have gone."""
        here = [found for found in self._ranges.values() if found.owned.gone_to is None or found.leaving]
        return sum(found.length_bytes for found in here)

    @property
    def most_bytes(self) -> int:
        """Memory that they take at most."""
        return self.most_bytes_of(self.length_bytes // VALUE_BYTES)

    def most_bytes_of(self, values: int) -> int:
        """Memory that so many values of it take at most."""
        return most_bytes(self.spec.ranks, self.spec.optimizer.vectors, values)

    @property
    def finished(self) -> int | None:
        """The last step that all ranges here have finished, -1: none has begun; None: no range is here."""
        return min((found.owned.done for found in self._ranges.values() if found.owned.done is not None), default=None)

    def load(self) -> JobLoad | None:
        """What the job has asked of this aggregator lately; None before two steps."""
        return self._load.load()

    def leave(self, index: int, version: int, address: str) -> tuple[StateHeader, bytes]:
        """Let a range go: who waits pushes again at the next owner, to which this state has to be sent.

        Until `left` the same call returns the same state.

        Raises:
            RangeError: it is not here, or this is no later version.
        """
        found = self._ranges.get(index)
        if found is not None and found.leaving and found.owned.gone_to == address and found.owned.version == version:
            return found.leaving
        left = found.owned.leave(version, address) if found else None
        if found is None or left is None:
            raise RangeError(f"range {index} of {self.spec.job} is not here, or not before version {version}")
        done = found.owned.done
        assert done is not None
        vectors, scalars, content = found.state.packed() if found.state else ((), {}, b"")
        header = StateHeader(range=index, version=version, done=done, vectors=vectors, scalars=scalars)
        found.owned, found.state, found.result, found.contents, found.begin = left, None, b"", {}, None
        found.leaving = header, content
        for peer in self._released(found):
            peer.answer(self._moved(index))
        return found.leaving

    def left(self, index: int, version: int) -> None:
        """The next owner has acknowledged the state: it is freed."""
        found = self._ranges[index]
        if found.owned.version == version:
            found.leaving = None

    def wants_state(self, peer: Answering, header: StateHeader, content_bytes: int) -> bool:
        """Whether the content of a state has to be read; without it `arrive` says why it is not taken."""
        found = self._ranges.get(header.range)
        parts = len(header.vectors) + 1 if header.done >= 0 else 0
        if found is None or content_bytes != parts * found.length_bytes or parts > 1 + self.spec.optimizer.vectors:
            return False
        return found.owned.arrive(header.version, header.done) is not None and self._reads(found, STATE, peer)

    def arrive(self, header: StateHeader, content: bytearray | None) -> str:
        """Take a range's state, and what was pushed meanwhile; returns why not, or "" (also for a second copy)."""
        found = self._ranges.get(header.range)
        if found is None:
            return f"range {header.range} is not expected"
        if found.owned.has_arrived(header.version):
            return ""
        arrived = found.owned.arrive(header.version, header.done)
        if arrived is None or content is None:
            return f"range {header.range} is not expected as version {header.version}, or has another length"
        if header.done >= 0:
            try:
                found.state = RangeState.unpacked(self.spec.optimizer, header.vectors, header.scalars, content)
            except StateError as error:
                return str(error)
            found.result = found.state.parameters
        pushed = found.owned.kept
        found.owned, outcomes = arrived
        for rank in [rank for rank, outcome in outcomes.items() if outcome is not Outcome.KEEP]:
            del found.contents[rank]
            for peer in found.waiting.pop(rank, set()):
                self._answer(peer, header.range, pushed[rank], outcomes[rank])
        fetching, found.fetching = found.fetching, {}
        for peer, fetch in fetching.items():
            self._answer_fetch(found, peer, fetch)
        self._step_if_complete(header.range)
        return ""


def _refused(index: int, step: int, reason: str) -> RefusedHeader:
    return RefusedHeader(range=index, step=step, reason=reason[:MOST_TEXT])
