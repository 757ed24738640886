"""The command line of a rank."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._runtime.command.tool_parser import ToolParser
from services.trainer.core.batch_schedule import BatchSchedule, parse_schedule

DEVICES: Final = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Options:
    """What to train, and how long."""

    plan: Path | None
    """None: the batch is divided evenly."""
    batch: int | None
    """Samples of a step, of all ranks; with a plan the plan's counts."""
    model: str
    data: str
    loss: str
    optimizer: str
    steps: int
    seed: int
    checkpoint: Path | None
    checkpoint_every: int
    report: str
    device: str
    offload: bool
    """Of engine ministage: a GPU's parts of the state are kept in the host's memory."""
    timeout_s: int
    store: str
    """HOST:PORT of an elastic training's store; empty: torchrun has started this rank."""
    name: str
    """Of this worker in it."""
    batch_schedule: BatchSchedule | None
    """Samples of a step; None: the plan's, or `batch`."""
    aggregate: Path | None
    """Socket of `turnbuckle train`, which says where aggregators are; None: ranks sum among themselves."""


def parse(arguments: list[str]) -> Options:
    """Read the command line; ends the process where it is wrong."""
    parser = ToolParser(
        prog="turnbuckle run trainer-worker",
        description="One rank of a training job that follows a plan; torchrun starts one per device.",
        epilog="Exit codes: 0 done, or saved and stopped by SIGTERM; 2 usage; 65 plan, model, optimizer or checkpoint "
        "refused; 69 torch is missing; 75 another rank failed: started again, it goes on at the last checkpoint.",
    )
    add = parser.add_argument
    add("plan", type=_plan, metavar="PLAN.json", help="what each device computes and holds; '': the same for each rank")
    add("model", metavar="MODULE:FUNCTION", help="returns the torch.nn.Module; or file.py:function")
    add(
        "--data", required=True, metavar="MODULE:FUNCTION", help="returns a data set of pairs (input, target), by index"
    )
    add(
        "--loss",
        metavar="MODULE:FUNCTION",
        help="of (output, target): sum over samples (default: loss beside the model)",
    )
    add(
        "--optimizer",
        metavar="MODULE:FUNCTION",
        help="of a list of parameters: SGD, Adam or AdamW (default: optimizer beside the model)",
    )
    add(
        "--batch",
        type=_positive,
        default=os.environ.get("TURNBUCKLE_BATCH"),
        metavar="SAMPLES",
        help="of a step, of all ranks; counts without a plan only (default: TURNBUCKLE_BATCH)",
    )
    add("--steps", type=_positive, required=True, help="of the whole training, with those of earlier starts")
    add(
        "--seed",
        type=_natural,
        default=0,
        help="of parameters, dropout and the order of samples (default: %(default)s)",
    )
    add("--checkpoint", type=Path, metavar="DIR", help="continue there, and save there at the end and at SIGTERM")
    add(
        "--checkpoint-every",
        type=_positive,
        default=1_000,
        metavar="STEPS",
        help="save so often (default: %(default)s)",
    )
    add("--report", default="", metavar="FILE", help="times of steps, a JSON line a second; unix:PATH: datagrams")
    add("--device", choices=DEVICES, default="auto", help="auto: a GPU where torch sees one (default: %(default)s)")
    add(
        "--offload",
        action="store_true",
        help="of pipelines: a GPU's parts of parameters and optimizer state stay in the host's memory",
    )
    add("--timeout-s", type=_positive, default=600, help="for a rank that does not answer (default: %(default)s)")
    add("--store", default="", metavar="HOST:PORT", help="of an elastic training: turnbuckle train --elastic gives it")
    add("--name", default="", help="of this worker in an elastic training")
    add("--batch-schedule", type=_schedule, metavar="STEP:SAMPLES,...", help="of an elastic training")
    add(
        "--aggregate",
        type=Path,
        metavar="SOCKET",
        help="of a replicated training: turnbuckle train --aggregate gives it",
    )
    given = vars(parser.parse_args(arguments))
    if given["plan"] is None and given["batch"] is None:
        parser.error("without a plan --batch, or TURNBUCKLE_BATCH, has to say how many samples a step has")
    if given["offload"] and (given["store"] or given["aggregate"] is not None):
        kind = "elastic" if given["store"] else "replicated"
        parser.error(f"--offload is of pipelines (engine ministage), and this is a rank of a training that is {kind}")
    beside = given["model"].rpartition(":")[0]
    given["loss"] = given["loss"] or f"{beside}:loss"
    given["optimizer"] = given["optimizer"] or f"{beside}:optimizer"
    return Options(**given)


def _plan(text: str) -> Path | None:
    return Path(text) if text else None


def _schedule(text: str) -> BatchSchedule:
    try:
        return parse_schedule(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    return _at_least(1, text)


def _natural(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)
