"""A model's layers, measured: ``python -m services.collector.layers.command``, for `turnbuckle layers`.

Standard output has one JSON object a line: ``progress`` (measurements done, total), ``row`` (a class of layers), and
``result`` with the path that the `LayerProfile` was written to, and with the profile where it is neither written nor
published; or ``error``. Exit codes: 0; 2 a wrong command line; 65 the model cannot be measured; 69 no torch, no such
GPU, no sandboxes here, or with --publish no bus (a file was written all the same); 78 the file cannot be written; 130
interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Generator
from pathlib import Path

from schemas.layers import LayerProfile
from services._jobs.malloc_tunables import restart_with_tunables
from services._jobs.user_module import UserCodeError, output_on_stderr
from services._runtime.atomic_file import write_atomically
from services._runtime.command.errors import BadFileError, UnavailableError
from services._runtime.command.tool_events import emit, emit_error, say
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services.collector.layers.block_times import Repetitions
from services.collector.layers.options import Place, parse
from services.collector.layers.publishing import publish_profile
from services.collector.layers.quota import LEAST_BLOCK_S, under_quota
from services.collector.tool import BadDataError, run_tool


def profile_of(given: argparse.Namespace, begin: Callable[[], None]) -> LayerProfile:
    """Load the user's model, call ``begin``, and measure; progress becomes events.

    Raises:
        UnavailableError: torch is not installed, or there is no such GPU.
        BadDataError: the model cannot be measured.
        UsageError: no input is given.
    """
    try:
        from services._jobs.layer_chain import UnusableModelError  # noqa: PLC0415 - with the next one
        from services.collector.layers import loaded_model  # noqa: PLC0415 - says what is missing
    except ImportError as error:
        raise UnavailableError(package_missing(error.name or "torch", "collector")) from error
    quota = given.device.cpu_cores is not None
    repetitions = Repetitions(least_block_s=LEAST_BLOCK_S) if quota else Repetitions()
    try:
        with output_on_stderr():
            loaded = loaded_model.load_model(given)
        begin()
        return _followed(loaded.measure(given.batch_up_to, repetitions))
    except (UserCodeError, UnusableModelError) as error:
        raise BadDataError(str(error)) from error


def _followed(steps: Generator[tuple[int, int], None, LayerProfile]) -> LayerProfile:
    while True:
        with output_on_stderr():  # layers are the user's code
            try:
                done, total = next(steps)
            except StopIteration as end:
                profile: LayerProfile = end.value
                return profile
        emit("progress", done=done, total=total)


def _report(given: argparse.Namespace, profile: LayerProfile) -> int:
    """Write the profile or print it, and what it says in short."""
    last = profile.microbatches - 1
    for layer in profile.classes:
        emit(
            "row",
            layer=layer.name,
            layers=layer.count,
            parameters=layer.parameters,
            samples=last + 1,
            forward_ms=layer.forward_us[last] / 1e3,
            backward_ms=layer.backward_us[last] / 1e3,
            saved_mib=layer.saved_bytes[last] / (1 << 20),
        )
    if profile.microbatches < given.batch_up_to:
        say(f"a micro-batch of {profile.microbatches + 1} samples does not fit: smaller ones were measured")
    if profile.refused:
        say(f"warning: no engine can train this model: {profile.refused}")
    if given.out is not None:
        try:
            write_atomically(given.out, profile.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise BadFileError(f"{given.out} cannot be written: {error.strerror}") from error
    if given.publish:
        asyncio.run(publish_profile(profile))
    if given.out is None and not given.publish:
        emit("result", profile=profile.model_dump(mode="json"), published=False)
    else:
        written = "" if given.out is None else str(given.out)
        emit("result", kind=profile.kind, microbatches=profile.microbatches, written=written, published=given.publish)
    return ExitCode.OK


def work() -> int:
    """The whole tool."""
    given = parse(sys.argv[1:])
    out: Path | None = given.out
    if out is not None and not out.absolute().parent.is_dir():  # said before minutes have been spent
        raise BadFileError(f"{out} cannot be written: there is no directory {out.absolute().parent}")
    place: Place = given.device
    try:
        if place.cpu_cores is None:
            return _report(given, profile_of(given, lambda: None))
        return under_quota(place.cpu_cores, lambda begin: _report(given, profile_of(given, begin)))
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        return emit_error("interrupted: nothing was written", ExitCode.INTERRUPTED)


def main() -> None:
    """Run the tool."""
    run_tool("layers", work)


if __name__ == "__main__":
    restart_with_tunables()  # a rank's memory and times are those under its settings of malloc
    main()
