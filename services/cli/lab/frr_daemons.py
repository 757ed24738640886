"""FRR's daemons in a namespace, under a pathspace of the same name: started, found again, stopped or killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._runtime.netns import command_in
from services.cli.failure import CommandError, UnavailableError

BINARIES: Final = Path("/usr/lib/frr")
CONFIGURATION: Final = Path("/etc/frr")
RUNTIME: Final = Path("/var/run/frr")
USER: Final = "frr"
DAEMONS: Final = ("zebra", "bgpd", "bfdd")
PRIORITIES: Final = {"bfdd": 30, "zebra": 15, "bgpd": 15}
"""SCHED_RR. bgpd at bfdd's priority starves it, then BFD flaps, which makes more work for bgpd: a storm."""
_RECEIVE_BUFFER_BYTES: Final = 90_000_000
"""Of zebra's netlink socket."""
_START_WITHIN_S: Final = 20.0
_STOP_WITHIN_S: Final = 3.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class FrrNode:
    """One router's daemons."""

    netns: str
    """Also FRR's pathspace."""
    configs: Mapping[str, str]
    """Daemon -> configuration."""
    logs: Path
    realtime: bool

    @property
    def configuration(self) -> Path:
        """Directory of its configuration files."""
        return CONFIGURATION / self.netns

    @property
    def runtime(self) -> Path:
        """Directory of its sockets and pid files."""
        return RUNTIME / self.netns


def missing() -> str | None:
    """What has to be installed first, or None."""
    absent = [daemon for daemon in DAEMONS if not (BINARIES / daemon).exists()]
    return f"FRR's {', '.join(absent)} not found in {BINARIES}: apt-get install frr" if absent else None


def realtime_permitted() -> bool:
    """Whether a child of ours may run SCHED_RR (CAP_SYS_NICE, and real-time budget in our control group)."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["chrt", "-r", "1", "true"], capture_output=True, timeout=10, check=False).returncode == 0  # noqa: S607 - util-linux, by PATH
    return False


def prepare() -> None:
    """Make the directory of all pathspaces' sockets where no FRR has run since the boot. It is left there.

    Raises:
        OSError: it cannot be made.
    """
    if not RUNTIME.exists():
        RUNTIME.mkdir(parents=True)
        shutil.chown(RUNTIME, USER, USER)


def write_configs(node: FrrNode) -> None:
    """Make a node's directories and configuration files, readable for FRR's user.

    Raises:
        OSError: they cannot be written.
    """
    for directory in (node.configuration, node.runtime, node.logs):
        directory.mkdir(parents=True, exist_ok=True)
        shutil.chown(directory, USER, USER)
    for daemon, text in {**{f"{name}.conf": text for name, text in node.configs.items()}, "vtysh.conf": ""}.items():
        path = node.configuration / daemon
        path.write_text(text, encoding="utf-8")
        shutil.chown(path, USER, USER)


def start(nodes: Iterable[FrrNode]) -> None:
    """Start every node's daemons and wait until each has read its configuration.

    zebra is first: a daemon that does not find its socket at once tries again after 10 s (zclient.c).

    Raises:
        CommandError: one did not start; holds what it said.
    """
    given = tuple(nodes)
    _start([(node, daemon) for node in given for daemon in node.configs if daemon == "zebra"])
    deadline = time.monotonic() + _START_WITHIN_S
    sockets = [node.runtime / "zserv.api" for node in given if "zebra" in node.configs]
    while not all(_listens(path) for path in sockets):
        if time.monotonic() > deadline:
            raise UnavailableError(f"zebra does not listen at {', '.join(map(str, sockets))}")
        time.sleep(_POLL_S)
    _start([(node, daemon) for node in given for daemon in node.configs if daemon != "zebra"])


def running(netns: str) -> dict[str, int]:
    """Daemon -> pid, of those that live."""
    return {daemon: pid for (_, daemon), pid in _living([netns]).items()}


def stop(namespaces: Iterable[str], *, at_once: bool = False) -> None:
    """End the daemons of these namespaces and wait for it; `at_once`: as if the power had failed.

    Raises:
        CommandError: one does not end.
    """
    pids = {pid: f"{daemon} of {netns}" for (netns, daemon), pid in _living(namespaces).items()}
    _signal(pids, signal.SIGKILL if at_once else signal.SIGTERM)
    left = _wait_for_end(pids, _STOP_WITHIN_S)
    _signal(left, signal.SIGKILL)
    if left := _wait_for_end(left, _STOP_WITHIN_S):
        raise CommandError(f"does not end: {', '.join(left.values())}")


def _living(namespaces: Iterable[str]) -> dict[tuple[str, str], int]:
    """(Pathspace, daemon) -> pid. By command line: one that is just starting has no pid file yet."""
    wanted = set(namespaces)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            path, daemon = words[0].rpartition("/")[::2]
            if path != str(BINARIES) or daemon not in DAEMONS or "-N" not in words[:-1]:
                continue
            pathspace = words[words.index("-N") + 1]
            if pathspace in wanted:
                found[pathspace, daemon] = int(entry.name)
    return found


def remove_directories(netns: str) -> None:
    """Remove a node's configuration, sockets and pid files."""
    for directory in (CONFIGURATION / netns, RUNTIME / netns):
        shutil.rmtree(directory, ignore_errors=True)


def _start(wanted: list[tuple[FrrNode, str]]) -> None:
    """All at once."""
    started = [(node, daemon, _spawn(node, daemon)) for node, daemon in wanted]
    problems = []
    for node, daemon, process in started:
        try:
            code = process.wait(_START_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            problems.append(f"{daemon} of {node.netns} did not detach within {_START_WITHIN_S:g} s")
            continue
        if code:
            said = _output_of(node, daemon).read_text(encoding="utf-8", errors="replace")
            problems.append(f"{daemon} of {node.netns} ended with {code}: {said.strip() or 'it said nothing'}")
    if problems:
        raise UnavailableError("; ".join(problems))


def _listens(path: Path) -> bool:
    """Not only left over from one that was killed."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


def _spawn(node: FrrNode, daemon: str) -> subprocess.Popen[bytes]:
    command = [
        str(BINARIES / daemon),
        *("-d", "-N", node.netns, "-F", "datacenter"),
        *("-f", str(node.configuration / f"{daemon}.conf")),
        *("--log", f"file:{node.logs / daemon}.log", "--log-level", "informational"),
        *(("-s", str(_RECEIVE_BUFFER_BYTES)) if daemon == "zebra" else ()),
    ]
    scheduled = ["chrt", "-r", str(PRIORITIES[daemon]), *command] if node.realtime else command
    # Not a pipe: the daemon would hold its other end.
    with _output_of(node, daemon).open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - FRR's own binaries
            command_in(node.netns, scheduled),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _output_of(node: FrrNode, daemon: str) -> Path:
    return node.logs / f"{daemon}.out"


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for_end(pids: Mapping[int, str], within_s: float) -> dict[int, str]:
    """Those that still live after so long."""
    deadline = time.monotonic() + within_s
    left = dict(pids)
    while left and time.monotonic() < deadline:
        left = {pid: name for pid, name in left.items() if _lives(pid)}
        if left:
            time.sleep(_POLL_S)
    return left


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
