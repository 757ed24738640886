"""Keys of the users of the bus: NKEY seeds in files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._runtime.atomic_file import replacing
from services._runtime.bus.api import BusError
from services._runtime.bus.nats_connection import public_key
from services._runtime.command.errors import BadFileError

_SECRET_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of the secret files; None: the user that runs the command."""

    uid: int
    gid: int


class Keys:
    """The seeds in a directory: made where missing, kept where there, so that a second run changes no user."""

    def __init__(self, directory: Path, owner: Owner | None = None) -> None:
        self._directory = directory
        self._owner = owner
        self.made: list[str] = []
        """Names of users that had no seed before."""

    def public_key(self, name: str) -> str:
        """Of a user; a seed is made if there is none.

        Raises:
            BadFileError: there is one that cannot be used, or none can be written.
        """
        path = self.path(name)
        if _is_missing(path):
            self.write(path, f"{_new_seed()}\n")
            self.made.append(name)
        try:
            return public_key(str(path))
        except BusError as error:
            raise BadFileError(str(error)) from error

    def password(self, name: str) -> str:
        """A random password, kept in a file.

        Raises:
            BadFileError: it cannot be read or written.
        """
        path = self._directory / f"{name}.password"
        if _is_missing(path):
            self.write(path, f"{secrets.token_urlsafe(24)}\n")
        try:
            return path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadFileError(f"{path} cannot be read") from error

    def path(self, name: str) -> Path:
        """Where a user's seed stands."""
        return self._directory / f"{name}.nk"

    def unused(self, names: set[str]) -> list[str]:
        """Users that have a seed here, but are none of these."""
        return sorted(path.stem for path in self._directory.glob("*.nk") if path.stem not in names)

    def write(self, path: Path, text: str) -> None:
        """A secret, readable by its owner from the first moment on.

        Raises:
            BadFileError: it cannot be written.
        """
        try:
            self._directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            if self._owner is not None:
                os.chown(self._directory, self._owner.uid, self._owner.gid)
        except OSError as error:
            raise BadFileError(f"{self._directory} cannot be written to: {error.strerror}") from error
        write_secret(path, text, self._owner)


def write_secret(path: Path, text: str, owner: Owner | None = None) -> None:
    """A file readable by its owner only, from the first moment on. Its directory exists.

    Raises:
        BadFileError: it cannot be written.
    """
    try:
        with replacing(path) as draft:
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE), "w") as file:
                file.write(text)
            if owner is not None:
                os.chown(draft, owner.uid, owner.gid)
    except OSError as error:
        raise BadFileError(f"{path} cannot be written: {error.strerror}") from error


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError as error:  # the directory is another user's
        raise BadFileError(f"{path} cannot be read: {error.strerror}") from error


def _new_seed() -> str:
    try:
        import nkeys  # type: ignore[import-untyped,unused-ignore] # noqa: PLC0415 - only needed here
    except ImportError as error:
        raise BadFileError("NKEYs need the package nkeys: pip install nkeys") from error
    return str(nkeys.encode_seed(secrets.token_bytes(_SEED_BYTES), nkeys.PREFIX_BYTE_USER).decode())
