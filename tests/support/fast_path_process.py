"""A fast path as a service of its own, in a control group: all of its processes can be stopped, frozen or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_lab import HostNamespace

_FREEZER_V1 = Path("/sys/fs/cgroup/freezer")
_V2 = Path("/sys/fs/cgroup")


def environment_of(host: HostNamespace, state: Path, **settings: str) -> dict[str, str]:
    """Variables of a fast path in a host's namespace, without a bus."""
    values = {"node": f"n{host.number}", "netns": host.name, "uplinks": ",".join(host.uplinks), "vtep": host.vtep}
    values |= {"frr_directory": str(host.directory), "state_directory": str(state), "realtime_priority": "0"}
    values["watchdog_timeout_s"] = "2"  # without a real-time priority half a second passes on a busy machine
    made = {f"TURNBUCKLE_FAST_PATH__{name.upper()}": value for name, value in (values | settings).items()}
    return made | {"TURNBUCKLE_HEALTH_PORT": "0", "TURNBUCKLE_NATS_URL": "nats://127.0.0.1:9"}


class FreezerGroup:
    """A control group that can be frozen: version 1's freezer, or version 2."""

    def __init__(self) -> None:
        self._old = _FREEZER_V1.is_dir()
        self.path = (_FREEZER_V1 if self._old else _V2) / f"tb-test-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()

    def pids(self) -> list[int]:
        """Whoever is in it."""
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def freeze(self, *, on: bool) -> None:
        """Freeze or thaw."""
        if self._old:
            (self.path / "freezer.state").write_text("FROZEN" if on else "THAWED")
        else:
            (self.path / "cgroup.freeze").write_text("1" if on else "0")

    def signal(self, number: signal.Signals) -> None:
        """To all of them."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_at_once(self) -> None:
        """None of them sees the others die."""
        self.signal(signal.SIGSTOP)
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """End what is left in it."""
        self.freeze(on=False)
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.signal(number)

    def remove(self) -> None:
        """Remove it, once the kernel has taken its killed processes out."""
        wait_until(lambda: not self.pids(), what=f"{self.path} is empty")
        self.path.rmdir()


@contextmanager
def fast_path_in_a_group(host: HostNamespace, state: Path, **settings: str) -> Iterator[FreezerGroup]:
    """Service, data-plane process and watchdog."""
    group = FreezerGroup()
    join = ["/bin/sh", "-c", 'echo $$ > "$1" && shift && exec "$@"', "sh", str(group.path / "cgroup.procs")]
    process = subprocess.Popen(
        [*join, sys.executable, "-m", "services.fastpath"],
        env={**os.environ, **environment_of(host, state, **settings)},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield group
    finally:
        group.close()
        process.wait(60)
        group.remove()
        _remove(group.path)


def _remove(path: Path) -> None:
    """A group is empty some moments after its last process has gone."""
    for _ in range(1_000):
        try:
            path.rmdir()
        except OSError:
            os.sched_yield()
        else:
            return
