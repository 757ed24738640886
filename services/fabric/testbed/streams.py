"""The process behind the outage meter: numbered datagrams both ways, each with the time of its sending.

``python -m services.fabric.testbed.streams '<JSON>'``, controlled by lines on stdin (``reset``, ``report <since_ns>``),
replying in JSON on stdout. One thread sends and receives in turn, pinned to one CPU, under SCHED_RR where permitted:
VXLAN keeps a route per CPU, so a sender that moves between CPUs changes its uplink too (measured).
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import struct
import sys
import time
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final

from services._host.netns import socket_in

PRIORITY: Final = 10
"""SCHED_RR; below FRR's and the fast path's."""
FIRST_PORT: Final = 5_001
_RECEIVE_BUFFER_BYTES: Final = 8 << 20
_SO_RCVBUFFORCE: Final = 33
_MAX_LATENESS_NS: Final = 50_000_000
"""So late a tick is left out instead of made up for."""
_STDIN_POLL_TICKS: Final = 8
"""Ticks between two polls of stdin."""
_OUTAGE_OPEN_NS: Final = 500_000_000
"""A flow that is silent so long when the report is made has not come back."""
_IN_FLIGHT_NS: Final = 200_000_000
"""What was sent so recently may still arrive, on a machine that is busy: it is neither sent nor lost yet."""
_PACKET: Final = struct.Struct("!HIq")
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One direction."""

    name: str
    sender_netns: str
    sender: str
    receiver_netns: str
    receiver: str


