"""What the watchdog sees of an agent: locks, guarded groups, beats. To be killed, stopped, or told "bye"."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path

from schemas.containers import ContainerSource
from services._host.cgroupfs import detect, parse_managed
from services.agent.cgroup.open import open_host
from services.agent.host_lock import HostLock, prepare_state
from services.agent.ports import FoundContainer
from services.agent.watchdog.process import WatchdogOptions, WatchdogProcess

BEAT_S = 0.05


def main(told: Connection[int, None], directory: Path, root: str, groups: list[str], options: WatchdogOptions) -> None:
    """Guard these groups, tell the watchdog's pid, and beat until there is a file "bye"."""
    state = prepare_state(directory, root)
    lock = HostLock(options.lock, node="stand-in", what="groups", remedy="wait")
    host = open_host(detect(), state)
    for group in groups:
        name = parse_managed(group, root)
        assert name is not None
        handle = host.open(
            FoundContainer(name.container_id, name.app, name.name, ContainerSource.EXEC, managed_directory=group)
        )
        assert handle is not None
        handle.enable_oom_control()
    watchdog = WatchdogProcess(state, options)
    watchdog.start()
    assert watchdog.pid is not None
    told.send(watchdog.pid)
    while True:
        watchdog.heartbeat()
        time.sleep(BEAT_S)
        if (directory / "bye").exists():
            break
    watchdog.stop()
    host.close()
    lock.release()
