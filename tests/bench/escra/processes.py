"""The processes of a run: agent, allocator with exchangeable policies, load client; they die with the runner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from services._runtime.child_process import die_with_parent
from tests.bench.machine import descendants, process_cpu_ns

_STOP_S: Final = 10.0
_LINE_BYTES: Final = 1 << 20


class ProcessError(RuntimeError):
    """One of our processes has ended, or said that it could not do what it was told; the text says what."""


class Child:
    """One of our modules as a process that takes a JSON object per line and answers so."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> Self:
        """Start ``python -m ARGUMENTS``; what it says beside its answers goes to ``log``."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TURNBUCKLE_", "NATS_"))}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                env=kept | environment,
                limit=_LINE_BYTES,
                start_new_session=True,  # ctrl-C reaches the runner alone, which ends everything in order
                preexec_fn=die_with_parent,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise `ProcessError` if it has ended."""
        if self._process.returncode is not None:
            raise ProcessError(f"{self.name} ended with {self._process.returncode}: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-5:]) or "it logged nothing"

    def tell(self, command: dict[str, Any]) -> None:
        """Write a line."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def hear(self, deadline_s: float) -> dict[str, Any]:
        """Read a line.

        Raises:
            ProcessError: there was none in time, it has ended, or the line says ``error``.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(deadline_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ProcessError(f"{self.name} did not answer within {deadline_s:g} s") from None
        if not line:
            await self._process.wait()
            self.check()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessError(f"{self.name}: {answer['error']}")
        return answer

    def cpu_ns(self) -> int:
        """CPU time so far, with the processes that it has started (an agent: its watchdog)."""
        self.check()
        total = 0
        for pid in (self.pid, *descendants(self.pid)):
            with suppress(OSError):
                total += process_cpu_ns(pid)
        return total

    async def stop(self) -> None:
        """End it in order; by force after 10 s."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()  # not before: the allocator would tell itself to end, too
