"""Sandbox: a control group with a network namespace, with optional limits, in place of a training job's machine.

    with Sandboxes() as sandboxes:
        master = sandboxes.create("master", cpu_cores=0.5, memory_bytes=1 << 30, network_bits_per_s=100_000_000)
        process = master.spawn(["python", "train.py"], os.environ | {"MASTER_ADDR": master.address})
        ... master.sample() ...

Sandboxes of one run reach each other at their addresses, and nothing else. All calls block for some milliseconds.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from schemas.apps import MIN_QUOTA_US, NAME_PATTERN, PERIOD_US
from services._host.cgroup_processes import write_file
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, ManagedCgroup, detect
from services._host.netns import enter
from services._host.owner import Owner
from services._jobs.sandbox.network import (
    NetworkNamespace,
    NetworkUnavailableError,
    Switch,
    check_rate,
    read_traffic,
)
from services._jobs.sandbox.records import (
    RECORDS,
    SANDBOXES_ROOT,
    RunRecord,
    forget,
    remove_run,
    sweep,
)
from services._jobs.sandbox.usage import Usage
from services._runtime.child_process import die_with_parent
from services._runtime.service.interpreter import isolated_command

_NAME: Final = re.compile(NAME_PATTERN)
REAPED_WITHIN_S: Final = 2.0


class SandboxUnavailableError(Exception):
    """Sandboxes cannot be created here; the message gives the reason and the remedy."""


class SandboxSample(NamedTuple):
    """Usage of a sandbox since its creation; memory is the current one."""

    cpu_s: float
    memory_bytes: int
    """Without reclaimable page cache (the "working set" of Kubernetes)."""
    rx_bytes: int
    tx_bytes: int
    oom_kills: int
    throttled_s: float
    """By its own CPU limit, summed over processors."""


@dataclass(frozen=True, slots=True)
class Output:
    """Files for a process' output; None: it is discarded."""

    stdout: Path | None = None
    stderr: Path | None = None


class SandboxParts(NamedTuple):
    """Parts of a sandbox."""

    group: ManagedCgroup
    namespace: NetworkNamespace
    usage: Usage


