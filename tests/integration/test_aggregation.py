"""Aggregators as processes: the same parameters to the bit as with a dedicated one, through moves, stops and copies."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from services._jobs.aggregation_frames import PushHeader, RangePlace
from services._runtime.child_process import AnsweringChild
from services._runtime.service.interpreter import isolated_command
from services.aggregator.hosted_job import JobSpec
from services.trainer.worker.push_pull import _Link
from tests.support.aggregation import KEYS, Ranks, by_torch, run_ranks, sha256, spec
from tests.support.deadline import until

START_S = 240.0
"""torch takes seconds to import, more on a busy machine."""
STEPS, MOVES_AT, STOP_AT = 200, (20, 50, 80, 110, 160), 130
"""Both begin while two of three ranks may have pushed the step."""
STOPPED_S = 2.0
CUTS = (0, 100, 1000, 1001, 1500)
"""Four ranges; the third has one value."""


class Aggregator:
    """One process, and the commands to it."""

    def __init__(self) -> None:
        command = isolated_command("services.aggregator.process", str(os.getpid()), "127.0.0.1:0", str(1 << 28))
        self._child = AnsweringChild(command)
        self.pid = self._child.process.pid
        self.address = ""

    def wait_until_ready(self) -> None:
        self.address = self._child.ask(within_s=START_S)["address"]

    def ask(self, command: str, **fields: Any) -> Any:
        return self._child.ask(json.dumps({"command": command, **fields}), START_S)

    def host(self, job: JobSpec) -> None:
        keys = {"worker_key": KEYS.worker.hex(), "aggregator_key": KEYS.aggregator.hex()}
        assert self.ask("host", job=job.job, ranks=job.ranks, optimizer=job.optimizer.model_dump(), **keys) == {}

    def close(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._child.close(60.0)

    @property
    def exit_code(self) -> int | None:
        return self._child.process.returncode


@contextmanager
def aggregators(count: int) -> Iterator[list[Aggregator]]:
    started = [Aggregator() for _ in range(count)]
    try:
        for each in started:
            each.wait_until_ready()
        yield started
    finally:
        for each in started:
            each.close()


def placed(job: JobSpec, owners: list[Aggregator]) -> list[RangePlace]:
    """The job's ranges in turn at these, which host it."""
    for owner in owners:
        owner.host(job)
    places = []
    for index, (first, last) in enumerate(pairwise(CUTS)):
        owner = owners[index % len(owners)]
        assert owner.ask("add", job=job.job, range=index, values=last - first, version=1) == {}
        places.append(RangePlace(first, last, 1, owner.address))
    return places


class DoublingLink(_Link):
    """Sends some pushes twice, and some again steps later: what the answer to the first copy has made late."""

    copies = 0

    def __init__(self, address: str, identity: tuple[str, int, bytes], within_s: float) -> None:
        self._earlier: list[tuple[PushHeader, bytes]] = []
        self._drawn = random.Random(f"{address} {identity[1]}")
        super().__init__(address, identity, within_s)

    def push(self, header: PushHeader, values: memoryview) -> None:
        if self._earlier and self._drawn.random() < 0.2:
            late, content = self._drawn.choice(self._earlier)
            super().push(late, memoryview(content))
            DoublingLink.copies += 1
        super().push(header, values)
        if self._drawn.random() < 0.3:
            super().push(header, values)
            DoublingLink.copies += 1
        self._earlier = [*self._earlier[-5:], (header, bytes(values))]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def move(job: JobSpec, index: int, version: int, source: Aggregator, target: Aggregator) -> None:
    values = CUTS[index + 1] - CUTS[index]
    fields = {"job": job.job, "range": index, "version": version}
    assert await asyncio.to_thread(target.ask, "add", values=values, moving=True, **fields) == {}
    assert await asyncio.to_thread(source.ask, "move", address=target.address, **fields) == {}


async def stop_during(aggregator: Aggregator, ranks: Ranks, step: int) -> None:
    """Stopped for two seconds, in which no rank can take the step."""
    os.kill(aggregator.pid, signal.SIGSTOP)
    await until(lambda: is_stopped(aggregator.pid), what="the aggregator is stopped")
    ranks.gates[step].set()
    since_s = time.monotonic()
    await until(lambda: time.monotonic() - since_s > STOPPED_S)
    assert ranks.finished == [step - 1] * len(ranks.finished)
    os.kill(aggregator.pid, signal.SIGCONT)


async def with_faults(job: JobSpec, owners: list[Aggregator]) -> list[str]:
    """Hashes of the ranks' parameters after moves between push and pull, and a stop."""
    at = [index % len(owners) for index in range(len(CUTS) - 1)]
    versions = [1] * len(at)
    with Ranks(job, placed(job, owners), STEPS, (*MOVES_AT, STOP_AT)) as ranks:
        for turn, step in enumerate(sorted(ranks.gates)):
            await until(partial(ranks.all_finished, step - 1), what=f"step {step - 1}")
            if step == STOP_AT:
                await stop_during(owners[1], ranks, step)
                continue
            index = turn % len(at)
            versions[index] += 1
            await move(job, index, versions[index], owners[at[index]], owners[1 - at[index]])
            at[index] = 1 - at[index]
            ranks.gates[step].set()
        results = await asyncio.to_thread(ranks.results)
        for worker in ranks.workers:
            assert [place.version for place in worker.places] == versions
    assert sum(versions) == len(at) + len(MOVES_AT)
    return [sha256(each) for each in results]


@pytest.mark.host  # a quarter of a minute of a processor, most of it to import torch three times
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_moves_a_stop_and_copies_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    dedicated, shared = spec("dedicated", ranks=3), spec("shared", ranks=3)
    with aggregators(2) as owners:
        alone = await asyncio.to_thread(run_ranks, dedicated, placed(dedicated, owners[:1]), STEPS)
        monkeypatch.setattr("services.trainer.worker.push_pull._Link", DoublingLink)
        results = await with_faults(shared, owners)
        loads = [load["job"] for load in owners[0].ask("loads")["loads"]]

    assert [owner.exit_code for owner in owners] == [0, 0]
    assert DoublingLink.copies > STEPS
    assert loads == ["dedicated", "shared"]
    assert {*results, *map(sha256, alone)} == {sha256(by_torch(shared, CUTS[-1], STEPS))}
