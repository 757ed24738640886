"""Orders of an elastic training's coordinator to a worker on its standard input: a generation a line, as JSON.

Read between steps, without a thread: what was written before a step ended is known at its boundary.
"""

from __future__ import annotations

import os
import select

from services.trainer.core.generations import Generation
from services.trainer.worker.gather import RankFailedError

_CHUNK_BYTES = 1 << 16


class Orders:
    """Of one worker. The user's code finds an empty standard input."""

    def __init__(self) -> None:
        self._descriptor = os.dup(0)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        self._rest = b""
        self._known: dict[int, Generation] = {}
        self.is_closed = False
        """The coordinator is gone."""

    def newest(self, wait_s: float | None = 0.0) -> int:
        """Number of the newest generation that is known; 0: none is.

        Args:
            wait_s: for a line to come; None: however long that takes.
        """
        while not self.is_closed and select.select([self._descriptor], [], [], wait_s)[0]:
            wait_s = 0.0
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
            self.is_closed = not chunk
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                order = Generation.from_json(line)
                self._known[order.number] = order
        return max(self._known, default=0)

    def next(self, number: int) -> Generation:
        """A generation that is known."""
        return self._known[number]

    def after(self, number: int) -> Generation:
        """The newest generation, once there is one after this; blocks.

        Raises:
            RankFailedError: the coordinator is gone.
        """
        while self.newest() <= number:
            if self.is_closed:
                raise RankFailedError("turnbuckle train, which orders generations, is gone")
            self.newest(None)
        return self._known[self.newest()]
