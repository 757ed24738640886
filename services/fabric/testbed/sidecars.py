"""Sidecars of the lab's FRR: a fast path and a reconciler for every host, as processes that outlive `up`.

They run outside the host's namespace, so that NATS on this machine's loopback is reachable; without NATS they work too,
and buffer their events. The server's address and all other settings come from the environment.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._edge.override_tables import PROTOCOL
from services._host.boot_records import start_ticks
from services._runtime.child_process import log_tail
from services._runtime.command.errors import UnavailableError
from services._runtime.service.interpreter import isolated_command
from services._runtime.service.settings import CommonSettings
from services.fabric.environment import fast_path_environment, reconciler_environment
from services.fabric.testbed import state_file
from services.fabric.testbed.hosts import host_file
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.processes import StartedProcess
from services.fabric.testbed.state_file import LabState
from services.fabric.testbed.topology import DualTor, HostNode
from services.fastpath.settings import FastPathSettings

_EARLY_EXIT_S: Final = 1.0
"""A service that still runs after this has accepted its settings."""
_READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_KEY_BYTES: Final = 32
_KEY_FILE: Final = FastPathSettings.variable("fabric_key_file")


@dataclass(frozen=True, slots=True)
class _Sidecar:
    name: str
    module: str
    environment: Mapping[str, str]
    log: Path
    is_ready: Callable[[], bool] = lambda: True
    """Where readiness is observable; a fault before it would get no reaction."""


def start(topology: DualTor, state: LabState, report_progress: Callable[[str], None]) -> None:
    """Start what the lab's settings ask for.

    Raises:
        UnavailableError: one has ended at once, or does not begin to work; holds the end of its log.
    """
    if state.settings.fast_path:
        key, logs = _make_key(state), _logs(state)
        _start([_fast_path(topology, host, key, logs) for host in topology.hosts], state, report_progress)
    if state.settings.reconciler:
        start_reconcilers(topology, state, report_progress)


def start_reconcilers(topology: DualTor, state: LabState, report_progress: Callable[[str], None]) -> None:
    """A reconciler for every host; where the kernel lacks flower they watch, and write nothing.

    Raises:
        UnavailableError: as `start`.
    """
    _start([_reconciler(topology, host, _logs(state)) for host in topology.hosts], state, report_progress)


def _logs(state: LabState) -> Path:
    return state_file.directory_of(state.settings.prefix) / "log"


def _start(wanted: list[_Sidecar], state: LabState, report_progress: Callable[[str], None]) -> None:
    started = []
    for sidecar in wanted:
        pid = _spawn(sidecar)
        started.append(StartedProcess(name=sidecar.name, pid=pid, start_ticks=start_ticks(pid) or 0))
        state.processes.append(started[-1])
        state_file.save(state)
    began_s = time.monotonic()
    while True:
        for sidecar, process in zip(wanted, started, strict=True):
            if not process.is_alive:
                raise UnavailableError(f"{sidecar.name} does not start:\n{log_tail(sidecar.log)}")
        idle, after_s = [one for one in wanted if not one.is_ready()], time.monotonic() - began_s
        if not idle and after_s >= _EARLY_EXIT_S:
            break
        if idle and after_s > _READY_TIMEOUT_S:
            raise UnavailableError(f"{idle[0].name} is not at work after {after_s:.0f} s:\n{log_tail(idle[0].log)}")
        time.sleep(_POLL_S)
    report_progress(f"{', '.join(sidecar.name for sidecar in wanted)} run")


def fast_path_is_ready(netns: str) -> bool:
    """Whether a fast path receives kernel events: it adds its routing rule then, and removes it when it stops."""
    with LabNetlink(netns) as netlink:
        return PROTOCOL in netlink.rule_protocols()


def _make_key(state: LabState) -> Path:
    """A key that this lab's fast paths share, readable for root only."""
    path = state_file.directory_of(state.settings.prefix) / "fast-path.key"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(_KEY_BYTES) + "\n", encoding="ascii")
    return path


def _fast_path(topology: DualTor, host: HostNode, key: Path, logs: Path) -> _Sidecar:
    environment = fast_path_environment(host_file(topology, host)) | {_KEY_FILE: str(key)}
    log = logs / f"fast-path-{host.name}.log"
    name = f"fast path of {host.name}"
    return _Sidecar(name, "services.fastpath", environment, log, lambda: fast_path_is_ready(host.netns))


def _reconciler(topology: DualTor, host: HostNode, logs: Path) -> _Sidecar:
    environment = reconciler_environment(host_file(topology, host))
    return _Sidecar(
        f"reconciler of {host.name}", "services.reconciler", environment, logs / f"reconciler-{host.name}.log"
    )


def _spawn(sidecar: _Sidecar) -> int:
    """Start it; returns its pid. No Popen object, which would warn: the process outlives this one on purpose."""
    sidecar.log.parent.mkdir(parents=True, exist_ok=True)
    return os.posix_spawn(
        sys.executable,
        isolated_command(sidecar.module),
        # 0: the health server takes a free port.
        {**os.environ, CommonSettings.variable("health_port"): "0", **sidecar.environment},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(sidecar.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
