"""What a worker is started with, by each form: its limits, its environment, and how the others reach it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import Any, cast

import pytest

from services._host.docker_containers import ContainerSpec, ContainersUnavailableError
from services._runtime.command.errors import UnavailableError
from services.trainer.commands import starters
from services.trainer.commands.container_starter import ContainerStarter
from services.trainer.commands.starters import STORE, WORKER, Launch, ProcessStarter, SandboxStarter, threads
from services.trainer.core.worker_place import WorkerLimits

LIMITS = WorkerLimits(2.5, 1 << 30)
LAUNCH = Launch("worker-3", WORKER, ("plan.json", "--name", "worker-3"), 3)


class FakeContainers:
    """Keeps what is asked for."""

    def __init__(self) -> None:
        self.specs: list[ContainerSpec] = []

    async def start(self, spec: ContainerSpec) -> Any:
        self.specs.append(spec)
        if spec.image == "none":
            raise ContainersUnavailableError("the Docker Engine has no image none")
        return None


def starter(made: FakeContainers, image: str = "trainer:1") -> ContainerStarter:
    return ContainerStarter(cast("Any", made), LIMITS, image, ("/here:/here",), "/here")


async def test_a_container_gets_its_limits_and_nothing_of_the_commands_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    made = FakeContainers()
    await starter(made).start(LAUNCH)
    await starter(made).start(Launch("store", STORE, ("127.0.0.1",)))

    worker, store = made.specs
    assert (worker.cpu_cores, worker.memory_bytes) == (2.5, 1 << 30)
    assert dict(worker.environment) == {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "2", "RANK": "3"}
    assert worker.command == ("python3", "-P", "-m", WORKER, "plan.json", "--name", "worker-3")
    assert (worker.binds, worker.working_directory) == (("/here:/here",), "/here")
    assert (store.cpu_cores, store.memory_bytes) == (None, None)
    assert "RANK" not in store.environment


async def test_what_the_engine_refuses_is_said() -> None:
    with pytest.raises(UnavailableError, match="no image none"):
        await starter(FakeContainers(), "none").start(LAUNCH)


def test_a_worker_has_no_more_threads_than_cores() -> None:
    assert threads(WorkerLimits(0.5, 1)) == threads(None) == {"OMP_NUM_THREADS": "1"}
    assert threads(WorkerLimits(4.0, 1)) == {"OMP_NUM_THREADS": "4"}


async def test_a_process_has_the_users_environment_and_is_paid_until_its_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "RANK"
    code = f"import os, sys; print(*(os.environ[n] for n in {names}), flush=True); sys.stdin.read()"
    monkeypatch.setattr(starters, "isolated_command", lambda *_: [sys.executable, "-S", "-c", code])
    before_ns = time.monotonic_ns()

    program = await ProcessStarter().start(LAUNCH)

    async with asyncio.timeout(60):
        assert await program.stdout.readline() == b"eth7 1 3\n"
        assert program.address == "127.0.0.1"
        program.stdin.close()
        ended = await program.wait()
    assert ended.code == 0
    assert before_ns <= program.started_ns < ended.time_ns <= time.monotonic_ns()
    program.send(signal.SIGTERM)  # has ended: no error


async def test_a_signal_to_a_process_that_is_just_ending_leaves_its_exit_code_to_asyncio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Popen.send_signal` waits for a process first, without blocking; asyncio takes 255 for what was reaped so."""
    monkeypatch.setattr(
        starters, "isolated_command", lambda *_: [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    )
    program = await ProcessStarter().start(LAUNCH)
    reaped: list[str] = []
    popen = program.process._transport.get_extra_info("subprocess")  # type: ignore[attr-defined]
    monkeypatch.setattr(popen, "poll", lambda: reaped.append("by send_signal"))

    program.send(signal.SIGUSR1)

    async with asyncio.timeout(60):
        ended = await program.wait()
    assert (ended.code, reaped) == (-signal.SIGUSR1, [])


async def test_a_program_that_cannot_be_executed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starters, "isolated_command", lambda *_: ["/nowhere/python"])
    with pytest.raises(UnavailableError, match="/nowhere/python cannot be started: No such file"):
        await ProcessStarter().start(LAUNCH)


class SlowSandboxes:
    """Takes its time to make a sandbox."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.made: list[str] = []

    def create(self, name: str, *_bounds: object) -> Any:
        self.may_go_on.wait(60)
        self.made.append(name)


async def test_a_sandbox_that_is_being_made_is_waited_for_where_the_start_is_cancelled() -> None:
    """Who removes all of them next would not know of it."""
    slow = SlowSandboxes()
    starting = asyncio.ensure_future(SandboxStarter(cast("Any", slow), LIMITS).start(LAUNCH))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    slow.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert slow.made == ["worker-3"]
