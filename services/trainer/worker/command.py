"""One rank as a program: its command line, and what becomes its exit code."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from services._runtime.child_process import die_with_parent
from services._runtime.command.tool_events import emit_error, say
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services.trainer.worker.options import parse
from services.trainer.worker.stop_request import StopRequest


def main(arguments: list[str]) -> int:
    """Run the rank; returns its exit code. Errors of the user's own code leave it with their traceback."""
    options = parse(arguments)
    if "RANK" not in os.environ:
        say("trainer-worker is one rank of a job: start it by torchrun --no-python turnbuckle run trainer-worker ...")
        return ExitCode.USAGE
    stop = StopRequest()
    die_with_parent()  # torchrun was killed: save at the boundary and end
    try:
        from services._jobs.user_module import UserCodeError  # noqa: PLC0415 - with the others
        from services.trainer.worker.checkpoint import CheckpointError  # noqa: PLC0415 - imports torch
        from services.trainer.worker.gather import RankFailedError  # noqa: PLC0415
        from services.trainer.worker.placements import PlacementRefusedError  # noqa: PLC0415
        from services.trainer.worker.plan_file import RefusedError  # noqa: PLC0415
        from services.trainer.worker.run import run  # noqa: PLC0415

        if options.store:
            from services.trainer.worker.elastic import run_elastic as run  # noqa: PLC0415
        elif options.aggregate is not None:
            from services.trainer.worker.aggregated import run_aggregated as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        return _failed(package_missing(error.name or "torch", "trainer"), ExitCode.UNAVAILABLE)
    try:
        run(options, stop)
    except (RefusedError, UserCodeError, CheckpointError) as error:
        return _failed(str(error), ExitCode.BAD_DATA)
    except PlacementRefusedError as error:
        return _failed(str(error), error.exit_code)
    except RankFailedError as error:
        return _failed(f"another rank has failed: {error}. Started again, the job goes on", ExitCode.RESUMABLE)
    return ExitCode.OK


def end(code: int) -> None:
    """End this process without finalizing the interpreter; after a success what is registered for its end runs before.

    A thread of gloo may still give back the last collective's tensors, for which it needs the interpreter: one that is
    finalized ends such a thread, and so the process by SIGABRT. After a failure a collective may be pending for ever.
    """
    if code == ExitCode.OK:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter's own last step but that
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _failed(text: str, code: ExitCode) -> int:
    rank = os.environ["RANK"]
    say(f"error: rank {rank}: {text}")
    return emit_error(text, code, rank=int(rank))
