"""Fork server: ``python -m services.collector.emulator.fork_server``. Preloads torch and the data, forks the workers.

A worker that imported torch itself would need three seconds of a whole core before its first step. Reads requests from
standard input and replies on standard output, one JSON object a line; at the end of its input it kills running workers
and exits. Its sandboxes are removed however it ends.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import sys
from dataclasses import replace
from typing import Any, Final

import torch
import torch._dynamo  # its 900 modules would be imported by each worker, with the first optimizer
from torch.utils.data import TensorDataset

from schemas.jobs import TaskFeatures
from services._jobs.sandbox.sandbox import Sandboxes, SandboxUnavailableError
from services._runtime.exit_code import ExitCode
from services.collector.emulator.measuring import AbandonedError, Bench, measure
from services.collector.emulator.run_request import RunRequest
from services.collector.emulator.tasks import TASKS, base_task
from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.worker import Training
from services.collector.profiler import torch_features


def describe(task: TrainingTask, data: TensorDataset) -> TaskFeatures:
    """What an advisor may know before a run."""
    model = task.build_model()
    optimizer = task.build_optimizer(model.parameters())
    found = torch_features.measure(model, tuple(column[: torch_features.BATCH] for column in data.tensors[:-1]))
    return TaskFeatures(
        task=task.name,
        parameter_count=found.parameter_count,
        frozen_parameter_count=found.frozen_parameter_count,
        layers=found.layers,
        input_elements=found.input_elements,
        output_elements=found.output_elements,
        optimizer=type(optimizer).__name__,
        learning_rate=optimizer.defaults["lr"],
        epochs=task.epochs,
        samples_per_epoch=len(data),
        forward_flops=found.forward_flops,
        attributes={"kind": task.kind},
    )


DATA_SEED: Final = 0
"""The same data in the same order for every run: a run's seed is for the parameters and dropout."""


class Library:
    """Tasks and their data, loaded once."""

    def __init__(self) -> None:
        self._tasks: dict[str, TrainingTask] = {}
        self._data: dict[str, TensorDataset] = {}

    def task(self, name: str) -> TrainingTask:
        """Return a task, imported once."""
        if name not in self._tasks:
            base, factor = base_task(name)
            task: TrainingTask = pkgutil.resolve_name(TASKS[base])
            self._tasks[name] = replace(task, name=name, epochs=task.epochs * factor)
        return self._tasks[name]

    def data(self, name: str) -> TensorDataset:
        """Return a task's data, made once; forked workers share its memory."""
        if name not in self._data:
            self._data[name] = self.task(name).build_data(DATA_SEED)
        return self._data[name]

    def training(self, request: RunRequest) -> Training:
        """The parameters common to a run's workers."""
        return Training(self.task(request.task), self.data(request.task), request.batch_size, request.seed)

    def features(self, name: str) -> TaskFeatures:
        """The task's features for the advisor."""
        return describe(self.task(name), self.data(name))


def _lines() -> Any:
    """Lines of standard input, without reading ahead: the measurement polls it for its end."""
    unread = b""
    while said := os.read(0, 1 << 16):
        *lines, unread = (unread + said).split(b"\n")
        yield from lines


def _answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _serve(bench: Bench, library: Library) -> None:
    for line in _lines():
        message = json.loads(line)
        if "describe" in message:
            _answer(json.dumps({"features": library.features(message["describe"]).model_dump(mode="json")}))
        else:
            request = RunRequest.from_plain(message["run"])
            training = library.training(request)
            gc.collect()
            gc.freeze()  # else a worker's garbage collection would write to, and so copy, all inherited objects
            _answer(measure(bench, request, training).to_line())


def main() -> int:
    """Serve until the end of the input."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    try:
        with Sandboxes() as sandboxes:
            _answer(json.dumps({"swept": len(sandboxes.swept)}))
            _serve(Bench(sandboxes, watched=0), Library())
    except AbandonedError:
        return 0
    except SandboxUnavailableError as error:
        _answer(json.dumps({"unavailable": str(error)}))
        return ExitCode.UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
