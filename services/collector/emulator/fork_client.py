"""Client of the fork server: starts it, requests runs, stops it. Does not import torch."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any, Final, Self

from schemas.jobs import TaskFeatures
from services._runtime.child_process import AnsweringChild
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.tool_events import say
from services._runtime.service.interpreter import isolated_command
from services.collector.emulator.run_request import RunOutcome, RunRequest

_MODULE: Final = "services.collector.emulator.fork_server"
_END_S: Final = 20.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Libraries that start threads when they are imported would lose them at the fork."""


class ForkServerError(CommandError):
    """The fork server has exited."""

    exit_code = 70


class ForkServer:
    """The fork server as a context manager; stopped at its end."""

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            UnavailableError: it cannot create sandboxes here; the message gives the reason.
        """
        self._child = AnsweringChild(isolated_command(_MODULE), {**os.environ, **_ONE_THREAD})
        try:
            swept = self._request().get("swept", 0)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        if swept:
            say(f"removed what {swept} killed run{'s' if swept > 1 else ''} had left")
        return self

    def features(self, task: str) -> TaskFeatures:
        """Of one task."""
        return TaskFeatures.model_validate(self._request(json.dumps({"describe": task}))["features"])

    def run(self, request: RunRequest) -> RunOutcome:
        """Make a run; blocks until its end."""
        return RunOutcome.from_plain(self._request(request.to_line())["outcome"])

    def _request(self, line: str | None = None) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._child.ask(line)
        except EOFError as ended:
            raise ForkServerError(f"the process that trains {ended}; start again to go on") from ended
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server and running workers."""
        self._child.close(_END_S)
