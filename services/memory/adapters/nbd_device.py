"""The kernel's NBD client: connections become block devices /dev/nbdN by generic netlink.

Sources: include/uapi/linux/nbd-netlink.h, include/uapi/linux/genetlink.h. The kernel keeps the connection: it outlives
the process that made it. Each carries the identifier of who made it, by which it is found after a crash (since Linux
5.14, in sysfs).
"""

from __future__ import annotations

import errno
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.netlink.attributes import MalformedError, attribute, attributes, nested, number, text, u32
from services._host.netlink.messages import Request
from services._host.netlink.socket import NetlinkSocket
from services.memory.adapters.nbd_client import NbdConnection

NETLINK_GENERIC: Final = 16
MOST_DEVICES: Final = 4096
LOGICAL_BLOCK_BYTES: Final = 512
"""As of the disk on the mirror's other side: a mirror's blocks must not grow when it is built below a device in use."""
TIMEOUT_S: Final = 5
"""For the answer to one request; after it the device fails, and the mirror above it uses the disk."""
_FAMILIES, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_CONNECT, _DISCONNECT = 1, 2
_INDEX, _SIZE, _BLOCK, _TIMEOUT, _SERVER_FLAGS, _SOCKETS, _IDENTIFIER = 1, 2, 3, 4, 5, 7, 10
_SOCKET_ITEM, _SOCKET_FD = 1, 1
_HEADER: Final = struct.Struct("=BBxx")
"""Command and version (``struct genlmsghdr``)."""
_U64: Final = struct.Struct("=Q")
_SYS_BLOCK: Final = Path("/sys/block")


class NbdDeviceError(Exception):
    """The kernel has no NBD, or refuses."""


class NbdDevices:
    """The NBD devices of this host; needs CAP_SYS_ADMIN."""

    def __init__(self) -> None:
        """Find the kernel's module.

        Raises:
            NbdDeviceError: it is not loaded.
            OSError: the socket failed.
        """
        self._netlink = NetlinkSocket(protocol=NETLINK_GENERIC, receive_bytes=1 << 20)
        payload = _HEADER.pack(_GET_FAMILY, 1) + text(_FAMILY_NAME, "nbd")
        [answer] = self._netlink.ask([Request(_FAMILIES, 0, payload)])
        if answer is None:
            self._netlink.close()
            raise NbdDeviceError("the kernel's NBD client is not there: modprobe nbd")
        family = attributes(answer, _HEADER.size).get(_FAMILY_ID)
        if family is None:
            raise MalformedError("a family without its number")
        self._family = number(family)

    def close(self) -> None:
        """Close the socket to the kernel; devices stay."""
        self._netlink.close()

    def connect(self, connection: NbdConnection, identifier: str) -> str:
        """Make a block device of a connection, whose socket can be closed here afterwards; returns its path.

        Args:
            connection: after its handshake.
            identifier: whose it is; `connected` finds the device by it.

        Raises:
            NbdDeviceError: the kernel refuses; in words.
        """
        for index in range(MOST_DEVICES):
            if not is_connected(index) and self._connect(index, connection, identifier):
                return f"/dev/nbd{index}"
        raise NbdDeviceError(f"all of {MOST_DEVICES} NBD devices are connected")

    def _connect(self, index: int, connection: NbdConnection, identifier: str) -> bool:
        """False: another process was faster."""
        payload = b"".join(
            (
                _HEADER.pack(_CONNECT, 1),
                u32(_INDEX, index),
                attribute(_SIZE, _U64.pack(connection.size_bytes)),
                attribute(_BLOCK, _U64.pack(LOGICAL_BLOCK_BYTES)),
                attribute(_TIMEOUT, _U64.pack(TIMEOUT_S)),
                attribute(_SERVER_FLAGS, _U64.pack(connection.flags)),
                nested(_SOCKETS, nested(_SOCKET_ITEM, u32(_SOCKET_FD, connection.socket.fileno()))),
                text(_IDENTIFIER, identifier),
            )
        )
        return self._write(payload, f"/dev/nbd{index} cannot be connected", {errno.EBUSY, errno.EEXIST})

    def disconnect(self, index: int) -> None:
        """End the connection of /dev/nbd<index>; requests under way fail. One that is not connected is left alone.

        Raises:
            NbdDeviceError: the kernel refuses.
        """
        if is_connected(index):
            payload = _HEADER.pack(_DISCONNECT, 1) + u32(_INDEX, index)
            self._write(payload, f"/dev/nbd{index} cannot be disconnected", {errno.EINVAL, errno.ENOENT})

    def _write(self, payload: bytes, what: str, expected: set[int]) -> bool:
        """False: refused with an expected error."""
        ack = self._netlink.write_one(Request(self._family, 0, payload))
        if ack.errno and ack.errno not in expected:
            raise NbdDeviceError(f"{what}: {ack.reason or errno.errorcode.get(ack.errno, ack.errno)}")
        return not ack.errno


def connected(prefix: str) -> dict[int, str]:
    """Devices whose identifier begins like this, by index."""
    found = {}
    for file in _SYS_BLOCK.glob("nbd*/backend"):
        with suppress(OSError):  # disconnected meanwhile
            identifier = file.read_text(encoding="utf-8").strip()
            if identifier.startswith(prefix):
                found[int(file.parent.name.removeprefix("nbd"))] = identifier
    return found


def is_connected(index: int) -> bool:
    """Whether the kernel has a connection behind /dev/nbd<index>, dead or not."""
    return (_SYS_BLOCK / f"nbd{index}" / "pid").exists()
