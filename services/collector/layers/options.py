"""The command line of `turnbuckle layers`."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.layers import MAX_MICROBATCHES, Dtype
from services._runtime.command.tool_parser import ToolParser
from services.collector.profiler.features import sample_shape
from services.collector.tool import number_within, sandbox_cores

_SANDBOX: Final = "sandbox:"


@dataclass(frozen=True, slots=True)
class Place:
    """Where is measured."""

    kind: str
    """As the user writes it: ``cpu``, ``cuda:0``, ``sandbox:0.5``."""
    device: str
    """By torch's name."""
    cpu_cores: float | None = None
    """Of a sandbox; None: without one."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = ToolParser(
        prog="python -m services.collector.layers.command",
        description="Measure time and memory of a model's layers on one kind of device.",
        epilog="The model is a chain: an nn.Sequential, or a module whose method layers() returns a list of modules, "
        "each of which takes the last one's output. Set OMP_NUM_THREADS as the job's workers will.",
    )
    add = parser.add_argument
    add("model", metavar="module:function", help="returns the model, or (model, example_input); or file.py:function")
    add(
        "--batch-up-to",
        type=number_within(int, 1, MAX_MICROBATCHES),
        default=8,
        metavar="SAMPLES",
        help="largest micro-batch (default: 8)",
    )
    add(
        "--device",
        type=_place,
        default=_place("cpu"),
        help="cpu, cuda:N, or sandbox:CORES under that CPU quota, as root (default: cpu)",
    )
    add("--kind", help="the kind of device in the profile, as in cluster.yaml; default: the device, or the GPU's model")
    add("--data", metavar="module:function", help="returns the job's data set of pairs (input, target)")
    add("--input-shape", type=sample_shape, help="of one sample, such as 3,32,32, where there are no data")
    add("--input-dtype", default="float32", help="torch's name of the elements' type, such as int64 (default: float32)")
    add("--input-high", type=int, default=2, help="whole numbers below this are drawn, such as a vocabulary's size")
    add("--dtype", choices=[str(dtype) for dtype in Dtype], help="the model is measured in it; default: its own")
    add("--task", help="name of the task; default: module and function")
    add("--out", type=Path, metavar="FILE", help="write the profile for turnbuckle plan here; else print or publish it")
    add("--publish", action="store_true", help="publish the profile on the bus, for turnbuckle run planner")
    return parser.parse_args(arguments)


def _place(text: str) -> Place:
    if text == "cpu":
        return Place(text, text)
    if re.fullmatch(r"cuda(:\d+)?", text):
        return Place(text, text if ":" in text else "cuda:0")
    if not text.startswith(_SANDBOX):
        raise argparse.ArgumentTypeError(f"{text!r} is no device: cpu, cuda:0, or sandbox:0.5 for half a core")
    return Place(text, "cpu", sandbox_cores(text.removeprefix(_SANDBOX)))
