"""Elastic trainings of forked workers whose generations a script orders: ``elastic_cases.py DIRECTORY``.

Each case prints a JSON object a line with its name and figures, as `trainer_cases`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from services.trainer.core.batch_schedule import parse_schedule
from services.trainer.core.generations import Generation
from services.trainer.worker import command
from services.trainer.worker.checkpoint import newest
from services.trainer.worker.sampler import epoch_order
from tests.support.forked_ranks import DEADLINE_S, Store, ended, forked
from tests.support.trainer_cases import State, distance, parameters, plain
from tests.support.trainer_job import small_data, small_model
from tests.support.trainer_plans import plan_of

USER = Path(small_model.__file__).parent
SCHEDULE = "0:12,9:15"
STEPS = 30


@dataclass
class Script:
    """Workers of one training, and what is said to them."""

    directory: Path
    model: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    _pids: dict[int, int] = field(default_factory=dict)
    _orders: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.directory.mkdir()
        (self.directory / "plan.json").write_text(plan_of([12], [1], [1]).model_dump_json())
        self._stack = ExitStack()
        self._store = self._stack.enter_context(Store(self.directory))
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._stack.close()

    def start(self, *workers: int) -> None:
        """Start workers, and wait until they are ready."""
        for worker in workers:
            read, self._orders[worker] = os.pipe()
            self._pids[worker] = forked(self._work(worker, read), self.log(worker))
            os.close(read)
        for worker in workers:
            self.said(worker, "ready")

    def order(self, generation: int, members: tuple[int, ...], *others: int) -> None:
        """Tell members, and others that leave."""
        line = Generation(generation, tuple(f"worker-{member}" for member in members)).to_json() + "\n"
        for worker in (*members, *others):
            if worker in self._pids:
                os.write(self._orders[worker], line.encode())

    def at(self, gate: int) -> None:
        """Once worker 1 is in this step."""
        until_s = time.monotonic() + DEADLINE_S
        while not (self.directory / f"at-{gate}").exists():
            if time.monotonic() > until_s:
                raise TimeoutError(f"worker 1 has not come to step {gate}: {self.log(1).read_text()}")
            time.sleep(0.005)

    def open(self, gate: int) -> None:
        """Let worker 1 go on from this step."""
        (self.directory / f"gate-{gate}").touch()

    def stop(self, worker: int) -> None:
        """At its next boundary."""
        os.kill(self._pids[worker], signal.SIGTERM)

    def kill(self, worker: int) -> None:
        """At once."""
        os.kill(self._pids[worker], signal.SIGKILL)
        self.ended(worker)

    def ended(self, *workers: int) -> list[int]:
        """Exit codes, once they have ended."""
        return ended([self._pids.pop(worker) for worker in workers])

    def said(self, worker: int, event: str, **fields: object) -> dict[str, Any]:
        """The event, once it is said."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            for found in self.events(worker):
                if found["event"] == event and fields.items() <= found.items():
                    return found
            time.sleep(0.005)
        raise TimeoutError(f"worker {worker} has not said {event} {fields}: {self.log(worker).read_text()}")

    def events(self, worker: int) -> list[dict[str, Any]]:
        """All that it has said."""
        lines = self.log(worker).read_text().splitlines() if self.log(worker).exists() else []
        return [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]

    def log(self, worker: int) -> Path:
        """What it has written."""
        return self.directory / f"worker-{worker}.log"

    def state(self) -> State:
        """Of the newest checkpoint."""
        path = newest(self.directory / "saved")
        assert path is not None
        return plain(path)

    def _work(self, worker: int, orders: int) -> Callable[[], int]:
        def work() -> int:
            os.dup2(orders, 0)
            for descriptor in (orders, *self._orders.values()):
                os.close(descriptor)
            os.close(self._store._until_closed)
            os.environ |= {"RANK": str(worker), "GLOO_SOCKET_IFNAME": "lo", **self.environment}
            os.chdir(self.directory)
            return command.main(
                ["plan.json", f"{USER}/{self.model}:build", "--data", f"{USER}/small_data.py:lines", "--device", "cpu",
                 "--store", f"127.0.0.1:{self._store.port}", "--name", f"worker-{worker}", "--checkpoint", "saved",
                 *self.arguments]
            )  # fmt: skip

        return work


