"""Reserves by application, in one file that the agent and its watchdog share (`services.agent.ports.ReserveStore`).

Two halves, of which the later one that is whole holds: a process killed while writing leaves the old content. This
module knows the standard library only, for the watchdog's sake.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from services._runtime.file_lock import locked_briefly
from services.agent.state_files import as_json, parse_json

_HALF_BYTES: Final = 1 << 16
"""Room for a thousand applications."""

Amounts = tuple[int, int]
"""(given, used) in bytes, added up."""


class _Content(NamedTuple):
    """Content of one half."""

    serial: int
    """0: neither half holds."""
    amounts: dict[str, Amounts]
    container_max_bytes: dict[str, int]
    """Greatest limit of a container, by application; absent: none, or not known."""


_NOTHING: Final = _Content(0, {}, {})


class ReserveFile:
    """Reserves, and up to which limit a container may be granted memory out of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._halves = (b"", b"")
        self._found = _NOTHING
        """What stands in these halves: ten times a second they are the same as before."""

    def read(self) -> dict[str, Amounts]:
        """All reserves."""
        return self._read().amounts

    def read_container_max(self) -> dict[str, int]:
        """Greatest limit of a container, bytes, of the applications that have one."""
        return self._read().container_max_bytes

    def _read(self) -> _Content:
        """Needs no lock: one half is never written while the other one holds."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return _NOTHING
        try:
            return self._load(descriptor)
        finally:
            os.close(descriptor)

    def change(self, app: str, rule: Callable[[Amounts], Amounts]) -> tuple[Amounts, Amounts] | None:
        """Replace one application's amounts by rule(amounts); returns (before, after).

        None: the file is locked by the other process, or cannot be written. Nothing has changed then.
        """
        changed: list[tuple[Amounts, Amounts]] = []

        def replace(found: _Content) -> _Content:
            before = found.amounts.get(app, (0, 0))
            after = rule(before)
            changed.append((before, after))
            return found if after == before else found._replace(amounts=found.amounts | {app: after})

        return changed[0] if self._rewrite(replace) else None

    def set_container_max(self, app: str, most_bytes: int | None) -> bool:
        """Store the greatest limit of a container; None: there is none. False: the file cannot be locked now."""

        def replace(found: _Content) -> _Content:
            if found.container_max_bytes.get(app) == most_bytes:
                return found
            others = {name: most for name, most in found.container_max_bytes.items() if name != app}
            return found._replace(container_max_bytes=others if most_bytes is None else others | {app: most_bytes})

        return self._rewrite(replace)

    def _rewrite(self, rule: Callable[[_Content], _Content]) -> bool:
        with locked_briefly(self._path) as descriptor:
            if descriptor is None:
                return False
            found = self._load(descriptor)
            wanted = rule(found)
            if wanted is found:
                return True
            text = as_json(
                {
                    "serial": found.serial + 1,
                    "reserves": wanted.amounts,
                    "container_max_bytes": wanted.container_max_bytes,
                }
            )
            checked = b"%08x %s\n" % (zlib.crc32(text), text)
            try:
                if len(checked) > _HALF_BYTES:
                    return False
                os.pwrite(descriptor, checked, (found.serial + 1) % 2 * _HALF_BYTES)
            except OSError:
                return False
            return True

    def _load(self, descriptor: int) -> _Content:
        """Content of the half that holds."""
        halves = _read_half(descriptor, 0), _read_half(descriptor, 1)
        if halves != self._halves:
            found = _NOTHING
            for line in halves:
                checksum, _, text = line.partition(b" ")
                content = parse_json(text) if checksum == b"%08x" % zlib.crc32(text) else None
                serial = content.get("serial") if content is not None else None
                if content is not None and isinstance(serial, int) and serial > found.serial:
                    found = _Content(
                        serial,
                        _valid_amounts(content.get("reserves")),
                        _valid_sizes(content.get("container_max_bytes")),
                    )
            self._halves, self._found = halves, found
        return self._found


def _read_half(descriptor: int, half: int) -> bytes:
    try:
        return os.pread(descriptor, _HALF_BYTES, half * _HALF_BYTES).partition(b"\n")[0]
    except OSError:
        return b""


def _valid_amounts(found: Any) -> dict[str, Amounts]:
    if not isinstance(found, dict):
        return {}
    return {
        app: (pair[0], pair[1])
        for app, pair in found.items()
        if isinstance(pair, list) and len(pair) == 2 and all(type(amount) is int and amount >= 0 for amount in pair)
    }


def take_out(amounts: Amounts, wanted_bytes: int) -> Amounts:
    """Amounts after up to so much was spent."""
    given, used = amounts
    return given, used + max(min(wanted_bytes, given - used), 0)


def _valid_sizes(found: Any) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    return {app: size for app, size in found.items() if type(size) is int and size >= 0}
