"""How long to pause a job so that it does not begin to send before its turn. Pure.

Where a sending phase has ended, the next one follows after the job's computing time, however long it has sent beside
others; so that is the moment to say when it is due. The scheduler answers with its turn where it has to wait. Closed
loop: what a pause has achieved is measured at the next begin, and what was absorbed is added to the next pause (a
process that waits in a long sleep, or a GPU with work in its queue, goes on while its program is stopped). A job is
only ever made later, and without an answer it is not paused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

TOLERANCE: Final = 0.01
"""Of the period; a begin that is earlier by less is as wanted."""
LEAST_PAUSE_NS: Final = 10_000_000
"""Begins are not known any better."""
_ABSORBED: Final = 3
"""Pauses in a row that were absorbed by some time; in one, the job may have computed faster than usual."""
_SPARE: Final = 0.015
"""Of the period: a job that may begin so soon is not stopped any more, as that is never done while it sends."""


@dataclass(frozen=True, slots=True)
class PauseDecision:
    """What to do in the silence after a sending phase."""

    pause_ns: int = 0
    """So much longer than before; below 0: shorter."""
    refused: str = ""
    """Why a pause that is needed is not made."""


class PhaseControl:
    """One job, which is not to begin to send before `begin_ns`."""

    def __init__(self, begin_ns: int, period_ns: int, longest_pause_ns: int) -> None:
        """Pace a job.

        Args:
            begin_ns: when it may begin to send next.
            period_ns: it never waits any longer.
            longest_pause_ns: a longer one is refused, as the job's collective operations would fail.
        """
        self._begin_ns, self._period_ns, self._longest_pause_ns = begin_ns, period_ns, longest_pause_ns
        self._due_ns: int | None = None
        """When it begins without a pause; None: it sends."""
        self._asked_ns = 0
        """In this iteration."""
        self._absorbed_ns: deque[int] = deque(maxlen=_ABSORBED)
        """Of the last pauses."""

    def move(self, begin_ns: int, period_ns: int) -> None:
        """Give it another turn; what was learned of it stays."""
        self._begin_ns, self._period_ns = begin_ns, period_ns

    def began(self, time_ns: int) -> int:
        """Learn a measured begin of a sending phase; returns how much later (below 0: earlier) than wanted it was."""
        if self._asked_ns and self._due_ns is not None:
            achieved_ns = max(0, time_ns - self._due_ns)
            self._absorbed_ns.append(min(self._period_ns, max(0, self._asked_ns - achieved_ns)))
        wanted_ns = self._begin_ns if self._due_ns is None else max(self._begin_ns, self._due_ns)
        self.missed()
        error_ns = time_ns - wanted_ns
        return error_ns if abs(error_ns) < self._period_ns else 0

    def missed(self) -> None:
        """A begin was not seen: what the last pause has achieved is not known."""
        self._due_ns, self._asked_ns = None, 0

    def ended(self, end_ns: int, computing_ns: int) -> int:
        """A sending phase has ended; returns when the next one begins without a pause.

        Args:
            end_ns: when it ended.
            computing_ns: from there to the next begin, where the job is not paused.
        """
        self._due_ns, self._asked_ns = end_ns + computing_ns, 0
        return self._due_ns

    def wait(self, now_ns: int, frozen_until_ns: int) -> PauseDecision:
        """What to do now that it has another turn. A pause is taken as made.

        Args:
            now_ns: of the same clock.
            frozen_until_ns: when the present pause ends; 0: there is none.
        """
        if self._due_ns is None:
            return PauseDecision()
        wanted_ns = max(0, min(self._period_ns, self._begin_ns - self._due_ns))
        if wanted_ns < max(LEAST_PAUSE_NS, int(TOLERANCE * self._period_ns)):
            wanted_ns = 0
        if wanted_ns and len(self._absorbed_ns) == _ABSORBED:
            wanted_ns += min(self._absorbed_ns)
        if wanted_ns > self._longest_pause_ns:
            longest_s = self._longest_pause_ns / 1e9
            return PauseDecision(refused=f"a pause of {wanted_ns / 1e9:.3g} s is longer than {longest_s:.3g} s")
        pause_ns = max(wanted_ns - self._asked_ns, min(0, now_ns - frozen_until_ns) if frozen_until_ns else 0)
        soon = self._due_ns + self._asked_ns - now_ns < _SPARE * self._period_ns
        if soon and not frozen_until_ns:
            return PauseDecision()
        self._asked_ns += pause_ns
        return PauseDecision(pause_ns)
