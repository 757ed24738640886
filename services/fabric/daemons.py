"""FRR's daemons as processes: started in a network namespace, recognised, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.netns import command_in
from services._host.readiness import readable
from services.fabric.resources import Daemon

MARK: Final = "TURNBUCKLE_FABRIC_DIGEST"
"""Variable in a daemon's environment: which command line and configuration it was started with."""
START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 5.0
_POLL_S: Final = 0.02


class DaemonError(Exception):
    """A daemon does not start; the text says what it said."""


def find_process(daemon: Daemon) -> int | None:
    """Process id of a daemon that runs; None if it does not (also if another program got its id)."""
    try:
        pid = int(Path(daemon.pid_file).read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if command[0].decode(errors="replace") == daemon.command[0] else None


def digest_of(daemon: Daemon) -> str | None:
    """Digest that a running daemon was started with; empty where `up` has not started it, None if it does not run."""
    pid = find_process(daemon)
    if pid is None:
        return None
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    return next((word.removeprefix(prefix).decode() for word in environ if word.startswith(prefix)), "")


def start(daemon: Daemon, *, tried: bool = False) -> None:
    """Start a daemon; it has read its configuration when this returns. `tried`: that is known to be accepted.

    Raises:
        DaemonError: it refuses a line of its configuration, ends at once, or does not detach.
        OSError: it cannot be run.
    """
    if not tried:
        _dry_run(daemon)
    code, said = _run(command_in(daemon.netns, daemon.launch), daemon)
    if code:
        raise DaemonError(f"{daemon.name} ended with {code}: {said or 'it said nothing'}")
    if daemon.name == "zebra":
        _wait_for_listener(Path(daemon.pid_file).with_name("zserv.api"))


def _dry_run(daemon: Daemon) -> None:
    code, said = _run(command_in(daemon.netns, (*daemon.command, "--dryrun")), daemon)
    # FRR skips a line that it does not know and goes on: with half a configuration.
    refused = [line for line in said.splitlines() if "on config line" in line or "open configuration file" in line]
    if code or refused:
        raise DaemonError(f"{daemon.name} refuses its configuration: {'; '.join(refused) or said or code}")


def _wait_for_listener(path: Path) -> None:
    """A daemon that does not find zebra's socket at once tries again only after 10 s (zclient.c)."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not _listens(path):
        if time.monotonic() > deadline:
            raise DaemonError(f"zebra does not listen at {path}")
        time.sleep(_POLL_S)


def _listens(path: Path) -> bool:
    """Not only left over from one that was killed."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


def _run(command: Sequence[str], daemon: Daemon) -> tuple[int, str]:
    """Exit code and what stood on stderr."""
    # Not a pipe: a daemon would hold its other end.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(  # noqa: S603 - FRR's own program, from fixed paths
                command,
                env={"PATH": os.environ.get("PATH", os.defpath), MARK: daemon.value},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=START_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DaemonError(f"{daemon.name} has not detached after {START_DEADLINE_S:g} s") from error
        said.seek(0)
        return done.returncode, said.read(4_000).decode(errors="replace").strip()


def stop(daemon: Daemon) -> None:
    """End a daemon, if it runs, and wait until it is gone."""
    pid = find_process(daemon)
    if pid is None:
        return
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return
            if readable([handle], STOP_DEADLINE_S):
                return
    finally:
        os.close(handle)
