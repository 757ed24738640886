"""Services of ours beside the lab's FRR: a fast path and a reconciler for every host, as processes that outlive `up`.

They look after a host's namespace from outside, so that NATS on this machine's loopback stays in reach; without NATS
they work as well, and their audit waits. The server's address and all other settings come from the environment.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._runtime.command.failure import CommandError, UnavailableError
from services._runtime.service.interpreter import isolated_command
from services.fabric.testbed import record
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.record import LabRecord, StartedProcess
from services.fabric.testbed.topology import DualTor, HostNode

_LIVES_FOR_S: Final = 1.0
"""A service that has not ended by then has accepted its settings."""
_AT_WORK_WITHIN_S: Final = 30.0
_FAST_PATH_PROTOCOL: Final = 200
"""RTPROT_* of what a fast path writes, see `services.fastpath.values`."""
_END_WITHIN_S: Final = 5.0
_POLL_S: Final = 0.02
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Companion:
    name: str
    module: str
    environment: Mapping[str, str]
    log: Path
    is_at_work: Callable[[], bool] = lambda: True
    """Where that can be seen from outside; a fault before would not be answered."""


def start(topology: DualTor, held: LabRecord, tell: Callable[[str], None]) -> None:
    """Start what the lab's settings ask for.

    Raises:
        UnavailableError: one has ended at once, or does not begin to work; holds the end of its log.
    """
    if held.settings.fast_path:
        key, logs = _make_key(held), _logs(held)
        _start([_fast_path(host, key, logs) for host in topology.hosts], held, tell)
    if held.settings.reconciler:
        start_reconcilers(topology, held, tell)


def start_reconcilers(topology: DualTor, held: LabRecord, tell: Callable[[str], None]) -> None:
    """A reconciler for every host; where the kernel lacks flower they watch, and write nothing.

    Raises:
        UnavailableError: as `start`.
    """
    _start([_reconciler(host, _logs(held)) for host in topology.hosts], held, tell)


def _logs(held: LabRecord) -> Path:
    return record.directory_of(held.settings.prefix) / "log"


def _start(wanted: list[_Companion], held: LabRecord, tell: Callable[[str], None]) -> None:
    started = []
    for companion in wanted:
        pid = _spawn(companion)
        started.append(StartedProcess(name=companion.name, pid=pid, start_ticks=record.start_ticks(pid) or 0))
        held.processes.append(started[-1])
        record.save(held)
    began_s = time.monotonic()
    while True:
        for companion, process in zip(wanted, started, strict=True):
            if not _lives(process):
                raise UnavailableError(f"{companion.name} does not start:\n{_end_of(companion.log)}")
        idle, after_s = [one for one in wanted if not one.is_at_work()], time.monotonic() - began_s
        if not idle and after_s >= _LIVES_FOR_S:
            break
        if idle and after_s > _AT_WORK_WITHIN_S:
            raise UnavailableError(f"{idle[0].name} is not at work after {after_s:.0f} s:\n{_end_of(idle[0].log)}")
        time.sleep(_POLL_S)
    tell(f"{', '.join(companion.name for companion in wanted)} run")


def fast_path_is_at_work(netns: str) -> bool:
    """Whether a fast path has begun to hear the kernel: its rule of routing is written then, and goes when it ends."""
    with LabNetlink(netns) as netlink:
        return _FAST_PATH_PROTOCOL in netlink.rule_protocols()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2_000:]


def stop(processes: list[StartedProcess]) -> None:
    """End them, and wait for it.

    Raises:
        CommandError: one does not end.
    """
    alive = [process for process in processes if _lives(process)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + _END_WITHIN_S
        while alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            alive = [process for process in alive if _lives(process)]
    if alive:
        raise CommandError(f"does not end: {', '.join(process.name for process in alive)}")


def _lives(process: StartedProcess) -> bool:
    with suppress(ChildProcessError):  # not our child: `up` was another process
        os.waitpid(process.pid, os.WNOHANG)
    return record.start_ticks(process.pid) == process.start_ticks


def _make_key(held: LabRecord) -> Path:
    """A key that this lab's fast paths share, readable for root only."""
    path = record.directory_of(held.settings.prefix) / "fast-path.key"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(_KEY_BYTES) + "\n", encoding="ascii")
    return path


def _fast_path(host: HostNode, key: Path, logs: Path) -> _Companion:
    name = f"fast path of {host.name}"
    prefix = "TURNBUCKLE_FAST_PATH__"
    environment = {
        f"{prefix}NODE": host.netns,
        f"{prefix}NETNS": host.netns,
        f"{prefix}UPLINKS": ",".join(host.uplinks),
        f"{prefix}VTEP": host.vtep,
        f"{prefix}FRR_PATHSPACE": host.netns,
        f"{prefix}FABRIC_KEY_FILE": str(key),
    }
    log = logs / f"fast-path-{host.name}.log"
    return _Companion(name, "services.fastpath", environment, log, lambda: fast_path_is_at_work(host.netns))


def _reconciler(host: HostNode, logs: Path) -> _Companion:
    name = f"reconciler of {host.name}"
    prefix = "TURNBUCKLE_RECONCILER__"
    environment = {
        f"{prefix}NODE": host.netns,
        f"{prefix}NETNS": host.netns,
        f"{prefix}PORTS": f"rep0={host.application_mac}",
        f"{prefix}FRR_PATHSPACE": host.netns,
    }
    return _Companion(name, "services.reconciler", environment, logs / f"reconciler-{host.name}.log")


def _spawn(companion: _Companion) -> int:
    """Start it; returns its pid. No Popen object: the process outlives us, and that is no mistake."""
    companion.log.parent.mkdir(parents=True, exist_ok=True)
    return os.posix_spawn(
        sys.executable,
        isolated_command(companion.module),
        # 0: the health server takes a free port.
        {**os.environ, "TURNBUCKLE_HEALTH_PORT": "0", **companion.environment},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(companion.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
