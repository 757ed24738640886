"""Sentences about limits that were modified externally, with the writer where it is known."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from services.agent.ports import QuotaWriter

MODIFIED: Final = "modified externally"
_PATH_CHARACTERS: Final = 240
"""Of a control group in a sentence, its end: that of a container in a pod has 200."""
_PLAIN: Final = re.compile(r"[\w.:/@+=\[\]\\-]+")
"""Commands and units that need no quotes. A process chooses its command's name: none may pass for more than a name."""


class Change(NamedTuple):
    """Of one limit."""

    what: str
    """From what to what."""
    outcome: str
    """What was done about it."""

    def __str__(self) -> str:
        """A clause."""
        return f"{self.what}, {self.outcome}"


def sentence(quota: Change | None, memory: Change | None, writer: QuotaWriter | None) -> str:
    """What changed, and by which process; empty: nothing did.

    Args:
        quota: of the CPU quota.
        memory: of the memory limit; its writer is not known.
        writer: of the quota; None: not known.
    """
    if quota is None:
        return f"{MODIFIED}: {memory}" if memory is not None else ""
    if memory is None:
        return f"{MODIFIED} {_by(writer)}: {quota}"
    return f"{MODIFIED}: {quota.what} {_by(writer)}, {quota.outcome}; {memory}"


def _by(writer: QuotaWriter | None) -> str:
    if writer is None:
        return "by an unknown process"
    cgroup = writer.cgroup
    if len(cgroup) > _PATH_CHARACTERS:
        cgroup = f"...{cgroup[-_PATH_CHARACTERS:]}"
    return f"by {_named(writer.comm)} (pid {writer.pid}, {_named(cgroup)})"


def _named(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