@dataclass(frozen=True, slots=True)
class StreamsPlan:
    """What the process does."""

    directions: tuple[StreamPlan, ...]
    flows: int = 6
    """UDP flows of each direction, told apart by their source port."""
    rate_hz: int = 500
    """Packets per second of each flow."""
    cpu: int = 0

    @classmethod
    def read(cls, text: str) -> StreamsPlan:
        """From JSON."""
        plain = json.loads(text)
        directions = tuple(StreamPlan(**one) for one in plain.pop("directions"))
        return cls(directions, **plain)

    def write(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class DirectionReport:
    """What one direction went through since the last reset."""

    name: str
    sent: int
    """Up to 0.2 s ago: later ones may still be under way."""
    received: int
    """Of these."""
    gap_ns: int
    """Longest interval between the sending of two successive packets that arrived, of one flow, since `since_ns`."""
    gap_from_ns: int
    """CLOCK_MONOTONIC of the last packet before it."""
    gap_to_ns: int
    """Of the first packet after it."""
    over: bool
    """False: a flow is still silent, and `gap_ns` is how long so far."""
    floor_ns: int
    """The same before `since_ns`: what the meter shows without a fault."""
    paused_ns: int
    """Longest pause of the sender itself within that interval: beyond some ms it is no outage, but a busy machine."""


@dataclass(slots=True)
class _Stream:
    plan: StreamPlan
    receiver: socket.socket
    senders: list[socket.socket]
    arrived: list[list[int]]
    """Per flow: send times of what arrived."""
    sent_at: list[int] = field(default_factory=list)
    """When a packet of each flow was sent."""
    sent: int = 0
    number: int = 0
    """Of the last packet of each flow."""
    reset_ns: int = 0

    def send(self) -> None:
        """One packet of each flow."""
        self.number += 1
        self.sent_at.append(time.monotonic_ns())
        for flow, sender in enumerate(self.senders):
            self.sent += 1
            with suppress(OSError):  # lost: the receiver counts
                sender.send(_PACKET.pack(flow, self.number & 0xFFFFFFFF, time.monotonic_ns()))

    def drain(self) -> None:
        """Take what arrived."""
        receive, arrived, unpack = self.receiver.recv, self.arrived, _PACKET.unpack
        with suppress(BlockingIOError):
            while True:
                flow, _, sent_ns = unpack(receive(64))
                arrived[flow].append(sent_ns)

    def reset(self) -> None:
        """Forget, once what is under way has arrived."""
        self.drain()
        self.sent, self.reset_ns = 0, time.monotonic_ns()
        self.sent_at.clear()
        for times in self.arrived:
            times.clear()

    def report(self, since_ns: int, now_ns: int) -> DirectionReport:
        """Gaps of the worst flow."""
        begun_ns = max(since_ns, self.reset_ns)
        worst, floor_ns, over = (0, begun_ns, begun_ns), 0, True
        settled = bisect_right(self.sent_at, now_ns - _IN_FLIGHT_NS)
        until_ns = self.sent_at[settled] if settled < len(self.sent_at) else now_ns
        received = 0
        for arrived in self.arrived:
            arrived.sort()
            times = arrived[bisect_left(arrived, self.reset_ns) :]  # what was under way at the reset does not count
            received += bisect_left(times, until_ns)
            last = times[-1] if times else begun_ns
            for before, after in pairwise([self.reset_ns, *times]):  # silence from the very beginning is a gap, too
                if after < since_ns:
                    floor_ns = max(floor_ns, after - before)
                else:
                    worst = max(worst, (after - before, before, after))
            if now_ns - last > _OUTAGE_OPEN_NS:
                over = False
                worst = max(worst, (now_ns - last, last, now_ns))
        sent = self.sent - len(self.senders) * (len(self.sent_at) - settled)
        _, begun_ns, ended_ns = worst
        sends = [begun_ns, *(at_ns for at_ns in self.sent_at if begun_ns <= at_ns <= ended_ns), ended_ns]
        paused_ns = max(after - before for before, after in pairwise(sends))
        return DirectionReport(self.plan.name, sent, received, *worst, over, floor_ns, paused_ns)


def run(plan: StreamsPlan) -> None:
    """Send and receive until stdin ends, as it does when the parent process dies."""
    os.sched_setaffinity(0, {plan.cpu})
    streams = [_open(direction, plan.flows, number) for number, direction in enumerate(plan.directions)]
    _write_line({"realtime": _enable_realtime(), "cpu": plan.cpu})
    gc.disable()
    interval_ns = _NS_PER_S // plan.rate_hz
    due_ns, ticks = time.monotonic_ns(), 0
    while True:
        now_ns = time.monotonic_ns()
        if now_ns < due_ns:
            time.sleep((due_ns - now_ns) / _NS_PER_S)
        elif now_ns - due_ns > _MAX_LATENESS_NS:
            due_ns = now_ns
        due_ns += interval_ns
        for stream in streams:
            stream.send()
        for stream in streams:
            stream.drain()
        ticks += 1
        if ticks % _STDIN_POLL_TICKS == 0 and not _run_command(streams):
            return


def _run_command(streams: list[_Stream]) -> bool:
    """Carry out a command, if there is one; False: the end."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return True
    command, _, rest = sys.stdin.readline().strip().partition(" ")
    if command == "reset":
        for stream in streams:
            stream.reset()
        _write_line({"reset_ns": time.monotonic_ns()})
    elif command == "report":
        now_ns = time.monotonic_ns()
        for stream in streams:
            stream.drain()  # this process may have stood still since it last took what had arrived
        _write_line([asdict(stream.report(int(rest), now_ns)) for stream in streams])
    return bool(command)


def _open(plan: StreamPlan, flows: int, number: int) -> _Stream:
    port = FIRST_PORT + number
    receiver = socket_in(plan.receiver_netns, socket.AF_INET, socket.SOCK_DGRAM)
    receiver.settimeout(0)
    with suppress(OSError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    receiver.bind((plan.receiver, port))
    senders = []
    for flow in range(flows):
        sender = socket_in(plan.sender_netns, socket.AF_INET, socket.SOCK_DGRAM)
        sender.settimeout(0)
        # Spread over source ports, as a hash over ports would see them.
        sender.bind((plan.sender, 30_000 + port + 7 * flow))
        sender.connect((plan.receiver, port))
        senders.append(sender)
    return _Stream(plan, receiver, senders, [[] for _ in range(flows)])


def _enable_realtime() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


def _write_line(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(StreamsPlan.read(sys.argv[1]))
