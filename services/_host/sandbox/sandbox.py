"""Cells: what a machine of a training job is here, a control group with a network namespace, limited or not.

    with Cells() as cells:
        master = cells.create("master", cpu_cores=0.5, memory_bytes=1 << 30, network_bits_per_s=100_000_000)
        process = master.spawn(["python", "train.py"], os.environ | {"MASTER_ADDR": master.address})
        ... master.sample() ...

Cells of one run reach each other at their addresses, and nothing else. All calls block for some milliseconds.
"""

from __future__ import annotations

import ctypes
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
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, ManagedCgroup, detect, write_file
from services._host.netns import enter
from services._host.sandbox.network import (
    NetworkNamespace,
    NetworkUnavailableError,
    Switch,
    check_rate,
    read_traffic,
)
from services._host.sandbox.records import (
    CELLS_ROOT,
    RECORDS,
    Owner,
    RunRecord,
    forget,
    remove_run,
    sweep,
)
from services._host.sandbox.usage import Usage
from services._runtime.service.interpreter import isolated_command

_NAME: Final = re.compile(NAME_PATTERN)
REAPED_WITHIN_S: Final = 2.0
_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class CellUnavailableError(Exception):
    """Cells cannot be made here; the message says why and what would help."""


class CellSample(NamedTuple):
    """What a cell has used since it was made; memory is what it holds now."""

    cpu_s: float
    memory_bytes: int
    """Without the page cache that the kernel would give back first (the "working set" of Kubernetes)."""
    rx_bytes: int
    tx_bytes: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Output:
    """Files that take a process' output; None: it is thrown away."""

    stdout: Path | None = None
    stderr: Path | None = None


class CellParts(NamedTuple):
    """What a cell is made of."""

    group: ManagedCgroup
    namespace: NetworkNamespace
    usage: Usage


class Cell:
    """One machine of a run. `Cells.create` makes it."""

    def __init__(self, name: str, address: str, parts: CellParts) -> None:
        self.name = name
        self.address = address
        """IPv4, reachable from the other cells of the run."""
        self._group, self._namespace, self._usage = parts
        self._traffic = self._namespace.open_traffic()
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._removed = False

    def enter(self) -> None:
        """Put the calling process in, for good: for a child between fork and the program, or a fork of a warm parent.

        It is killed when the thread that forked it ends: fork it from one that lives as long as the run.

        Raises:
            OSError: the kernel refuses.
        """
        owner = os.getppid()
        if not self._group.add_process(0):
            raise OSError(f"the control group of cell {self.name} has been removed")
        enter(self._namespace.descriptor)
        _LIBC.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:
            os._exit(128 + signal.SIGKILL)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Output | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program inside, in a session of its own, without input. It is killed when our thread ends.

        Raises:
            OSError: the program does not exist or cannot be executed.
            CellUnavailableError: the kernel does not let it in.
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
            raise CellUnavailableError(
                f"the kernel does not let {argv[0]} into cell {self.name} (a real-time process? see chrt -p $$)"
            ) from error
        finally:
            for descriptor in opened:
                if descriptor >= 0:
                    os.close(descriptor)
        return process

    def sample(self) -> CellSample | None:
        """What it has used so far; None once it was removed."""
        if self._removed:
            return None
        used = self._usage.read()
        traffic = read_traffic(self._traffic)
        if used is None:
            return None
        return CellSample(used.cpu_s, used.memory_bytes, traffic.rx_bytes, traffic.tx_bytes, used.oom_kills)

    def limit_cpu(self, cpu_cores: float | None, period_us: int = PERIOD_US) -> None:
        """Change its quota, which is granted anew every period; None: no limit. Nothing happens once it was removed."""
        if not self._removed:
            self._group.write_quota(_quota_us(cpu_cores, period_us), period_us)

    def process_ids(self) -> list[int]:
        """Processes inside."""
        return self._group.process_ids()

    def kill(self) -> None:
        """Send SIGKILL to every process inside."""
        self._group.kill()

    def remove(self) -> bool:
        """Kill what is inside and remove it; False: something would not die. Again: nothing happens."""
        if self._removed:
            return True
        self._removed = True
        gone = self._group.end()
        for process in self._spawned:
            # Reaped here, so that nobody has to; it leaves its group a moment before it can be.
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAPED_WITHIN_S if gone else 0)
        self._usage.close()
        os.close(self._traffic)
        self._namespace.close()
        return gone


