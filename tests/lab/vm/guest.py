"""A running machine that takes jobs, and one that is booted when it is needed and again after it was lost."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.vm.machine import CHECKOUT, CORES, MEMORY_MIB, Image, MachineError

BOOT_WITHIN_S: Final = 300.0
"""Takes 7 s on a quiet machine, 20 s on a busy one."""
JOB_WITHIN_S: Final = 600.0
EXCHANGE: Final = "/run/exchange"


@dataclass(frozen=True, slots=True)
class NetworkCard:
    """One end of a cable to another machine."""

    cable: socket.socket
    """Given away: it is closed once the machine has it."""
    mac: str

    def arguments(self, index: int) -> list[str]:
        """Of qemu: the guest sees eth<index>."""
        return [
            *("-netdev", f"stream,id=n{index},addr.type=fd,addr.str={self.cable.fileno()}"),
            *("-device", f"virtio-net-pci,netdev=n{index},mac={self.mac}"),
        ]


def cable() -> tuple[socket.socket, socket.socket]:
    """Both ends of a cable, without loss and without any limit of its speed."""
    return socket.socketpair()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    exit_code: int
    output: str
    """stdout and stderr."""
    seconds: float
    """On this machine's clock."""
    directory: Path
    """What the job left in its own directory, $JOB_DIRECTORY in the guest."""


class Job:
    """A command that runs in a machine."""

    def __init__(self, machine: RunningMachine, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.command = command
        self.directory = machine.exchange / name
        self.ended = threading.Event()
        self._machine = machine
        self._started_s = time.monotonic()

    def output(self) -> str:
        """What it wrote so far, to stdout and stderr."""
        return _text(self.directory / "output")

    def wait(self, within_s: float) -> Ended:
        """Until it has ended.

        Raises:
            MachineError: it has not within `within_s`, or the machine went away; the machine is killed.
        """
        self.ended.wait(within_s)
        seconds = time.monotonic() - self._started_s
        exit_code = _text(self.directory / "exit-code").strip()
        if self.ended.is_set() and exit_code:
            return Ended(int(exit_code), self.output(), seconds, self.directory)
        fate = "the machine went away" if self.ended.is_set() else "runs on"
        self._machine.kill()
        raise MachineError(
            f"{fate} after {seconds:.0f} s: {shlex.join(self.command)}\n"
            f"output:\n{self.output()[-4000:]}\nconsole:\n{self._machine.console()[-4000:]}"
        )


class RunningMachine:
    """A machine from its boot to its end; jobs may run side by side."""

    def __init__(
        self,
        image: Image,
        directory: Path,
        *,
        cards: Sequence[NetworkCard] = (),
        memory_mib: int = MEMORY_MIB,
        cores: int = CORES,
    ) -> None:
        """Start to boot.

        Args:
            image: what it boots from.
            directory: one of its own, which is not there yet: exchange, console.
            cards: eth0 first.
            memory_mib: of the guest.
            cores: of the guest.
        """
        self.directory = directory
        self.exchange = directory / "exchange"
        self.exchange.mkdir(parents=True)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._killed = False
        self._channel, theirs = socket.socketpair()
        sockets = [theirs, *(card.cable for card in cards)]
        arguments = image.command(
            self.exchange,
            console=self.directory / "console",
            channel=theirs.fileno(),
            cards=[argument for index, card in enumerate(cards) for argument in card.arguments(index)],
            memory_mib=memory_mib,
            cores=cores,
        )
        with (self.directory / "stderr").open("wb") as said:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[end.fileno() for end in sockets],
                # A process of its own for each address space in it, if it is User-Mode Linux.
                start_new_session=True,
            )
        for end in sockets:
            end.close()
        self._reader = threading.Thread(target=self._read, name="guest", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether it can still take jobs."""
        return self._process.poll() is None

    def console(self) -> str:
        """What qemu, or User-Mode Linux, and the guest's kernel said."""
        return _text(self.directory / "stderr") + _text(self.directory / "console")

    def wait_until_ready(self, within_s: float = BOOT_WITHIN_S) -> None:
        """Until it takes jobs; those that are given earlier wait for it by themselves.

        Raises:
            MachineError: it does not boot.
        """
        if not self._ready.wait(within_s) or not self.alive:
            self.kill()
            raise MachineError(f"did not boot within {within_s:.0f} s\nconsole:\n{self.console()[-4000:]}")

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Job:
        """Run a command as root in the checkout, side by side with others.

        Raises:
            MachineError: the machine does not boot, or went away.
        """
        self.wait_until_ready()
        with self._lock:
            job = Job(self, f"job{len(self._jobs)}", command)
            self._jobs[job.name] = job
        job.directory.mkdir()
        variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "JOB_DIRECTORY": f"{EXCHANGE}/{job.name}",
        }
        assignments = [f"{name}={value}" for name, value in (variables | dict(environment or {})).items()]
        # The shell that starts jobs lets them ignore SIGINT and SIGQUIT.
        line = shlex.join(["env", "-i", "--default-signal", *assignments, *command])
        (job.directory / "job").write_text(f"cd {shlex.quote(str(CHECKOUT))} && exec {line}\n", encoding="utf-8")
        with suppress(OSError), self._lock:  # gone: waiting for the job says so
            self._channel.sendall(f"{job.name}\n".encode())
        return job

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, within_s: float = JOB_WITHIN_S
    ) -> Ended:
        """Run a command as root in the checkout, and wait for it.

        Raises:
            MachineError: it has not ended within `within_s`, or the machine went away.
        """
        return self.start(command, environment).wait(within_s)

    def kill(self) -> None:
        """At once: there is nothing in it to be saved. Not again: its number may be another group's by then."""
        if self._killed:
            return
        self._killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._channel.close()

    def _read(self) -> None:
        with suppress(OSError), self._channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                if line.strip() == "ready":
                    self._ready.set()
                elif job := self._jobs.get(line.strip()):
                    job.ended.set()
        # The machine is gone: nobody must wait for it.
        self._ready.set()
        for job in list(self._jobs.values()):
            job.ended.set()


class Guest:
    """A machine for many tests: boots at its first job, and again at the first one after it was lost."""

    def __init__(self, image: Image, directory: Path, cores: int = CORES) -> None:
        self.image = image
        self.cores = cores
        self.boots = 0
        self._directory = directory
        self._machine: RunningMachine | None = None

    def machine(self, boot_within_s: float = BOOT_WITHIN_S) -> RunningMachine:
        """The running one.

        Raises:
            MachineError: it does not boot.
        """
        if self._machine is None or not self._machine.alive:
            self.close()
            self.boots += 1
            self._machine = RunningMachine(self.image, self._directory / f"boot{self.boots}", cores=self.cores)
            self._machine.wait_until_ready(boot_within_s)
        return self._machine

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, within_s: float = JOB_WITHIN_S
    ) -> Ended:
        """As `RunningMachine.run`, after booting if need be; who hangs costs the next one a boot."""
        return self.machine().run(command, environment=environment, within_s=within_s)

    def close(self) -> None:
        """Switch it off; another job boots it again."""
        if self._machine is not None:
            self._machine.kill()
            self._machine = None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
