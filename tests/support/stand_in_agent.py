"""What the watchdog sees of an agent: locks, guarded groups, beats. To be killed, stopped, or told "bye"."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from schemas.containers import ContainerSource
from services._host.cgroupfs import detect, parse_managed
from services.agent.cgroup.open import open_host
from services.agent.host_lock import HostLock, exec_lock, prepare_state
from services.agent.memory.watchdog_process import WatchdogOptions, WatchdogProcess
from services.agent.ports import FoundContainer

BEAT_S = 0.05


def main(directory: Path, root: str, oom_wait_timeout_s: float, silence_s: float, groups: list[str]) -> None:
    """Guard these groups, say "<pid of the watchdog>", and beat until a line comes in."""
    state = prepare_state(directory, root)
    lock = HostLock(exec_lock(directory, root), node="stand-in", what="groups", remedy="wait")
    host = open_host(detect(), state)
    for group in groups:
        name = parse_managed(group, root)
        assert name is not None
        handle = host.open(
            FoundContainer(name.container_id, name.app, name.name, ContainerSource.EXEC, managed_directory=group)
        )
        assert handle is not None
        handle.enable_oom_control()
    watchdog = WatchdogProcess(state, WatchdogOptions(exec_lock(directory, root), oom_wait_timeout_s, silence_s))
    watchdog.start()
    print(watchdog.pid, flush=True)  # noqa: T201 - its only way to tell
    while True:
        watchdog.heartbeat()
        time.sleep(BEAT_S)
        if (directory / "bye").exists():
            break
    watchdog.stop()
    host.close()
    lock.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