def alone(schedule: str, steps: int) -> State:
    """One process with torch alone on the same samples."""
    model, data, done = small_model.build(), small_data.lines(), 0
    optimizer = small_model.optimizer(list(model.parameters()))
    for step in range(steps):
        batch = parse_schedule(schedule).batch(step)
        positions = [divmod(done + index, len(data)) for index in range(batch)]
        inputs, targets = data[[int(epoch_order(len(data), 0, epoch)[index]) for epoch, index in positions]]
        optimizer.zero_grad()
        (small_model.loss(model(inputs), targets) / batch).backward()
        optimizer.step()
        done += batch
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def grown_and_shrunk(directory: Path) -> dict[str, Any]:
    """1 -> 2 -> 4 -> 2: one that was to join is killed once it was ordered to; who was first leaves."""
    arguments = ("--steps", str(STEPS), "--batch-schedule", SCHEDULE, "--checkpoint-every", "100")
    with Script(directory, "gated_model.py", arguments) as script:
        script.start(1)
        script.order(1, (1,))
        script.start(2)
        script.order(2, (1, 2))
        script.open(5)
        script.said(1, "generation", number=2)
        script.start(3, 4, 5)
        script.kill(5)
        script.order(3, (1, 2, 3, 5))
        script.open(12)
        script.said(1, "forming", number=3)
        script.order(4, (1, 2, 3, 4))
        script.said(1, "generation", number=4)
        script.order(5, (2, 4), 1, 3)
        script.open(20)
        generations = [script.said(worker, "generation", number=n) for worker, n in ((1, 1), (1, 2), (1, 4), (2, 5))]
        codes = script.ended(1, 2, 3, 4)
        return {
            "codes": codes,
            "generations": [[found["workers"], found["step"], found["kept"]] for found in generations],
            "left": [worker for worker in (1, 2, 3, 4) if script.events(worker)[-1]["event"] == "left"],
            "distance": distance(parameters(script.state()), alone(SCHEDULE, STEPS)),
            "moved": distance(alone(SCHEDULE, STEPS), alone(SCHEDULE, 1)),
        }


def stopped_as_it_joined(directory: Path) -> dict[str, Any]:
    """Right after a checkpoint, in which one member has taken part and the other has not."""
    arguments = ("--steps", "12", "--checkpoint-every", "5")
    with Script(directory, "gated_model.py", arguments) as script:
        script.start(1, 2)
        script.order(1, (1,))
        script.at(5)
        script.order(2, (1, 2))
        script.stop(2)
        script.open(5)
        codes = script.ended(1, 2)
        result = script.events(1)[-1]
        return {"codes": codes, "result": [result["event"], result["step"], result["stopped"]]}


def member_killed(directory: Path) -> dict[str, Any]:
    """In the 7th step, after a checkpoint of step 6: the other one goes on there."""
    arguments = ("--loss", f"{USER}/small_model.py:loss_that_signals", "--steps", "12", "--checkpoint-every", "3")
    environment = {"SIGNAL": "SIGKILL", "SIGNALLED_RANK": "2"}
    with Script(directory, "small_model.py", arguments, environment) as script:
        script.start(1, 2)
        script.order(1, (1, 2))
        codes = script.ended(2)
        script.start(3)
        script.order(2, (1, 3))
        generation = script.said(1, "generation", number=2)
        codes += script.ended(1, 3)
        return {
            "codes": codes,
            "generation": [generation["workers"], generation["step"], generation["kept"]],
            "distance": distance(parameters(script.state()), alone("12", 12)),
        }


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "grown and shrunk": grown_and_shrunk,
    "member killed": member_killed,
    "stopped as it joined": stopped_as_it_joined,
}


def main(directory: Path, chosen: list[str]) -> None:
    """All cases, or those that are named."""
    torch.set_num_threads(1)
    for name in chosen or CASES:
        case = CASES[name]
        place = directory / name.replace(" ", "-")
        try:
            found = case(place)
        except Exception:  # noqa: BLE001 - a case's error is its result
            logs = {path.name: path.read_text() for path in sorted(place.glob("*.log"))}
            found = {"failed": traceback.format_exc(), "logs": logs}
        sys.stdout.write(json.dumps({"case": name, **found}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
