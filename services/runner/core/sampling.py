"""When to read a job's counters next: often only where a sending phase may begin or end. Pure.

Where the kernel says when something was sent, a known job needs two samples in each iteration: one as it should have
begun to send, one when the silence after that should be over. Of a phase that is shorter than that silence the second
one is enough: a job that waits for its end may begin before the first one could have told anything. Either may be a
little late, and is then taken with others in one wake-up, as timers with a slack expire together (prctl(2),
PR_SET_TIMERSLACK).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.runner.core.sending_phases import SendingPhases

EVERY_NS: Final = 10_000_000
"""Where a phase may begin, and while the job is not known; if the kernel does not tell when something was sent."""
END_SHARE: Final = 8
"""What still sends is looked at so often within the silence that ends a phase; once silent, when that is over."""
_TIMED_SHARE: Final = 2
"""Where the kernel tells when something was sent, a begin that is late, or of a job that is not known, is looked for so
often within such a silence: each phase is seen then, and its times are as exact as with more samples."""
_UNKNOWN_SLACK_SHARE: Final = 4
"""Of such a silence, for the samples of a job that is not known."""
_TICKS_NS: Final = 8_000_000
"""Two of the kernel's ticks (CONFIG_HZ=250): what has just begun may not show yet."""
_BEGIN_SLACK_SHARE: Final = 50
"""Of the period: a begin may be seen so late. The scheduler waits as long for one (`turns.MISSED`)."""
_END_SLACK_SHARE: Final = 8
"""Of what is left of the computing time once the silence is over: an end may be seen so late."""
_BRIEF_SLACK_SHARE: Final = 4
"""The same of a brief phase, whose end is followed by most of the period."""
IDLE_EVERY_NS: Final = 100_000_000
"""Where nothing has begun or ended for `IDLE_NS`: it sends all the time, or never."""
IDLE_NS: Final = 10_000_000_000
REST_NS: Final = 10_000_000_000
"""A known job that is not paced is left unmeasured for so long, after `REST_AFTER` iterations."""
REST_AFTER: Final = 10
_EARLY_NS: Final = 40_000_000
_EARLY_SHARE: Final = 16
_SENDING_SHARE: Final = 0.9


class SampleWindow(NamedTuple):
    """When to read a job's counters."""

    due_ns: int
    """From then on."""
    latest_ns: int
    """The process is woken for it alone at this time, if nothing else has woken it since `due_ns`."""


def next_window(phases: SendingPhases, now_ns: int, not_before_ns: int = 0) -> SampleWindow:
    """When to sample a job next.

    Args:
        phases: what is known of it.
        now_ns: of the latest sample.
        not_before_ns: when it goes on, if it is paused.
    """
    due_ns = max(next_sample_ns(phases, now_ns), not_before_ns)
    if phases.is_timed:
        return SampleWindow(due_ns, due_ns + _slack_ns(phases))
    due_ns = due_ns // EVERY_NS * EVERY_NS + EVERY_NS  # with other such jobs
    return SampleWindow(due_ns, due_ns)


def _slack_ns(phases: SendingPhases) -> int:
    if not phases.is_known or phases.begin_ns is None:
        return phases.silence_ns // _UNKNOWN_SLACK_SHARE
    begin_ns, left_ns = phases.period_ns // _BEGIN_SLACK_SHARE, phases.shortest_ns - phases.silence_ns
    if phases.is_sending:
        return max(EVERY_NS, left_ns // _END_SLACK_SHARE)
    return max(EVERY_NS, left_ns // _BRIEF_SLACK_SHARE - begin_ns) if phases.is_brief else begin_ns


def next_sample_ns(phases: SendingPhases, now_ns: int) -> int:
    """When to sample next, if the job is not paused."""
    if not phases.is_known or phases.begin_ns is None:
        idle = phases.changed_ns is not None and now_ns - phases.changed_ns > IDLE_NS
        every_ns = phases.silence_ns // _TIMED_SHARE if phases.is_timed else EVERY_NS
        return now_ns + (IDLE_EVERY_NS if idle else every_ns)
    if phases.is_sending and phases.is_silent:
        return max(phases.ends_ns, now_ns + EVERY_NS)
    if phases.is_timed:
        return _next_timed_ns(phases, now_ns)
    if phases.is_sending:
        ends_ns = phases.begin_ns + int(phases.sending_ns * _SENDING_SHARE)
        return max(ends_ns, now_ns + phases.silence_ns // END_SHARE)
    if phases.may_begin_ns is None:
        return now_ns + EVERY_NS
    return max(phases.may_begin_ns - max(_EARLY_NS, phases.period_ns // _EARLY_SHARE), now_ns + EVERY_NS)


def _next_timed_ns(phases: SendingPhases, now_ns: int) -> int:
    """Once a phase should have begun, or its end should show: the kernel says when that was."""
    if phases.is_sending:
        assert phases.begin_ns is not None
        ends_ns = phases.begin_ns + phases.sending_ns + _TICKS_NS
        return max(phases.ends_ns, ends_ns + phases.silence_ns, now_ns + EVERY_NS)
    begins_ns = phases.begins_ns
    if begins_ns is None:
        return now_ns + EVERY_NS
    if phases.is_brief:  # it may begin as late as any, and is over then all the same
        begins_ns += phases.period_ns // _BEGIN_SLACK_SHARE + phases.longest_sending_ns + phases.silence_ns
    return max(begins_ns + _TICKS_NS, now_ns + phases.silence_ns // _TIMED_SHARE)
