"""Throttled periods are told while they run, and only once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.cgroup_snapshot import UNLIMITED, ThrottleSnapshot
from services.agent.containers.sample_state import NOTHING_REPORTED
from services.agent.sampling.sampler import PeriodSample, in_progress, mark_reported, with_in_progress

QUOTA_US = 20_000
NONE_REPORTED = np.array([[NOTHING_REPORTED, NOTHING_REPORTED, 0]])


def look(*, throttled, nr_periods=5, quota_us=QUOTA_US):
    return ThrottleSnapshot(np.array([throttled]), np.array([nr_periods]), np.array([quota_us]))


def sampled(throttled=0, used_us=8_000):
    column = np.array([0])
    return PeriodSample(column + 1, column + used_us, column + 12_000, column + throttled, column, column, column)


def test_a_group_that_is_throttled_now_is_told_with_its_whole_quota():
    sample, told = with_in_progress(sampled(), look(throttled=True), NONE_REPORTED)

    assert (sample.throttled.tolist(), sample.used_us.tolist(), sample.unused_us.tolist()) == ([1], [QUOTA_US], [0])
    assert told.tolist() == [[5, QUOTA_US, 0]]


def test_its_period_is_not_told_again_when_the_kernel_counts_it():
    _, told = with_in_progress(sampled(), look(throttled=True), NONE_REPORTED)
    sample, told = with_in_progress(sampled(throttled=1), look(throttled=False, nr_periods=6), told)

    assert sample.throttled.tolist() == [0]
    assert told.tolist() == NONE_REPORTED.tolist()


def test_a_raise_that_was_used_up_in_the_same_period_is_told_anew():
    _, told = with_in_progress(sampled(), look(throttled=True), NONE_REPORTED)

    assert not in_progress(look(throttled=True), told).any()
    assert in_progress(look(throttled=True, quota_us=2 * QUOTA_US), told).all()
    sample, _ = with_in_progress(sampled(throttled=1), look(throttled=False, nr_periods=6, quota_us=2 * QUOTA_US), told)
    assert sample.throttled.tolist() == [1]


def test_without_a_quota_nobody_is_throttled():
    assert not in_progress(look(throttled=True, quota_us=UNLIMITED), NONE_REPORTED).any()


def test_a_first_reading_says_nothing_of_throttling() -> None:
    first = replace(sampled(), periods=np.array([0]), used_us=np.array([0]))
    sample, told = with_in_progress(first, look(throttled=True), NONE_REPORTED)

    assert (sample.throttled.tolist(), sample.used_us.tolist()) == ([0], [0])
    assert told.tolist() == NONE_REPORTED.tolist()


class KernelGroup:
    """What the kernel counts of one group, and what has been told of it; the quota stays."""

    def __init__(self):
        self.nr_periods = self.nr_throttled = self.counted_at_tick = self.told_count = 0
        self.throttled = False
        self.told = NONE_REPORTED

    def look(self):
        return look(throttled=self.throttled, nr_periods=self.nr_periods)

    def end_period(self):
        self.nr_periods += 1
        self.nr_throttled += self.throttled
        self.throttled = False

    def throttle(self):
        self.throttled = True

    def tick(self):
        counted, self.counted_at_tick = self.nr_throttled - self.counted_at_tick, self.nr_throttled
        sample, self.told = with_in_progress(sampled(throttled=counted), self.look(), self.told)
        assert sample.throttled[0] >= 0
        self.told_count += int(sample.throttled[0])

    def glance(self):
        new = in_progress(self.look(), self.told)
        self.told = mark_reported(self.look(), new, self.told)
        self.told_count += int(new.sum())


@given(st.lists(st.sampled_from(["end_period", "throttle", "tick", "glance"]), max_size=60))
def test_each_throttled_period_is_told_exactly_once(events):
    """Where samples come at least once a period, as they do; looks between them come as they like."""
    group, ended = KernelGroup(), 0
    for event in events:
        if event == "end_period" and ended:  # two ends without a sample between them: the agent was late
            group.tick()
            ended = 0
        getattr(group, event)()
        ended = 0 if event == "tick" else ended + (event == "end_period")
    group.tick()

    assert group.told_count == group.nr_throttled + group.throttled


@pytest.mark.parametrize("late", [2, 5])
def test_a_late_sample_tells_all_that_was_counted_but_what_was_told(late):
    group = KernelGroup()
    group.throttle()
    group.glance()
    for _ in range(late):
        group.end_period()
        group.throttle()
    group.end_period()
    group.tick()

    assert group.told_count == group.nr_throttled == late + 1
