"""Ask a service's process for its health."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 while nobody listens, or answers within a minute."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Answers:
    """What a health port answers."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while nobody listens."""
        return await asyncio.to_thread(ask, self._port, path)

    async def until(self, path: str, status: int, containing: str = "", within_s: float = 90.0) -> str:
        """Ask until the answer has this status and text."""
        found, body = 0, ""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found, body = await self.get(path)
                    if found == status and containing in body:
                        return body
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{path} is {found} {body[:2_000]}, not {status} with {containing!r}") from None
