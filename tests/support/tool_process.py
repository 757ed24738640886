"""The collector's tools as processes: their events, their exit codes, and their death."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Tool:
    """A running ``python -m services.collector.<tool>``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, tool: str, *arguments: object, environment: dict[str, str] | None = None) -> Tool:
        """Start one, without the variables of the person who runs the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"services.collector.{tool}",
            *map(str, arguments),
            cwd=ROOT,
            env=kept | {"XDG_CONFIG_HOME": "/nonexistent"} | (environment or {}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def until_event(self, event: str, within_s: float = 60.0, **fields: object) -> dict[str, Any]:
        """Read events up to one of a kind."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while line := await self.process.stdout.readline():
                self.events.append(json.loads(line))
                found = self.events[-1]
                if found["event"] == event and all(found.get(name) == value for name, value in fields.items()):
                    return found
        raise AssertionError(f"no {event}: {self.events[-5:]}")

    async def end(self, within_s: float = 60.0) -> tuple[int | None, str]:
        """Wait for the end; exit code and standard error."""
        out, err = await asyncio.wait_for(self.process.communicate(), within_s)
        self.events += [json.loads(line) for line in out.decode().splitlines()]
        return self.process.returncode, err.decode()

    async def kill(self) -> None:
        """Kill -9, now."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


async def run_tool(
    tool: str, *arguments: object, environment: dict[str, str] | None = None, within_s: float = 60.0
) -> tuple[int | None, Tool]:
    """Run one to its end."""
    started = await Tool.start(tool, *arguments, environment=environment)
    try:
        code, _ = await started.end(within_s)
    except BaseException:
        await started.kill()
        raise
    return code, started