class Cells:
    """The cells of one run, as a context manager: at its end, and at the end of this process, none is left."""

    def __init__(self, root: str = CELLS_ROOT, records: Path = RECORDS) -> None:
        self._root = root
        self._records = records
        self._cells: dict[str, Cell] = {}
        self.swept: list[str] = []
        """Tokens of killed runs whose leftovers were removed at the start."""

    def __enter__(self) -> Self:
        """Remove what killed runs have left, and make a place.

        Raises:
            CellUnavailableError: not here.
        """
        if os.geteuid() != 0:
            raise CellUnavailableError(
                f"control groups and network namespaces need root, this is uid {os.geteuid()}: use sudo -E"
            )
        try:
            self._layout: CgroupLayout = detect()
            self.swept = sweep(self._layout, self._records)
            self._record = RunRecord(secrets.token_hex(4), self._root, Owner.ourselves())
            self._record.write(self._records)
        except CgroupUnavailableError as error:
            raise CellUnavailableError(str(error)) from error
        except OSError as error:
            raise CellUnavailableError(f"{error.filename}: {error.strerror}") from error
        try:
            self._switch = Switch()
        except NetworkUnavailableError as error:
            forget(self._record, self._records)
            raise CellUnavailableError(f"cannot make a network namespace: {error}") from error
        self._warden = self._start_warden()
        return self

    @property
    def token(self) -> str:
        """Names the run's control groups and record."""
        return self._record.token

    def _start_warden(self) -> subprocess.Popen[bytes]:
        path = self._records / f"{self._record.token}.json"
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            isolated_command("services._host.sandbox.reaper", str(path)),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def create(
        self,
        name: str,
        cpu_cores: float | None = None,
        memory_bytes: int | None = None,
        network_bits_per_s: int | None = None,
    ) -> Cell:
        """A new cell; None: no limit. The rate holds in each direction.

        Raises:
            CellUnavailableError: the kernel does not let us, with the reason.
            ValueError: a name is in use or has unusual characters, or a limit makes no sense.
        """
        _check(name, cpu_cores, memory_bytes, network_bits_per_s)
        if name in self._cells:
            raise ValueError(f"there is a cell {name} already")
        try:
            group = ManagedCgroup.create(
                self._layout, f"{self._record.directory}/{name}", _quota_us(cpu_cores), memory_bytes
            )
        except CgroupUnavailableError as error:
            raise CellUnavailableError(str(error)) from error
        with ExitStack() as undo:
            undo.callback(group.end)
            try:
                if memory_bytes is not None:
                    _keep_from_swapping(self._layout, group)
                namespace = NetworkNamespace.create()
                undo.callback(namespace.close)
                address = self._switch.plug(namespace, network_bits_per_s)
                cell = Cell(name, address, CellParts(group, namespace, Usage.of(self._layout, group.directory)))
            except (NetworkUnavailableError, OSError) as error:
                raise CellUnavailableError(f"cannot make cell {name}: {error}") from error
            undo.pop_all()
        self._cells[name] = cell
        return cell

    def remove(self, cell: Cell) -> bool:
        """Remove one cell, so that its name can be used again; False: something in it would not die."""
        self._cells.pop(cell.name, None)
        return cell.remove()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and remove every cell."""
        removed = [cell.remove() for cell in self._cells.values()]
        self._cells.clear()
        self._switch.close()
        if all(removed) and remove_run(self._layout, self._record):
            forget(self._record, self._records)
        self._warden.kill()
        self._warden.communicate()


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
    """A machine that is too small shall run out of memory, not of patience. Without swap there is no such file."""
    path = layout.directories(group.directory)["memory"]
    with suppress(FileNotFoundError, PermissionError):
        write_file(f"{path}/{'memory.swappiness' if layout.version == 1 else 'memory.swap.max'}", "0")


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
