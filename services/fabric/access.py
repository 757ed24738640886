"""Access permissions of FRR's socket directory, and with it of bfdd's control socket.

bfdd's control socket is open to every local user (srwxrwxrwx) and authenticates no one (bfdd/control.c): each user that
reaches it can list, add and shut BFD sessions, and FRR withdraws a route with each. So its directory must be closed.
"""

from __future__ import annotations

import grp
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from services.fabric.frr_text import SOCKETS_ACCESS, VTY_GROUP, access_text

SOCKET: Final = "bfdd.sock"
_GROUPS: Final = frozenset({VTY_GROUP, "frr", "root"})
"""Their members may configure FRR anyway."""


def access_of(path: Path) -> str:
    """Mode, owner and group of a directory, as `access_text` writes it; numbers where there is no name.

    Raises:
        OSError: it does not exist, or cannot be read.
    """
    found = path.stat()
    owner, group = str(found.st_uid), str(found.st_gid)
    with suppress(KeyError):
        owner = pwd.getpwuid(found.st_uid).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(found.st_gid).gr_name
    return access_text(found.st_mode, owner, group)


class Exposure(NamedTuple):
    """A directory of FRR's sockets that others may enter."""

    found: str
    """Mode, owner and group."""
    who: str
    remedy: str
    """A command."""


def exposure_of(directory: Path) -> Exposure | None:
    """Users that reach bfdd's socket in a directory and should not; None: it is closed.

    Raises:
        OSError: the directory or the socket does not exist, or cannot be read.
    """
    access = access_of(directory)
    mode, socket_mode = directory.stat().st_mode, (directory / SOCKET).stat().st_mode
    group = access.rpartition(":")[2]
    who = ""
    if mode & stat.S_IXOTH:
        who = "every local user"
    elif mode & stat.S_IXGRP and group not in _GROUPS and socket_mode & (stat.S_IWOTH | stat.S_IWGRP):
        who = f"every member of the group {group}"
    if not who:
        return None
    wanted, _, names = SOCKETS_ACCESS.partition(" ")
    return Exposure(access, who, f"chown {names} {directory} && chmod {wanted} {directory}")
