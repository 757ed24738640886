"""What an owner of a range does with each push: taken once per (step, rank), whatever is lost, doubled or late. Pure.

A range is a part of a job's flat vector, which one aggregator owns. Its version rises with each move, so that a push
says by which owner its sender goes. Step 0 is the parameters to begin with, each later one a gradient. A rank pushes a
step only after the answer to the one before: that no step but the last finished and the next can be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

UNSTARTED: Final = -1
"""The finished step of a range whose parameters have not come."""


class Outcome(Enum):
    """What becomes of a push."""

    KEEP = "keep"
    """Keep its content, in place of any of this rank; it is answered when the step is finished."""
    DUPLICATE = "duplicate"
    """Its content is there already; it is answered when the step is finished."""
    RESULT = "result"
    """The step is finished: answer with the parameters."""
    MOVED = "moved"
    """Another version is in force: answer with it and its owner."""
    STALE = "stale"
    """A copy of a push that was answered: drop it."""
    REFUSED = "refused"
    """No worker of this job could have sent it."""


@dataclass(frozen=True, slots=True)
class Push:
    """The key of one rank's content for one step of a range."""

    rank: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class RangeOwnership:
    """One range as its present, coming or former owner sees it."""

    ranks: int
    version: int
    """In force, as far as is known here."""
    done: int | None = UNSTARTED
    """The last finished step; None: it is coming with the state, or has gone with it."""
    gone_to: str | None = None
    """Address of the next owner; None: it is here, or on its way here."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """Step of the content that is kept of each rank."""

    @property
    def complete(self) -> bool:
        """Whether every rank's content for the next step is there."""
        return self.done is not None and len(self.kept) == self.ranks

    def push(self, push: Push) -> tuple[RangeOwnership, Outcome]:
        """Take one push."""
        if not 0 <= push.rank < self.ranks or push.step < 0 or push.version > self.version:
            return self, Outcome.REFUSED
        if push.version < self.version or self.gone_to is not None:
            return self, Outcome.MOVED
        if self.done is None:
            return self._push_while_moving(push)
        outcome = _compared(push.step, self.done)
        if outcome is Outcome.KEEP and push.rank in self.kept:
            outcome = Outcome.DUPLICATE
        return (self._keeping(push) if outcome is Outcome.KEEP else self), outcome

    def _push_while_moving(self, push: Push) -> tuple[RangeOwnership, Outcome]:
        """The step cannot be compared yet: of each rank the newest is kept."""
        kept = self.kept.get(push.rank, UNSTARTED)
        if push.step <= kept:
            return self, Outcome.DUPLICATE if push.step == kept else Outcome.STALE
        return self._keeping(push), Outcome.KEEP

    def _keeping(self, push: Push) -> RangeOwnership:
        return replace(self, kept={**self.kept, push.rank: push.step})

    def finish(self) -> RangeOwnership:
        """The next step has been computed from what every rank has pushed."""
        assert self.done is not None
        assert self.complete
        return replace(self, done=self.done + 1, kept={})

    def leave(self, version: int, address: str) -> RangeOwnership | None:
        """The range goes to another owner, as this version; None: that is no later version, or it is not here.

        What is kept of an unfinished step is dropped: its senders are answered `MOVED`, and push it again there.
        """
        if self.done is None or version <= self.version:
            return None
        return replace(self, version=version, done=None, gone_to=address, kept={})

    def expect(self, version: int) -> RangeOwnership | None:
        """The range will come here as this version; None: it is here, or that is no later version."""
        if self.gone_to is None or version <= self.version:
            return None
        return replace(self, version=version, gone_to=None)

    def arrive(self, version: int, done: int) -> tuple[RangeOwnership, dict[int, Outcome]] | None:
        """The state has come, and what becomes of each rank's kept content; None: it is not what is expected."""
        if self.done is not None or self.gone_to is not None or version != self.version or done < UNSTARTED:
            return None
        outcomes = {rank: _compared(step, done) for rank, step in self.kept.items()}
        kept = {rank: step for rank, step in self.kept.items() if outcomes[rank] is Outcome.KEEP}
        return replace(self, done=done, kept=kept), outcomes

    def has_arrived(self, version: int) -> bool:
        """Whether the state of this version has been taken: a second copy of it is acknowledged and dropped."""
        return version < self.version or (version == self.version and (self.done is not None))


def _compared(step: int, done: int) -> Outcome:
    if step == done + 1:
        return Outcome.KEEP
    if step == done:
        return Outcome.RESULT
    return Outcome.STALE if step < done else Outcome.REFUSED
