"""Two hosts as network namespaces with a trunk of limited rate between them, and training jobs' traffic across it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from services._host.netns import command_in
from tests.support.netlink_ground import run

TRAFFIC = Path(__file__).with_name("training_traffic.py")
SENDER, RECEIVER = "10.98.1.1", "10.98.2.1"
_NUMBERS = count()


@dataclass(frozen=True)
class Iteration:
    """One of a job's, by its own clock."""

    begin_s: float
    sending_s: float
    """When it began to send."""
    end_s: float
    congestion_control: str

    @property
    def duration_s(self) -> float:
        """Computing and sending."""
        return self.end_s - self.begin_s


class SharedTrunk:
    """A sender and a receiver with a router between them, whose queue towards the receiver is the bottleneck."""

    def __init__(self, prefix: str, rate: str, queue_bytes: int) -> None:
        self.sender, self.router, self.receiver = (f"{prefix}-{end}" for end in ("s", "t", "r"))
        self._processes: list[subprocess.Popen[str]] = []
        self._ports = count(7_000)
        for netns in self.namespaces:
            run("ip", "netns", "add", netns)
        self._connect(self.sender, SENDER, "10.98.1.254")
        self._connect(self.receiver, RECEIVER, "10.98.2.254")
        run("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._tbf = ("tbf", "rate", rate, "burst", "16000", "limit", str(queue_bytes))
        for end in (self.sender, self.receiver):
            self._queue(end, *self._tbf)

    @property
    def namespaces(self) -> tuple[str, str, str]:
        """All of them."""
        return self.sender, self.router, self.receiver

    def _connect(self, end: str, address: str, gateway: str) -> None:
        """Segments one by one, as on a wire: a queue of 46 kB would not hold a burst of 64."""
        run("ip", "-n", self.router, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", end)
        for netns, device, its_address in ((self.router, end, gateway), (end, "eth0", address)):
            run("ip", "-n", netns, "link", "set", device, "gso_max_segs", "1", "up")
            run("ip", "-n", netns, "address", "add", f"{its_address}/24", "dev", device)
        run("ip", "-n", end, "link", "set", "lo", "up")
        run("ip", "-n", end, "route", "add", "default", "via", gateway)

    def _queue(self, end: str, *qdisc: str) -> None:
        run("tc", "-n", self.router, "qdisc", "replace", "dev", end, "root", *qdisc)

    def cut(self) -> None:
        """Drop all towards the receiver, until `mend`."""
        self._queue(self.receiver, "pfifo", "limit", "0")

    def mend(self) -> None:
        """As it was made."""
        self._queue(self.receiver, *self._tbf)

    def timeouts(self) -> int:
        """Retransmission timeouts of the sender's connections so far."""
        names, values = (
            line.split()
            for line in run("ip", "netns", "exec", self.sender, "cat", "/proc/net/netstat").splitlines()
            if line.startswith("TcpExt:")
        )
        return int(values[names.index("TCPTimeouts")])

    def start_job(self, parts: Sequence[int], compute_s: float, iterations: int, **options: Any) -> TrafficJob:
        """A job that computes, then sends these parts of an iteration, 15 ms apart; from `start_s` (epoch) on.

        Options: `congestion_control` chooses it by setsockopt, `group` is a control group of version 2, `changed`
        are the parts after `TrafficJob.change`.
        """
        port = next(self._ports)
        group = options.pop("group", None)
        sink = self._start(self.receiver, None, ["sink", RECEIVER, str(port)])
        assert sink.stdout is not None
        assert sink.stdout.readline() == "listening\n"
        job = {"address": RECEIVER, "port": port, "parts": parts, "compute_s": compute_s, "iterations": iterations}
        return TrafficJob(self._start(self.sender, group, ["job", json.dumps(job | options)]))

    def start_bulk(self, seconds: float, group: str | None = None, *, burst_bytes: int = 0) -> subprocess.Popen[str]:
        """A stream without a pause, of Reno where no `group` says otherwise.

        Prints how many bytes it sent in that time, and its congestion control. With `burst_bytes` its receiver takes
        so many at a time, with pauses between.
        """
        port = next(self._ports)
        sink = self._start(self.receiver, None, ["sink", RECEIVER, str(port), str(burst_bytes)])
        assert sink.stdout is not None
        assert sink.stdout.readline() == "listening\n"
        return self._start(self.sender, group, ["bulk", RECEIVER, str(port), str(seconds), "" if group else "reno"])

    def _start(self, netns: str, group: str | None, arguments: Sequence[str]) -> subprocess.Popen[str]:
        join = ["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "sh"] if group else []
        command = [*join, *command_in(netns, [sys.executable, "-S", "-E", str(TRAFFIC), *arguments])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End the traffic, remove the namespaces."""
        for process in self._processes:
            process.kill()
            process.communicate()
        for netns in self.namespaces:
            run("ip", "netns", "delete", netns)


class TrafficJob:
    """A job's traffic that was started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def finish(self, within_s: float = 240.0) -> list[Iteration]:
        """All iterations."""
        output, _ = self._process.communicate(timeout=within_s)
        assert self._process.returncode == 0
        return [Iteration(**json.loads(line)) for line in output.splitlines()]

    def change(self) -> None:
        """Send the other parts from the next iteration on."""
        self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> list[Iteration]:
        """End it; all iterations until then."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=60)
        return [Iteration(**json.loads(line)) for line in output.splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def shared_trunk(rate: str = "100mbit", queue_bytes: int = 46_000) -> Iterator[SharedTrunk]:
    """A trunk until the end of the block."""
    trunk = SharedTrunk(f"tb{os.getpid()}-{next(_NUMBERS)}", rate, queue_bytes)
    try:
        yield trunk
    finally:
        trunk.close()
