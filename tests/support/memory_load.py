"""Grows as fast as it can, in one of five ways, when told to: ``python -S -E memory_load.py KIND`` (standard library).

touch: writes one byte into each page of fresh memory. huge: the same in huge pages, many times as fast. read: reads a
file (argument) into fresh memory, again and again. fork: starts children that touch 16 MiB each and stay. tmpfs: writes
a file (argument) on a tmpfs.

Says ``ready``; on a line ``grow BYTES`` it grows and answers with one line of JSON (`Growth`); on ``drop`` it gives
everything back and says ``dropped``. Ends with its input.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

PAGE_BYTES = 4096
STEP_BYTES = 4 << 20
CHILD_BYTES = 16 << 20
KINDS = ("touch", "read", "fork", "tmpfs", "huge")


@dataclass
class Growth:
    """What came of it."""

    size_bytes: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    """System calls that failed or did less than they were asked for."""
    longest_step_s: float = 0.0
    """Of one step of 4 MiB (fork: of one child's fork)."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.size_bytes / self.seconds


class _Steps:
    """Times steps."""

    def __init__(self) -> None:
        self.growth = Growth()
        self._start_s = self._last_s = time.monotonic()

    def done(self, size_bytes: int) -> None:
        """A step is done."""
        now_s = time.monotonic()
        self.growth.size_bytes += size_bytes
        self.growth.longest_step_s = max(self.growth.longest_step_s, now_s - self._last_s)
        self.growth.seconds, self._last_s = now_s - self._start_s, now_s

    def failed(self, what: str) -> None:
        """A system call did not do what it was asked for."""
        self.growth.failures.append(what)


def _fresh(size_bytes: int, advice: int = mmap.MADV_NOHUGEPAGE) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return memory


class Load:
    """One way to grow."""

    def __init__(self, argument: str, *, removes_argument: bool) -> None:
        self.argument = argument
        self.removes_argument = removes_argument
        self.memory: list[mmap.mmap] = []
        self.children: list[int] = []

    def touch(self, size_bytes: int, steps: _Steps) -> None:
        """Page by page."""
        self._touch(_fresh(size_bytes), steps)

    def huge(self, size_bytes: int, steps: _Steps) -> None:
        """As much as the machine's memory gives; only a wait at the limit can stop it."""
        self._touch(_fresh(size_bytes, mmap.MADV_HUGEPAGE), steps)

    def _touch(self, memory: mmap.mmap, steps: _Steps) -> None:
        ones = bytes(STEP_BYTES // PAGE_BYTES)
        self.memory.append(memory)
        for start in range(0, len(memory), STEP_BYTES):
            memory[start : start + STEP_BYTES : PAGE_BYTES] = ones
            steps.done(STEP_BYTES)

    def read(self, size_bytes: int, steps: _Steps) -> None:
        """The kernel fills fresh pages: at a memory limit it would answer EFAULT."""
        memory = _fresh(size_bytes)
        self.memory.append(memory)
        source = os.open(self.argument, os.O_RDONLY)
        length, view = os.fstat(source).st_size, memoryview(memory)
        for start in range(0, size_bytes, STEP_BYTES):
            try:
                got = os.preadv(source, [view[start : start + STEP_BYTES]], start % length)
                if got != STEP_BYTES:
                    steps.failed(f"read: {got} of {STEP_BYTES} bytes at {start >> 20} MiB")
            except OSError as error:
                steps.failed(f"read: {error.strerror} at {start >> 20} MiB")
            steps.done(STEP_BYTES)
        view.release()
        os.close(source)

    def fork(self, size_bytes: int, steps: _Steps) -> None:
        """At a memory limit fork would answer ENOMEM."""
        for count in range(size_bytes // CHILD_BYTES):
            try:
                child = os.fork()
            except OSError as error:
                steps.failed(f"fork: {error.strerror} at child {count}")
                continue
            if not child:
                os.close(0)  # the parent's end of input must not wait for us
                memory = _fresh(CHILD_BYTES)
                memory[::PAGE_BYTES] = bytes(CHILD_BYTES // PAGE_BYTES)
                while True:
                    signal.pause()
            self.children.append(child)
            steps.done(CHILD_BYTES)
        while waited := [child for child in self.children if _resident_bytes(child) < CHILD_BYTES]:
            for child in waited:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:  # it would be waited for without an end
                    self.children.remove(child)
                    steps.failed(f"fork: a child has ended with {os.waitstatus_to_exitcode(status)}")
            time.sleep(0.001)
        steps.done(0)

    def tmpfs(self, size_bytes: int, steps: _Steps) -> None:
        """At a memory limit a write would be short."""
        block = bytes(STEP_BYTES)
        target = os.open(self.argument, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        for start in range(0, size_bytes, STEP_BYTES):
            try:
                written = os.write(target, block)
                if written != STEP_BYTES:
                    steps.failed(f"write: {written} of {STEP_BYTES} bytes at {start >> 20} MiB")
            except OSError as error:
                steps.failed(f"write: {error.strerror} at {start >> 20} MiB")
            steps.done(STEP_BYTES)
        os.close(target)

    def drop(self) -> None:
        """Give everything back."""
        for memory in self.memory:
            memory.close()
        self.memory.clear()
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.children.clear()
        if self.removes_argument:
            Path(self.argument).unlink(missing_ok=True)


def _resident_bytes(process: int) -> int:
    with open(f"/proc/{process}/statm", "rb") as statm:  # noqa: PTH123 - pathlib's import takes time in each child
        return int(statm.read().split()[1]) * PAGE_BYTES


def main() -> None:
    """Obey until the input closes."""
    kind, argument = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    load = Load(argument, removes_argument=kind == "tmpfs")
    grow: Callable[[int, _Steps], None] = getattr(load, kind)
    print("ready", flush=True)  # noqa: T201 - that is its output
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "grow":
            steps = _Steps()
            grow(int(arguments[0]), steps)
            print(json.dumps(asdict(steps.growth)), flush=True)  # noqa: T201 - as above
        elif word == "drop":
            load.drop()
            print("dropped", flush=True)  # noqa: T201 - as above
    load.drop()


class MemoryLoad:
    """A running load, as a test or a benchmark holds it."""

    def __init__(self, kind: str, argument: str = "") -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__, kind, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        """To be moved into a control group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether nobody has killed it."""
        return self._process.poll() is None

    def grow(self, size_bytes: int) -> Growth | None:
        """Grow now; blocks until done. None: it was killed."""
        self._tell(f"grow {size_bytes}")
        answer = self._answer()
        return Growth(**json.loads(answer)) if answer else None

    def drop(self) -> None:
        """Give everything back."""
        self._tell("drop")
        assert self._answer() == "dropped"

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End it and its children."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)  # its children, too, hold the pipe that a thread may be reading
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    main()
