"""A measurement in a sandbox of its own, which has a CPU quota from the moment that all is loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final, NoReturn

from services._jobs.sandbox.sandbox import Sandbox, Sandboxes, SandboxUnavailableError
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.tool_events import say
from services._runtime.exit_code import ExitCode
from services.collector.tool import run_tool

PERIOD_US: Final = 10_000
"""CFS period of the quota, a tenth of the kernel's default: a processor of that speed has no pauses."""
LEAST_BLOCK_S: Final = 10 * PERIOD_US / 1e6
"""Of calls that are timed together: the quota is met to a tenth of it."""


class MeasurementKilledError(CommandError):
    """The process in the sandbox was killed."""

    exit_code = ExitCode.INTERNAL


def under_quota(cpu_cores: float, work: Callable[[Callable[[], None]], int]) -> int:
    """Do work in a child inside a sandbox; returns its exit code. It reports its errors itself.

    Args:
        cpu_cores: the quota.
        work: calls what it is given once it has loaded everything: then the quota begins.

    Raises:
        UnavailableError: sandboxes cannot be created here.
        MeasurementKilledError: the child was killed.
    """
    try:
        with Sandboxes() as sandboxes:
            if sandboxes.swept:
                say(f"removed what {len(sandboxes.swept)} killed run(s) had left")
            return _in_child(sandboxes.create("layers"), cpu_cores, work)
    except SandboxUnavailableError as error:
        raise UnavailableError(str(error)) from error


def _in_child(sandbox: Sandbox, cpu_cores: float, work: Callable[[Callable[[], None]], int]) -> int:
    child = os.fork()  # before torch is loaded, whose threads a child would not have
    if child == 0:
        _be_child(sandbox, lambda: work(lambda: sandbox.limit_cpu(cpu_cores, PERIOD_US)))
    try:
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        sandbox.kill()
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise MeasurementKilledError(f"the process in the sandbox was killed by {signal.Signals(-code).name}")
    return code


def _be_child(sandbox: Sandbox, work: Callable[[], int]) -> NoReturn:
    """Never returns into the parent's stack, which would remove the sandbox."""
    code: object = ExitCode.INTERNAL
    try:
        os.setsid()  # a terminal's Ctrl-C is the parent's, which ends this one
        sandbox.enter()
        run_tool("layers", work)
    except SystemExit as ended:
        code = ended.code
    finally:
        os._exit(code if isinstance(code, int) else ExitCode.INTERNAL)
