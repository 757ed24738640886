"""The subject table: message, senders, receivers and delivery of each subject."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Final

from schemas.message import Message
from schemas.services import SERVICES
from schemas.subjects import (
    SubjectError,
    untoken,
)

CHANNELS: Final = tuple(channel for service in SERVICES for channel in service.channels)

ENDPOINTS: Final = tuple(endpoint for service in SERVICES for endpoint in service.endpoints)

_PARAMETERS: Final = {
    tuple(channel.template.text.split(".")[:2]): channel.template.parameters
    for channel in CHANNELS
    if channel.template.parameters
}
"""Ids in a subject by its first tokens behind the root, such as ``("obs", "cfs")``."""


@lru_cache(maxsize=1 << 16)
def _ids(subject: str) -> tuple[tuple[str, str | None], ...]:
    """The ids in a subject by name, None where one is not escaped well; empty: it is none of a channel that has ids."""
    kind, values = subject.split(".")[1:3], subject.split(".")[3:]
    names = _PARAMETERS.get(tuple(kind), ())
    return tuple(zip(names, map(_untoken, values), strict=True)) if len(names) == len(values) else ()


def _untoken(value: str) -> str | None:
    with suppress(SubjectError):
        return untoken(value)
    return None


def contradicted_id(subject: str, message: Message) -> str | None:
    """The first id of a subject that the message on it contradicts, or None.

    A server permits by subject: a host may only use subjects with its own name. What a message says of the host,
    application or job that it comes from counts only where the subject says the same.
    """
    for name, value in _ids(subject):
        field = getattr(message, name, None)
        if isinstance(field, str) and field != value:
            return name
    return None
