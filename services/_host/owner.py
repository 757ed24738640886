"""Which process owns what a run has made on this host, so that what a killed one has left is found.

Its id alone does not say so: the next boot, a container and a later process have the same ids.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from services._host.boot_records import boot_id, is_hidden, start_ticks


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, distinguished from a later one with the same pid."""

    pid: int
    started_ticks: int
    boot: str
    pid_namespace: str

    def __post_init__(self) -> None:
        """Refuse what is no process: a file or a label that others may write says so.

        Raises:
            TypeError: its id or start is no whole number.
        """
        for name, value in (("pid", self.pid), ("started_ticks", self.started_ticks)):
            if type(value) is not int:
                raise TypeError(f"{name} of an owner is no whole number: {value!r:.40}")

    @classmethod
    def this_process(cls) -> Owner:
        """The calling process."""
        return cls(os.getpid(), start_ticks(os.getpid()) or 0, boot_id(), _pid_namespace())

    def is_gone(self) -> bool:
        """Whether it has surely ended.

        One that we cannot see is left alone: of another PID namespace, or of another user where /proc hides these.
        """
        if (boot := boot_id()) and self.boot != boot:
            return True
        if self.pid_namespace != _pid_namespace() or is_hidden(self.pid):
            return False
        return start_ticks(self.pid) != self.started_ticks


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
