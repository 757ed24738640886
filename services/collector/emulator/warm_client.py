"""The other end of the warm parent's pipe: starts it, orders runs, ends it. Has no torch itself."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from schemas.jobs import TaskFeatures
from services._runtime.service.interpreter import isolated_command
from services.collector.emulator.orders import Order, Outcome
from services.collector.tool import ToolError, UnavailableError, say

_MODULE: Final = "services.collector.emulator.warm_parent"
_END_S: Final = 20.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Libraries that start threads when they are imported would lose them at the fork."""


class WarmParentError(ToolError):
    """The warm parent has ended."""

    exit_code = 70


class WarmParent:
    """A context manager; at its end nothing of it is left."""

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            UnavailableError: it cannot make cells here; the message says why.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            isolated_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            text=True,
            start_new_session=True,  # an interrupt is for us: we end it through its input
        )
        try:
            swept = self._hear().get("swept", 0)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        if swept:
            say(f"removed what {swept} killed run{'s' if swept > 1 else ''} had left")
        return self

    def features(self, task: str) -> TaskFeatures:
        """Of one task."""
        return TaskFeatures.model_validate(self._ask(json.dumps({"describe": task}))["features"])

    def run(self, order: Order) -> Outcome:
        """Make a run; takes as long as it takes."""
        return Outcome.from_plain(self._ask(order.to_line())["outcome"])

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it said last explains it
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WarmParentError(
                f"the process that trains has ended with {self._process.wait()}; start again to go on"
            )
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and with it what runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
