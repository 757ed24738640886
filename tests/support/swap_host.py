"""A host for the mapper that is made of dictionaries: devices of device mapper, swap areas, NBD, and kill -9."""

from __future__ import annotations

from collections.abc import Collection

from services.memory.adapters.device_mapper import path_of
from services.memory.adapters.programs import ProgramError
from services.memory.mapper import Host

DISK = "/dev/vdb"


class KilledError(BaseException):
    """The process is gone: whatever it tries after this does not happen, either."""


class RefusedError(ProgramError):
    """As the kernel says no."""


class SwapHost:
    """What the kernel has, and after how many further acts the process that asks it is killed."""

    def __init__(self, disk_bytes: int) -> None:
        self.disk_bytes = disk_bytes
        self.found_content = ""
        self.disk_refusal = ""
        self.others: set[str] = set()
        """Names of devices that other programs have made."""
        self.stuck: set[str] = set()
        """Devices whose table cannot be exchanged."""
        self.tables: dict[str, str] = {}
        self.swapping: dict[str, int] = {}
        self.nbd: dict[int, str] = {}
        self.dead_nbd: set[int] = set()
        self.failed_disks: set[str] = set()
        """Mirrors whose disk has failed a write."""
        self.mirrors_notice = True
        """Whether there was a request since the connection has ended."""
        self.synchronized: set[str] = set()
        """Mirrors whose remote half has everything."""
        self.zeroed: set[str] = set()
        self.export_bytes = 0
        self.acts_left: int | None = None
        self.ran: list[list[str]] = []
        """Programs that a command has run."""
        self.pages: dict[str, int] = {}
        """In and out of a device so far."""
        self.as_host = Host(
            devices=self,
            swap=self,
            remote=self,
            disk=self,
            wait=self.wait,
            count_pages=lambda path: self.pages.get(path.rpartition("/")[2], 0),
        )

    def act(self) -> None:
        """Something happens, or the process is killed before it."""
        if self.acts_left is not None:
            if self.acts_left <= 0:
                raise KilledError
            self.acts_left -= 1

    # device mapper
    def create(self, name: str, table: str) -> None:
        self.act()
        if name in self.tables or name in self.others:
            raise RefusedError(f"{name} is there")
        self._check(table)
        self.tables[name] = table

    def reload(self, name: str, table: str) -> None:
        self.act()
        if name not in self.tables or name in self.stuck:
            raise RefusedError(f"{name} is not there")
        self._check(table)
        if " raid " in table:
            metadata = [word.rpartition("/")[2] for word in table.split() if "-meta" in word]
            assert set(metadata) <= self.zeroed, "the kernel would take what is there for this mirror's own metadata"
        self.zeroed -= set(table.split())
        self.synchronized.discard(name)
        self.tables[name] = table

    def _check(self, table: str) -> None:
        for word in table.split():
            if word.startswith("/dev/mapper/") and word.rpartition("/")[2] not in self.tables:
                raise RefusedError(f"{word} is not there")
            if word.startswith("/dev/nbd") and int(word.removeprefix("/dev/nbd")) not in self.nbd:
                raise RefusedError(f"{word} is not connected")

    def remove(self, name: str) -> None:
        self.act()
        if name not in self.tables:
            return
        used = [other for other, table in self.tables.items() if path_of(name) in table.split()]
        if used or path_of(name) in self.swapping:
            raise RefusedError(f"{name} is in use: {used}")
        del self.tables[name]
        self.zeroed.discard(name)

    def mirrors(self) -> dict[str, str]:
        return {name: self._status(name, table) for name, table in self.tables.items() if " raid " in table}

    def _status(self, name: str, table: str) -> str:
        dead = int(next(word for word in table.split() if "/nbd" in word).removeprefix("/dev/nbd")) in self.dead_nbd
        letter = "D" if dead and self.mirrors_notice else "A" if name in self.synchronized else "a"
        disk = "D" if name in self.failed_disks else "A"
        return f"0 8192 raid raid1 2 {letter}{disk} 8192/8192 idle 0 0 -"

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.tables if name.startswith(prefix))

    def foreign(self, prefix: str) -> list[str]:
        return sorted(name for name in self.others if name.startswith(prefix))

    # swap areas
    def make(self, device: str) -> None:
        self.act()
        assert device.rpartition("/")[2] in self.tables

    def on(self, device: str, priority: int) -> None:
        self.act()
        self.swapping[device] = priority

    def off(self, device: str) -> None:
        self.act()
        self.swapping.pop(device, None)

    # remote memory
    def connect(self, address: str, export: str, identifier: str) -> tuple[str, int]:
        self.act()
        if export == "wrong":
            raise RefusedError(f"{address} has no such export")
        index = next(number for number in range(1_000) if number not in self.nbd)
        self.nbd[index] = identifier
        self.dead_nbd.discard(index)
        return f"/dev/nbd{index}", self.export_bytes

    def connected(self, prefix: str) -> dict[int, str]:
        return {index: identifier for index, identifier in self.nbd.items() if identifier.startswith(prefix)}

    def silent(self, identifiers: Collection[str]) -> set[str]:
        return set(identifiers) - {each for index, each in self.nbd.items() if index not in self.dead_nbd}

    def disconnect(self, index: int) -> None:
        self.act()
        if any(f"/dev/nbd{index}" in table.split() for table in self.tables.values()):
            raise AssertionError("a mirror that is in use loses its remote half")
        self.nbd.pop(index, None)

    # the disk
    def size_bytes(self, path: str) -> int:
        assert path == DISK
        return self.disk_bytes

    def refusal(self, path: str) -> str:
        assert path == DISK
        return self.disk_refusal

    def content(self, path: str) -> str:
        assert path == DISK
        return self.found_content

    def erase(self, path: str) -> None:
        self.act()
        assert path == DISK
        self.found_content = ""

    def zero(self, path: str, size_bytes: int) -> None:
        self.act()
        assert size_bytes > 0
        self.zeroed.add(path.rpartition("/")[2])

    def wait(self, seconds: float) -> None:
        assert seconds > 0