class Sandbox:
    """One machine of a run, made by `Sandboxes.create`."""

    def __init__(self, name: str, address: str, parts: SandboxParts) -> None:
        self.name = name
        self.address = address
        """IPv4, reachable from the other sandboxes of the run."""
        self._group, self._namespace, self._usage = parts
        self._traffic = self._namespace.open_traffic()
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._removed = False

    def enter(self) -> None:
        """Move the calling process into the sandbox, irrevocably: for a child before exec, or a child of a fork server.

        It is killed when the thread that forked it ends: fork it from one that lives as long as the run.

        Raises:
            OSError: the kernel refuses.
        """
        owner = os.getppid()
        if not self._group.add_process(0):
            raise OSError(f"the control group of cell {self.name} has been removed")
        enter(self._namespace.descriptor)
        if not die_with_parent(signal.SIGKILL, owner):
            os._exit(128 + signal.SIGKILL)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Output | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program inside, in a session of its own, without input. It is killed when the calling thread ends.

        Raises:
            OSError: the program does not exist or cannot be executed.
            SandboxUnavailableError: the kernel does not let it in.
        """
        where = output or Output()
        opened = [subprocess.DEVNULL if path is None else _append(path) for path in (where.stdout, where.stderr)]
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                list(argv),
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=opened[0],
                stderr=opened[1],
                start_new_session=True,
                preexec_fn=self.enter,  # noqa: PLW1509 - makes system calls only
            )
            self._spawned.append(process)
        except subprocess.SubprocessError as error:
            raise SandboxUnavailableError(
                f"the kernel does not let {argv[0]} into cell {self.name} (a real-time process? see chrt -p $$)"
            ) from error
        finally:
            for descriptor in opened:
                if descriptor >= 0:
                    os.close(descriptor)
        return process

    def sample(self) -> SandboxSample | None:
        """Its usage so far; None once it was removed."""
        if self._removed:
            return None
        used = self._usage.read()
        traffic = read_traffic(self._traffic)
        if used is None:
            return None
        return SandboxSample(
            used.cpu_s, used.memory_bytes, traffic.rx_bytes, traffic.tx_bytes, used.oom_kills, used.throttled_s
        )

    def limit_cpu(self, cpu_cores: float | None, period_us: int = PERIOD_US) -> None:
        """Change its CFS quota; None: no limit. A no-op once it was removed."""
        if not self._removed:
            self._group.write_quota(_quota_us(cpu_cores, period_us), period_us)

    def process_ids(self) -> list[int]:
        """Processes inside."""
        return self._group.process_ids()

    def kill(self) -> None:
        """Send SIGKILL to every process inside."""
        self._group.kill()

    def remove(self) -> bool:
        """Kill its processes and remove it; False: a process could not be killed. Idempotent."""
        if self._removed:
            return True
        self._removed = True
        gone = self._group.end()
        for process in self._spawned:
            # A process leaves its group a moment before it can be reaped.
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAPED_WITHIN_S if gone else 0)
        self._usage.close()
        os.close(self._traffic)
        self._namespace.close()
        return gone


class Sandboxes:
    """The sandboxes of one run, as a context manager: removed at its end, and at the end of this process."""

    def __init__(self, root: str = SANDBOXES_ROOT, records: Path = RECORDS) -> None:
        self._root = root
        self._records = records
        self._sandboxes: dict[str, Sandbox] = {}
        self.swept: list[str] = []
        """Tokens of killed runs whose leftovers were removed at the start."""

    def __enter__(self) -> Self:
        """Remove the leftovers of killed runs, and create the run's record and switch.

        Raises:
            SandboxUnavailableError: not possible here.
        """
        if os.geteuid() != 0:
            raise SandboxUnavailableError(
                f"control groups and network namespaces need root, this is uid {os.geteuid()}: use sudo -E"
            )
        try:
            self._layout: CgroupLayout = detect()
            self.swept = sweep(self._layout, self._records)
            self._record = RunRecord(secrets.token_hex(4), self._root, Owner.this_process())
            self._record.write(self._records)
        except CgroupUnavailableError as error:
            raise SandboxUnavailableError(str(error)) from error
        except OSError as error:
            raise SandboxUnavailableError(f"{error.filename}: {error.strerror}") from error
        try:
            self._switch = Switch()
        except NetworkUnavailableError as error:
            forget(self._record, self._records)
            raise SandboxUnavailableError(f"cannot make a network namespace: {error}") from error
        self._reaper = self._start_reaper()
        return self

    @property
    def token(self) -> str:
        """Names the run's control groups and record."""
        return self._record.token

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        path = self._records / f"{self._record.token}.json"
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            isolated_command("services._jobs.sandbox.reaper", str(path)),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def create(
        self,
        name: str,
        cpu_cores: float | None = None,
        memory_bytes: int | None = None,
        network_bits_per_s: int | None = None,
    ) -> Sandbox:
        """A new sandbox; None: no limit. The rate holds in each direction.

        Raises:
            SandboxUnavailableError: the kernel refuses, with the reason.
            ValueError: a name is in use or has unusual characters, or a limit makes no sense.
        """
        _check(name, cpu_cores, memory_bytes, network_bits_per_s)
        if name in self._sandboxes:
            raise ValueError(f"there is a cell {name} already")
        try:
            group = ManagedCgroup.create(
                self._layout, f"{self._record.directory}/{name}", _quota_us(cpu_cores), memory_bytes
            )
        except CgroupUnavailableError as error:
            raise SandboxUnavailableError(str(error)) from error
        with ExitStack() as undo:
            undo.callback(group.end)
            try:
                if memory_bytes is not None:
                    _keep_from_swapping(self._layout, group)
                namespace = NetworkNamespace.create()
                undo.callback(namespace.close)
                address = self._switch.plug(namespace, network_bits_per_s)
                usage = Usage.of(self._layout, group.directory)
                sandbox = Sandbox(name, address, SandboxParts(group, namespace, usage))
            except (NetworkUnavailableError, OSError) as error:
                raise SandboxUnavailableError(f"cannot make cell {name}: {error}") from error
            undo.pop_all()
        self._sandboxes[name] = sandbox
        return sandbox

    def remove(self, sandbox: Sandbox) -> bool:
        """Remove one sandbox, so that its name can be used again; False: a process could not be killed."""
        self._sandboxes.pop(sandbox.name, None)
        return sandbox.remove()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and remove every sandbox."""
        removed = [sandbox.remove() for sandbox in self._sandboxes.values()]
        self._sandboxes.clear()
        self._switch.close()
        if all(removed) and remove_run(self._layout, self._record):
            forget(self._record, self._records)
        self._reaper.kill()
        self._reaper.communicate()


def _quota_us(cpu_cores: float | None, period_us: int = PERIOD_US) -> int | None:
    return None if cpu_cores is None else max(MIN_QUOTA_US, round(cpu_cores * period_us))


def _check(name: str, cpu_cores: float | None, memory_bytes: int | None, network_bits_per_s: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"cell name {name!r} does not match {NAME_PATTERN}")
    if cpu_cores is not None and not 0 < cpu_cores < float("inf"):
        raise ValueError(f"{cpu_cores} cores make no limit")
    if memory_bytes is not None and memory_bytes <= 0:
        raise ValueError(f"{memory_bytes} bytes of memory make no limit")
    if network_bits_per_s is not None:
        check_rate(network_bits_per_s)


def _keep_from_swapping(layout: CgroupLayout, group: ManagedCgroup) -> None:
    """Disable swap, so that a machine that is too small runs out of memory. Without swap there is no such file."""
    path = layout.directories(group.directory)["memory"]
    with suppress(FileNotFoundError, PermissionError):
        write_file(f"{path}/{'memory.swappiness' if layout.version == 1 else 'memory.swap.max'}", "0")


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
