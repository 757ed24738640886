"""The real allocator with its policy exchanged while it runs: ``python -m tests.bench.escra.peer_allocator``.

One JSON object per line on standard input, one answer per line on standard output; logs go to standard error.

    {"policy": "captain-0.1", "profile": "/path.json"}     -> {"ok": true, "policy": "captain-0.1", "switch_ms": 1.2}
    {"policy": "escra:kappa=0.5"}                          -> {"ok": true, ...}      ours may start without a profile
    {"policy": null}                                       -> every application's own policy, as the product
    anything else                                          -> {"ok": false, "error": "..."}

A policy holds from the next step on for all applications; all estimates start anew, from the profile. Limits
stay as they are until the first decision. The process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from services._runtime.service.app import Runtime, main
from services.allocator import service
from services.allocator.service import Allocator
from services.allocator.settings import AllocatorSettings
from tests.bench.escra import profile as profiles
from tests.bench.escra.peers.exchange import NO_PROFILE, ExchangedAllocation
from tests.bench.escra.policies import PolicySpec, parse

_LINE_BYTES = 1 << 16


class PeerAllocator(Allocator):
    """`Allocator` that takes commands."""

    _allocation: ExchangedAllocation

    def __init__(self, runtime: Runtime[AllocatorSettings]) -> None:
        # The one name that is exchanged: what the service makes its allocation from.
        vars(service)["AllocationCycle"] = ExchangedAllocation
        super().__init__(runtime)

    async def start(self) -> None:
        """As the product, and listen."""
        await super().start()
        self._runtime.spawn(self._follow_commands(), name="commands")

    async def _follow_commands(self) -> None:
        lines = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            print(json.dumps(self.obey(line)), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # who gave the commands is gone

    def obey(self, line: bytes) -> dict[str, Any]:
        """Carry a command out; the answer."""
        begin_s = time.perf_counter()
        try:
            spec, profile = understand(line)
        except (ValueError, OSError) as error:
            return {"ok": False, "error": str(error)}
        self._allocation.choose(spec, profile)
        name = None if spec is None else spec.name
        self._log.info("policy", policy=name)
        return {"ok": True, "policy": name, "switch_ms": round((time.perf_counter() - begin_s) * 1e3, 3)}


def understand(line: bytes) -> tuple[PolicySpec | None, profiles.Profile]:
    """A command's policy and profile.

    Raises:
        ValueError: it is no command, or names no policy, or a peer without a profile.
        OSError: the profile cannot be read.
    """
    command = json.loads(line)
    if not isinstance(command, dict) or "policy" not in command or command.keys() - {"policy", "profile"}:
        raise ValueError('a command is {"policy": NAME, "profile": PATH}')
    if command["policy"] is None:
        return None, NO_PROFILE
    spec = parse(command["policy"])
    path = command.get("profile")
    if spec.needs_profile and path is None:
        raise ValueError(f"{spec.name} starts from a profile: name one")
    return spec, NO_PROFILE if path is None else profiles.read(Path(path))


if __name__ == "__main__":
    main(PeerAllocator)
