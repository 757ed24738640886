"""Features of a task: ``python -m services.collector.profiler.features module:build_model --batch-size N ...``.

The function returns a `torch.nn.Module`, or a pair of one and an example input (a tensor, a tuple of arguments, a
mapping of keywords; the batch first). Standard output has one JSON object a line: ``result`` with features (a
`TaskFeatures`) and batch_size, or ``error``. Exit codes: 0; 2 a wrong command line; 65 the module cannot be used;
69 torch is not installed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from schemas.jobs import TaskFeatures
from services._jobs.user_module import UserCodeError, call, load, output_on_stderr, own_modules_hidden
from services._runtime.command.errors import UnavailableError, UsageError
from services._runtime.command.tool_events import emit
from services._runtime.command.tool_parser import ToolParser
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services.collector.tool import BadDataError, run_tool

if TYPE_CHECKING:
    from services.collector.profiler.torch_features import ModuleFeatures


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = ToolParser(
        prog="python -m services.collector.profiler.features",
        description="Read the features of a training task from its torch module, by one training step.",
    )
    add = parser.add_argument
    add("model", metavar="module:function", help="returns the module, or (module, example_input); or file.py:function")
    add("--input-shape", type=sample_shape, help="of one sample, such as 3,32,32; not needed with an example_input")
    add("--input-dtype", default="float32", help="torch's name of the elements' type, such as int64 (default: float32)")
    add("--input-high", type=int, default=2, help="whole numbers below this are drawn, such as a vocabulary's size")
    add("--task", help="name of the task; default: module and function")
    add("--batch-size", type=int, default=0, help="per worker")
    add("--optimizer", default="", help="such as Adam")
    add("--learning-rate", type=float, default=0.0, help="at the start")
    add("--epochs", type=int, default=0, help="of the whole training")
    add("--samples-per-epoch", type=int, default=0, help="over all workers")
    add("--attribute", type=_attribute, action="append", default=[], metavar="NAME=VALUE", help="a further feature")
    return parser.parse_args(arguments)


def features_of(given: argparse.Namespace) -> TaskFeatures:
    """Load the user's module and measure it.

    Raises:
        UnavailableError: torch is not installed.
        BadDataError: the module cannot be used, or an option makes no sense.
    """
    measured = _measure(given)
    work = measured.work
    try:
        return TaskFeatures(
            task=given.task or given.model,
            parameter_count=measured.parameter_count,
            frozen_parameter_count=measured.frozen_parameter_count,
            layers=measured.layers,
            input_elements=measured.input_elements,
            output_elements=measured.output_elements,
            optimizer=given.optimizer,
            learning_rate=given.learning_rate,
            epochs=given.epochs,
            samples_per_epoch=given.samples_per_epoch,
            forward_flops=measured.forward_flops,
            step_flops=work.flops if work else 0.0,
            step_bytes=work.bytes if work else 0.0,
            step_weight_bytes=work.weight_bytes if work else 0.0,
            activation_bytes=work.activation_bytes if work else 0.0,
            attributes=dict(given.attribute),
        )
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise BadDataError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error


def _measure(given: argparse.Namespace) -> ModuleFeatures:
    try:
        from services.collector.profiler import torch_features  # noqa: PLC0415 - says what is missing
    except ImportError as error:
        raise UnavailableError(package_missing(error.name or "torch", "collector")) from error
    try:
        with output_on_stderr(), own_modules_hidden():
            module, example = module_and_example(given.model)
            if example is None:
                if given.input_shape is None:
                    raise UsageError("which input? give --input-shape, or let the function return (module, example)")
                shape = torch_features.InputShape(given.input_shape, given.input_dtype, given.input_high)
                example = shape.example()
            return torch_features.measure(module, example)
    except (UserCodeError, torch_features.FeatureError) as error:
        raise BadDataError(str(error)) from error


def module_and_example(name: str) -> tuple[Any, Any]:
    """The user's module, and its example input or None.

    Raises:
        UserCodeError: it cannot be had, or is no module.
    """
    from torch import nn  # noqa: PLC0415 - seconds to import; the caller has seen that it is there

    found = load(name)
    made = found if isinstance(found, nn.Module) else call(found, name) if callable(found) else found
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise UserCodeError(f"{name} gives a {type(module).__name__}, not a torch.nn.Module")
    return module, example


def sample_shape(text: str) -> tuple[int, ...]:
    """An argparse type: sizes of one sample."""
    try:
        sizes = tuple(int(part) for part in text.replace("x", ",").split(",") if part)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write such as 3,32,32") from None
    if any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are at least 1")
    return sizes


def _attribute(text: str) -> tuple[str, float | str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def work() -> int:
    """The whole tool."""
    given = parse(sys.argv[1:])
    found = features_of(given)
    emit("result", features=found.model_dump(mode="json"), batch_size=given.batch_size)
    return ExitCode.OK


def main() -> None:
    """Run the tool."""
    run_tool("features", work)


if __name__ == "__main__":
    main()
