"""Devices of device mapper, by dmsetup(8), each with a UUID by which it is known: others of its name are not touched.

Without udev's help: dmsetup makes the nodes in /dev/mapper, and no rule opens devices that hold pages of memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.memory.adapters.programs import run

UUID_PREFIX: Final = "TURNBUCKLE-"
"""As LVM- and CRYPT- say whose a device is; the kernel keeps UUIDs unique."""
_OPTIONS: Final = ("--noudevsync", "--noudevrules")
_SEPARATOR: Final = "/"
"""No name of a device has it."""


def path_of(name: str) -> str:
    """The device's node."""
    return f"/dev/mapper/{name}"


def uuid_of(name: str) -> str:
    """By which the kernel finds the device that was made here under this name."""
    return UUID_PREFIX + name


class DeviceMapper:
    """The devices of this host; needs CAP_SYS_ADMIN. All raise ProgramError with dmsetup's words."""

    def create(self, name: str, table: str) -> None:
        """Make a device and its node; refused where there is one of this name, whosever it is."""
        run(["dmsetup", "create", name, "--uuid", uuid_of(name), *_OPTIONS], table)
        run(["dmsetup", "mknodes", name])  # `create` itself leaves it to udev, also where none runs

    def reload(self, name: str, table: str) -> None:
        """Exchange the table of a device in use.

        By one system call, which suspends, exchanges and resumes: between separate ones a program would have to be
        started, and could wait for a page that is on the suspended device.
        """
        run(["dmsetup", "load", "--uuid", uuid_of(name)], table)
        run(["dmsetup", "resume", "--uuid", uuid_of(name), *_OPTIONS])

    def remove(self, name: str) -> None:
        """Remove a device that is not in use; one that is not there, or of others, is left alone."""
        if name in self.names(name):
            run(["dmsetup", "remove", "--retry", *_OPTIONS, "--uuid", uuid_of(name)])
            Path(path_of(name)).unlink(missing_ok=True)  # it would lead to the next device of this number

    def mirrors(self) -> dict[str, str]:
        """The status lines of all devices of this host that are RAID, by name."""
        lines = run(["dmsetup", "status", "--target", "raid"]).splitlines()
        return {name: status.strip() for name, colon, status in (line.partition(":") for line in lines) if colon}

    def names(self, prefix: str) -> list[str]:
        """Our devices whose name begins like this."""
        return [name for name, uuid in _listed(prefix) if uuid == uuid_of(name)]

    def foreign(self, prefix: str) -> list[str]:
        """Devices of others whose name begins like this."""
        return [name for name, uuid in _listed(prefix) if uuid != uuid_of(name)]


def _listed(prefix: str) -> list[tuple[str, str]]:
    """Names and UUIDs."""
    command = ["dmsetup", "info", "--columns", "--noheadings", "--separator", _SEPARATOR, "-o", "name,uuid"]
    lines = [line.strip().partition(_SEPARATOR) for line in run(command).splitlines()]
    return sorted((name, uuid) for name, separator, uuid in lines if separator and name.startswith(prefix))
