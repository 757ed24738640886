"""When a job has sent, as the kernel tells it of real connections between two namespaces."""

from __future__ import annotations

import subprocess
import time

import pytest

from services.runner.tcp_counters import JobKey, JobTraffic, Processes
from tests.support.cgroup_lab import wait_until
from tests.support.traffic_pair import TrafficPair

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.machine]
KEY = JobKey("j", 1)
SENT_BYTES = 625_000
"""0.1 s at 50 Mbit/s."""
APART_NS = 50_000_000
"""Of two reads: a tick between two closer ones may be told of one in which nothing was acknowledged."""
LATE_NS = 100_000_000
"""The kernel's ticks may come late by some of them, where the processor that counts them does other work."""


def test_the_kernel_tells_for_how_long_and_how_long_ago_a_job_has_sent() -> None:
    """Three phases, each after 0.3 s: what is told of two reads lies between them, and a phase lasts 0.05 s or more."""
    pair, traffic = TrafficPair(), JobTraffic()
    try:
        with pair.peer(), subprocess.Popen(pair.worker(0.3, SENT_BYTES), stdout=subprocess.DEVNULL) as worker:
            try:
                assert sum(told_busy_ns(traffic, worker.pid)) >= 3 * 50_000_000
            finally:
                worker.kill()
    finally:
        traffic.close()
        pair.close()


def told_busy_ns(traffic: JobTraffic, pid: int) -> list[int]:
    """While it sends the bytes of three phases: what is told by each read that finds more sent."""
    jobs, deadline, busy_ns = {KEY: [Processes(pid, [pid])]}, time.monotonic() + 60, []
    while not traffic.has_connections(KEY):
        assert time.monotonic() < deadline
        traffic.find(jobs)
    before_ns, sent = time.monotonic_ns(), traffic.read([KEY])[KEY]
    known_bytes = first_bytes = sent.sent_bytes
    while known_bytes - first_bytes < 3 * SENT_BYTES:
        assert time.monotonic() < deadline
        wait_until(lambda since_ns=before_ns: time.monotonic_ns() - since_ns >= APART_NS)
        begun_ns = time.monotonic_ns()
        sent = traffic.read([KEY])[KEY]
        now_ns = time.monotonic_ns()
        assert sent.busy_ns is not None
        assert sent.busy_ns <= now_ns - before_ns + LATE_NS
        if sent.sent_bytes > known_bytes:
            assert sent.quiet_ns <= now_ns - before_ns + LATE_NS
            busy_ns.append(sent.busy_ns)
        before_ns, known_bytes = begun_ns, sent.sent_bytes
    return busy_ns
