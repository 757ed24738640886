"""Iterations of a training job from a counter of the bytes that it sends: a silence divides them. Pure.

A sending phase begins with the first bytes after a silence of at least 80 ms and of an eighth of the period, so that
the buckets of one gradient are one phase. Before a job has sent 64 KiB it only arranges its connections. Where the
kernel says for how long a connection has been busy, and how long ago it has sent last, a few samples tell begin and end
as well as many: of a known job, one somewhere within a phase and one in the silence after it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

MOVED_BYTES: Final = 3_000
"""Between two samples; less is no gradient."""
LEAST_SILENCE_NS: Final = 80_000_000
SILENCE_SHARE: Final = 8
"""A silence lasts at least the period divided by this."""
FIRST_BYTES: Final = 64 << 10
_PERIODS: Final = 8
_AGREE: Final = 3
"""So many iterations alike are a known job."""
_ALIKE: Final = 0.10
_GAP_NS: Final = 25_000_000
_GAP_SHARE: Final = 20
"""A begin between two samples this far apart, or a twentieth of the period, is not known well enough."""
_FORGET_PERIODS: Final = 2
"""A phase that lasts longer than so many periods is none of them: the job has changed."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a job's connections to other nodes, added up."""

    time_ns: int
    sent_bytes: int
    """Payload, without what was sent again."""
    drops: int = 0
    """Segments that were sent again."""
    busy_ns: int | None = None
    """Of the time since the sample before: for so long there was something to send; None: not known."""
    quiet_ns: int = 0
    """Since something was sent last; only where something was since the sample before, and `busy_ns` is known."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """From the begin of one sending phase to that of the next."""

    begin_ns: int
    period_ns: int
    sending_ns: int
    sent_bytes: int
    drops: int
    paused_ns: int
    """For so long the job was paused within the period."""
    working_ns: int = field(init=False)
    """Its length without pauses."""
    computing_ns: int = field(init=False)
    """For so long it did not send, without pauses; too little where it went on in a pause."""

    def __post_init__(self) -> None:
        """Both are read at each of the next iterations."""
        working_ns = max(0, self.period_ns - self.paused_ns)
        object.__setattr__(self, "working_ns", working_ns)
        object.__setattr__(self, "computing_ns", max(0, working_ns - self.sending_ns))


@dataclass(frozen=True, slots=True)
class PhaseBegin:
    """A sending phase has begun."""

    time_ns: int | None
    """None: between samples that lie too far apart."""
    iteration: Iteration | None
    """That ends with it, if its own begin is known."""


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """A sending phase has ended, some time ago."""

    time_ns: int


class SendingPhases:
    """Sending phases of one job on one node."""

    def __init__(self) -> None:
        self.begin_ns: int | None = None
        """Of the present phase, or of the last one; None: not known."""
        self.is_sending = False
        self.changed_ns: int | None = None
        """When a phase began or ended last."""
        self._first: Counted | None = None
        self._last: Counted | None = None
        """The latest sample."""
        self._base: Counted | None = None
        """The latest one before the present phase, or before the last one."""
        self._moved_ns = 0
        self.is_silent = False
        """Whether the latest sample showed nothing new."""
        self.is_timed = False
        """Whether the kernel tells when something was sent."""
        self._paused_ns = 0
        self._iterations: deque[Iteration] = deque(maxlen=_PERIODS)
        self.ended_ns: int | None = None
        """When the last phase ended; None: not known, or one has begun since."""
        self.period_ns = 0
        """The longest that has occurred twice lately, as a single longer one was a stall; 0: not known. No pauses."""
        self.computing_ns = 0
        """From the end of a phase to the begin of the next one where nothing is paused, lately; 0: not known."""
        self.shortest_ns = 0
        """Likewise, of the iterations of a known job."""
        self.sending_ns = 0
        """How long a sending phase lasts at least, lately; 0: not known."""
        self.longest_sending_ns = 0
        """How long one lasts at most, in the latest iterations of a known job."""
        self._most_bytes = 0
        """That an iteration of a known job sends, lately."""
        self.silence_ns = LEAST_SILENCE_NS
        """So long nothing is sent between two phases, at least."""
        self.is_known = False
        """Whether the latest iterations are alike in period and bytes."""

    @property
    def sampled_ns(self) -> int:
        """When the latest sample was taken; 0: none is of any use."""
        return 0 if self._last is None else self._last.time_ns

    @property
    def ends_ns(self) -> int:
        """When the present phase will have ended, if nothing more is sent."""
        return self._moved_ns + self.silence_ns

    @property
    def is_brief(self) -> bool:
        """Whether a phase of a known job is over before the silence after it is: one sample shows all of it."""
        return self.is_timed and self.is_known and self.longest_sending_ns <= self.silence_ns

    def interrupt(self) -> None:
        """Nothing is sampled for a while: when the present iteration ends will not be known."""
        self.begin_ns, self.ended_ns, self.is_sending, self._last = None, None, False, None

    def note_pause(self, pause_ns: int) -> None:
        """The job is paused in the present iteration."""
        self._paused_ns += pause_ns

    @property
    def may_begin_ns(self) -> int | None:
        """When the next phase of a known job may begin; None: that is not known."""
        if not self.is_known or self.ended_ns is None:
            return None
        return self.ended_ns + self.shortest_ns + self._paused_ns

    @property
    def begins_ns(self) -> int | None:
        """When the next phase of a known job should begin; None: that is not known."""
        if not self.is_known or self.ended_ns is None:
            return None
        return self.ended_ns + self.computing_ns + self._paused_ns

    def observe(self, now: Counted) -> PhaseBegin | PhaseEnd | None:
        """What a sample shows; after a begin, `end` may follow at once. Samples ascend in time; counters never fall."""
        last, self._last = self._last, now
        self.is_timed = now.busy_ns is not None
        if self._first is None:
            self._first = now
        if last is None or last.time_ns >= now.time_ns:
            self._moved_ns = now.time_ns
            return None
        if now.sent_bytes - self._first.sent_bytes < FIRST_BYTES:
            return None
        self.is_silent = now.sent_bytes - last.sent_bytes <= MOVED_BYTES or self._is_between_phases(last, now)
        if not self.is_silent and ((began := self._moved(last, now)) is not None or not self.is_timed):
            return began
        return self.end(now.time_ns)

    def end(self, now_ns: int) -> PhaseEnd | None:
        """Whether the present phase is over by the latest sample, which was taken at this time."""
        if not self.is_sending or now_ns - self._moved_ns < self.silence_ns:
            return None
        if not self.is_timed and not self.is_silent:  # it was sent at any time since the sample before: it may go on
            return None
        self.is_sending, self.changed_ns, self.ended_ns = False, now_ns, self._moved_ns
        return PhaseEnd(self._moved_ns)

    def _is_between_phases(self, last: Counted, now: Counted) -> bool:
        """Whether what a known job has sent in a long time is no phase: little, and nothing of it lately.

        Heartbeats of a library add up where only two samples are taken in an iteration.
        """
        sent_bytes, gap_ns = now.sent_bytes - last.sent_bytes, now.time_ns - last.time_ns
        is_long = self.is_timed and self.is_known and not self.is_sending and gap_ns > self.silence_ns
        return is_long and 2 * sent_bytes < self._most_bytes and now.quiet_ns >= self.silence_ns

    def _moved(self, last: Counted, now: Counted) -> PhaseBegin | None:
        gap_ns = now.time_ns - last.time_ns
        began_ns, moved_ns = _times(last, now)
        if self.is_sending:
            self._moved_ns = moved_ns
            if self.begin_ns is not None and 0 < _FORGET_PERIODS * self.period_ns < moved_ns - self.begin_ns:
                self._iterations.clear()
                self._learn()
                self.begin_ns = None
            return None
        since_ns = 0 if self.begin_ns is None else began_ns - self.begin_ns
        was_silent = last.time_ns - self._moved_ns >= self.silence_ns - gap_ns  # else sampling began within a phase
        known = was_silent and self._is_one_begin(last, now, since_ns)
        if self.begin_ns is not None and not known:
            self.is_known = False  # it began between two samples: until it is measured again, they are close
        iteration = self._iteration(last, since_ns) if known else None
        self.begin_ns, self._paused_ns = began_ns if known else None, 0
        self._base, self.is_sending, self.changed_ns, self._moved_ns = last, True, now.time_ns, moved_ns
        self.ended_ns = None
        return PhaseBegin(self.begin_ns, iteration)

    def _is_one_begin(self, last: Counted, now: Counted, since_ns: int) -> bool:
        """Whether a single phase has begun between two samples, at a time that is known well enough."""
        gap_ns = now.time_ns - last.time_ns
        if not self.is_timed:
            return gap_ns <= max(_GAP_NS, since_ns // _GAP_SHARE)
        if gap_ns <= self.silence_ns:
            return True  # no two phases lie within less than a silence
        # Two phases of a known job would have sent twice as much.
        return self.is_known and now.sent_bytes - last.sent_bytes <= (1 + _ALIKE) * self._most_bytes

    def _iteration(self, until: Counted, period_ns: int) -> Iteration | None:
        if self.begin_ns is None or self._base is None:
            return None
        iteration = Iteration(
            self.begin_ns,
            period_ns,
            max(0, self._moved_ns - self.begin_ns),
            until.sent_bytes - self._base.sent_bytes,
            until.drops - self._base.drops,
            self._paused_ns,
        )
        self._iterations.append(iteration)
        self._learn()
        return iteration

    def _learn(self) -> None:
        known = list(self._iterations)
        working_ns, computing_ns = [each.working_ns for each in known], [each.computing_ns for each in known]
        self.period_ns = sorted(working_ns)[-2] if len(known) > 1 else 0
        self.sending_ns = min([each.sending_ns for each in known], default=0)
        self.computing_ns = int(median(computing_ns)) if known else 0
        latest_bytes = [each.sent_bytes for each in known[-_AGREE:]]
        self.is_known = len(latest_bytes) == _AGREE and _alike(working_ns[-_AGREE:]) and _alike(latest_bytes)
        if self.is_known:
            # Whether it sends beside others or takes turns: the iterations to come are as the latest.
            self.period_ns = max(working_ns[-_AGREE:])
            self.shortest_ns = min(computing_ns[-_AGREE:])
            self.longest_sending_ns = max([each.sending_ns for each in known[-_AGREE:]])
            self._most_bytes = max(latest_bytes)
        self.silence_ns = max(LEAST_SILENCE_NS, self.period_ns // SILENCE_SHARE)


def _alike(values: list[int]) -> bool:
    most = max(values)
    return most - min(values) <= _ALIKE * most


def _times(last: Counted, now: Counted) -> tuple[int, int]:
    """When a job began to send between two samples, and when it did so last: as the kernel says, or halfway."""
    if now.busy_ns is None:
        halfway_ns = now.time_ns - (now.time_ns - last.time_ns) // 2
        return halfway_ns, halfway_ns
    sent_ns = max(last.time_ns, now.time_ns - now.quiet_ns)
    return max(last.time_ns, sent_ns - now.busy_ns), sent_ns
