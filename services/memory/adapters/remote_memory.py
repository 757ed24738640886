"""Exports of daemons as block devices: the handshake here, everything after it in the kernel."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from services.memory.adapters.nbd_client import connect
from services.memory.adapters.nbd_device import NbdDevices, connected

CONNECT_WITHIN_S: Final = 10.0
_PROBES: Final = 32
"""At the same time: slabs of a dead host each take the kernel's whole timeout."""


class NbdRemoteMemory:
    """The kernel's NBD client."""

    def __init__(self, devices: NbdDevices) -> None:
        self._devices = devices

    def connect(self, address: str, export: str, identifier: str) -> tuple[str, int]:
        """Path and size in bytes of a block device for an export.

        Raises:
            NbdError, OSError: no such export, or no daemon.
            NbdDeviceError: the kernel refuses.
        """
        connection = connect(address, export, CONNECT_WITHIN_S)
        try:
            return self._devices.connect(connection, identifier), connection.size_bytes
        finally:
            connection.socket.close()  # the kernel has its own reference

    def connected(self, prefix: str) -> dict[int, str]:
        """Identifiers that begin like this, by the device's number."""
        return connected(prefix)

    def silent(self, identifiers: Collection[str]) -> set[str]:
        """Those that have no connection, or whose daemon does not answer a read of one page past the page cache.

        All at once: it takes the kernel's timeout of some seconds, however many are silent.
        """
        devices = {identifier: index for index, identifier in connected("").items() if identifier in identifiers}
        with ThreadPoolExecutor(_PROBES, "probe") as pool:
            answers = dict(zip(devices, pool.map(_answers, devices.values()), strict=True))
        return {identifier for identifier in identifiers if not answers.get(identifier, False)}

    def disconnect(self, index: int) -> None:
        """End a connection.

        Raises:
            NbdDeviceError: the kernel refuses.
        """
        self._devices.disconnect(index)


def _answers(index: int) -> bool:
    try:
        _read_page(f"/dev/nbd{index}")
    except OSError:
        return False
    return True


def _read_page(device: str) -> None:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as buffer:  # O_DIRECT needs aligned memory
            os.preadv(descriptor, [buffer], 0)
    finally:
        os.close(descriptor)
