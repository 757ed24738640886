"""What the meter makes of send times, and series of faults."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from services._runtime.command.errors import CommandError
from services.fabric.testbed.faults import Fault
from services.fabric.testbed.schedule import FaultSchedule, FaultTiming
from services.fabric.testbed.streams import _PACKET, StreamPlan, StreamsPlan, _run_command, _Stream
from tests.support.lab_faults import link_down, switch_dead

MS = 1_000_000
PLAN = StreamPlan("h1->h2", "a", "172.16.0.1", "b", "172.16.0.2")


def stream(arrived: list[list[int]], *, sent: int, reset_ns: int = 0) -> _Stream:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unused:
        return _Stream(PLAN, unused, [], arrived, sent=sent, reset_ns=reset_ns)


def test_the_gap_is_that_of_the_worst_flow_after_the_fault() -> None:
    first = [0, 2 * MS, 9 * MS, 11 * MS, 61 * MS, 63 * MS]
    second = [1 * MS, 3 * MS, 10 * MS, 12 * MS, 92 * MS, 94 * MS]

    report = stream([first, second], sent=20).report(since_ns=10 * MS, now_ns=100 * MS)

    # Flow 2 stood still from 12 to 92 ms; 20 sent, 12 arrived; before the fault flow 1 had 7 ms between 2 and 9.
    assert (report.gap_ns, report.gap_from_ns, report.gap_to_ns) == (80 * MS, 12 * MS, 92 * MS)
    assert (report.sent, report.received, report.floor_ns, report.over) == (20, 12, 7 * MS, True)


def test_a_pause_of_the_sender_is_told_apart_from_an_outage() -> None:
    quiet = stream([[0, 2 * MS, 92 * MS]], sent=3)
    quiet.sent_at = [0, 2 * MS, 92 * MS]
    broken = stream([[0, 2 * MS, 92 * MS]], sent=46)
    broken.sent_at = [2 * MS * tick for tick in range(47)]

    # From 2 to 92 ms nothing arrived; one sender sent nothing, the other one went on every 2 ms.
    assert (quiet.report(0, 93 * MS).gap_ns, quiet.report(0, 93 * MS).paused_ns) == (90 * MS, 90 * MS)
    assert (broken.report(0, 93 * MS).gap_ns, broken.report(0, 93 * MS).paused_ns) == (90 * MS, 2 * MS)


def test_what_is_under_way_is_neither_sent_nor_lost() -> None:
    """On a busy machine packets wait in the kernel's backlog, also across a reset."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unused:
        busy = _Stream(
            PLAN, unused, [unused, unused], [[9 * MS, 10 * MS, 20 * MS], [10 * MS]], sent=4 * 2, reset_ns=10 * MS
        )
        busy.sent_at = [10 * MS, 20 * MS, 400 * MS, 402 * MS]

    report = busy.report(0, 410 * MS)

    # Two rounds of two flows are older than 200 ms, one packet is lost; that of 9 ms was sent before the reset.
    assert (report.sent, report.received) == (4, 3)


def test_what_waits_to_be_taken_when_a_report_is_asked_for_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The meter's own process may stand still between taking packets and a report."""
    sent_ns = time.monotonic_ns() - 1_000 * MS
    (tmp_path / "commands").write_text("report 0\n")
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver, (tmp_path / "commands").open() as commands:
        receiver.settimeout(0)
        sender.send(_PACKET.pack(0, 1, sent_ns))
        late = _Stream(PLAN, receiver, [sender], [[]], sent_at=[sent_ns], sent=1)
        monkeypatch.setattr("sys.stdin", commands)
        assert _run_command([late])

    [report] = json.loads(capsys.readouterr().out)
    assert (report["sent"], report["received"]) == (1, 1)


def test_packets_that_overtook_each_other_make_no_gap() -> None:
    report = stream([[0, 4 * MS, 2 * MS, 6 * MS]], sent=4).report(0, 7 * MS)

    assert report.gap_ns == 2 * MS


def test_a_flow_that_is_still_silent_is_not_over() -> None:
    report = stream([[10 * MS, 12 * MS]], sent=400).report(since_ns=11 * MS, now_ns=712 * MS)

    assert not report.over
    assert (report.gap_ns, report.gap_from_ns) == (700 * MS, 12 * MS)


def test_a_flow_without_any_packet_counts_from_the_reset() -> None:
    report = stream([[]], sent=400, reset_ns=100 * MS).report(since_ns=0, now_ns=800 * MS)

    assert not report.over
    assert report.gap_ns == 700 * MS


def test_silence_from_the_reset_to_the_first_packet_is_a_gap() -> None:
    """A host that nobody reaches when a fault is lifted, and for some time after."""
    report = stream([[1_900 * MS, 1_902 * MS]], sent=1_000, reset_ns=100 * MS).report(0, 1_903 * MS)

    assert (report.gap_ns, report.gap_from_ns, report.gap_to_ns) == (1_800 * MS, 100 * MS, 1_900 * MS)


def test_a_plan_survives_the_command_line() -> None:
    plan = StreamsPlan((PLAN,), flows=3, rate_hz=100, cpu=1)

    assert StreamsPlan.read(plan.write()) == plan


class FakeLab:
    def __init__(self, *, broken: bool = False) -> None:
        self.acts: list[str] = []
        self._broken = broken

    @contextmanager
    def fault(self, fault: Fault):
        if self._broken:
            raise CommandError("no such port")
        self.acts.append(f"inject {fault}")
        try:
            yield 1
        finally:
            self.acts.append(f"restore {fault}")


def test_a_series_restores_each_fault_before_the_next() -> None:
    lab = FakeLab()
    schedule = FaultSchedule(lab, [link_down(1, 1), link_down(1, 2)], FaultTiming(0.001, 0.001))

    schedule.run()

    assert lab.acts == [
        *("inject link-down h1-s1", "restore link-down h1-s1"),
        *("inject link-down h1-s2", "restore link-down h1-s2"),
    ]
    assert [one.fault for one in schedule.occurrences] == [link_down(1, 1), link_down(1, 2)]


def test_a_series_that_is_stopped_restores_what_is_broken() -> None:
    lab = FakeLab()
    broken = threading.Event()
    rhythm = FaultTiming(60.0, 60.0, lead_s=0.0)
    schedule = FaultSchedule(lab, repeat(switch_dead(1)), rhythm, lambda _: broken.set())
    thread = threading.Thread(target=schedule.run)
    thread.start()
    assert broken.wait(60)
    schedule.stop()
    thread.join(60)

    assert lab.acts == ["inject switch-dead s1", "restore switch-dead s1"]
    assert [one.fault for one in schedule.occurrences] == [switch_dead(1)]


def test_a_fault_that_cannot_be_injected_ends_the_series() -> None:
    schedule = FaultSchedule(FakeLab(broken=True), repeat(link_down(1, 1)), FaultTiming(0.001, 0.0))
    with pytest.raises(CommandError, match="no such port"):
        schedule.run()
