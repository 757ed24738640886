"""The warm parent: ``python -m services.collector.emulator.warm_parent``. Has torch and the data, forks the workers.

A worker that imported torch by itself would spend three seconds of a whole core on it before its first step. Reads
orders from standard input and answers on standard output, a JSON object a line each; ends with its input, and kills
what runs. Its cells end with it, whatever ends it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from dataclasses import replace
from typing import Any, Final

import torch
import torch._dynamo  # its 900 modules would be imported by each worker, with the first optimizer
from torch.utils.data import TensorDataset

from schemas.jobs import TaskFeatures
from services._host.sandbox.sandbox import Cells, CellUnavailableError
from services.collector.emulator.describing import describe
from services.collector.emulator.measuring import AbandonedError, Bench, measure
from services.collector.emulator.orders import Order
from services.collector.emulator.tasks import TASKS, base_task
from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.worker import Training

EXIT_UNAVAILABLE: Final = 69
DATA_SEED: Final = 0
"""The same data in the same order for every run: a run's seed is for the parameters and dropout."""


class Library:
    """Tasks and their data, loaded once."""

    def __init__(self) -> None:
        self._tasks: dict[str, TrainingTask] = {}
        self._data: dict[str, TensorDataset] = {}

    def task(self, name: str) -> TrainingTask:
        """Import it where it was not."""
        if name not in self._tasks:
            base, factor = base_task(name)
            task: TrainingTask = importlib.import_module(TASKS[base]).TASK
            self._tasks[name] = replace(task, name=name, epochs=task.epochs * factor)
        return self._tasks[name]

    def data(self, name: str) -> TensorDataset:
        """Make it where it was not; the workers share it with us."""
        if name not in self._data:
            self._data[name] = self.task(name).build_data(DATA_SEED)
        return self._data[name]

    def training(self, order: Order) -> Training:
        """What the order's workers have in common."""
        return Training(self.task(order.task), self.data(order.task), order.batch_size, order.seed)

    def features(self, name: str) -> TaskFeatures:
        """What the advisor knows of it."""
        return describe(self.task(name), self.data(name))


def _lines() -> Any:
    """Of standard input, without reading ahead: the measurement watches it for its end."""
    unread = b""
    while said := os.read(0, 1 << 16):
        *lines, unread = (unread + said).split(b"\n")
        yield from lines


def _answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _serve(bench: Bench, library: Library) -> None:
    for line in _lines():
        asked = json.loads(line)
        if "describe" in asked:
            _answer(json.dumps({"features": library.features(asked["describe"]).model_dump(mode="json")}))
        else:
            order = Order.from_plain(asked["run"])
            training = library.training(order)
            gc.collect()
            gc.freeze()  # a worker's collector would write to, and so copy, every object of ours
            _answer(measure(bench, order, training).to_line())


def main() -> int:
    """Serve until the end of the input."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    try:
        with Cells() as cells:
            _answer(json.dumps({"swept": len(cells.swept)}))
            _serve(Bench(cells, watched=0), Library())
    except AbandonedError:
        return 0
    except CellUnavailableError as error:
        _answer(json.dumps({"unavailable": str(error)}))
        return EXIT_UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
