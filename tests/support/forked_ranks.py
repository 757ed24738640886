"""Ranks of the trainer as forked processes: torch is imported once, by the parent, instead of by each rank.

The parent starts no thread and computes nothing itself, so that it may be forked.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
import torch._dynamo  # its modules would be imported by each rank, with the first optimizer
from torch import distributed as dist

from services.trainer.worker import command

DEADLINE_S = 120.0


def forked(work: Callable[[], int], log: Path) -> int:
    """Start a process that ends with what `work` returns; its output goes to a file. Returns its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = work()
    except BaseException:  # noqa: BLE001 - a forked test process must not return into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pids: Sequence[int], within_s: float = DEADLINE_S) -> list[int]:
    """Exit codes, negative for signals; what does not end in time is killed and fails the case."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + within_s
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            raise TimeoutError(f"{len(pids) - len(codes)} of {len(pids)} ranks have not ended within {within_s:g} s")
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


@dataclass
class Store:
    """A TCPStore in a process of its own, as torchrun's agent has it: it outlives any rank."""

    directory: Path
    port: int = 0
    _pid: int = 0
    _until_closed: int = 0

    def __enter__(self) -> Self:
        told, tell = os.pipe()
        waited, self._until_closed = os.pipe()

        def serve() -> int:
            os.close(self._until_closed)
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(tell, f"{store.port}\n".encode())
            os.read(waited, 1)
            return 0

        self._pid = forked(serve, self.directory / "store.log")
        os.close(waited)
        os.close(tell)
        with os.fdopen(told) as answer:
            self.port = int(answer.readline())
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._until_closed)
        ended([self._pid])


@dataclass
class Ranks:
    """One start of a job's ranks, each as `torchrun` would start it."""

    directory: Path
    world: int
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[int], None] = lambda rank: None
    """Called in each rank before it starts."""

    def train(self, *arguments: object) -> list[int]:
        """Run `trainer-worker` on each rank, in the directory; exit codes by rank."""
        return self.run(lambda _rank: command.main([str(argument) for argument in arguments]))

    def run(self, work: Callable[[int], int]) -> list[int]:
        """Run something on each rank."""
        with Store(self.directory) as store:
            pids = [
                forked(self._rank(rank, store, work), self.directory / f"rank-{rank}.log") for rank in range(self.world)
            ]
            return ended(pids)

    def logs(self) -> list[str]:
        """What each rank has written, in all starts."""
        return [(self.directory / f"rank-{rank}.log").read_text() for rank in range(self.world)]

    def _rank(self, rank: int, store: Store, work: Callable[[int], int]) -> Callable[[], int]:
        def start() -> int:
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "GLOO_SOCKET_IFNAME": "lo",
                **self.environment,
            }
            os.close(store._until_closed)
            os.chdir(self.directory)
            self.prepare(rank)
            return work(rank)

        return start


def computed(work: Callable[[], Any], directory: Path) -> Any:
    """What a function returns in a process of its own: tensors and what `torch.save` takes."""
    path = directory / "computed.pt"

    def start() -> int:
        torch.save(work(), path)
        return 0

    assert ended([forked(start, directory / "computed.log")]) == [0], (directory / "computed.log").read_text()
    return torch.load(path)
