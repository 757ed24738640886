"""What the kernel's NBD client is asked, byte for byte, and what is made of its answers."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._host.netlink.messages import Ack, Request
from services.memory.adapters import nbd_device
from services.memory.adapters.nbd_client import NbdConnection
from services.memory.adapters.nbd_device import NbdDeviceError, NbdDevices, connected
from services.memory.core.nbd import TransmissionFlag

FAMILY = 0x1C


class FakeNetlink:
    """Answers as a test says."""

    def __init__(self) -> None:
        self.family: bytes | None = b"\1\2\0\0" + struct.pack("=HHHxx", 6, 1, FAMILY)
        self.acks: list[Ack] = []
        self.written: list[Request] = []

    def ask(self, requests: list[Request]) -> list[bytes | None]:
        # GETFAMILY, version 1; attribute 2, the name with its NUL, in 8 bytes.
        assert requests == [Request(16, 0, b"\3\1\0\0" + struct.pack("=HH", 8, 2) + b"nbd\0")]
        return [self.family]

    def write_one(self, request: Request) -> Ack:
        self.written.append(request)
        return self.acks.pop(0) if self.acks else Ack(0)

    def close(self) -> None:
        pass


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNetlink:
    fake = FakeNetlink()
    monkeypatch.setattr(nbd_device, "NetlinkSocket", lambda **_: fake)
    monkeypatch.setattr(nbd_device, "_SYS_BLOCK", tmp_path)
    return fake


@pytest.fixture
def connection() -> Iterator[NbdConnection]:
    ours, theirs = socket.socketpair()
    yield NbdConnection(ours, 1 << 20, TransmissionFlag(0x61))
    ours.close()
    theirs.close()


def test_a_device_is_made_of_a_socket(netlink: FakeNetlink, connection: NbdConnection) -> None:
    assert NbdDevices().connect(connection, "swap:0:1") == "/dev/nbd0"

    [request] = netlink.written
    # CONNECT, version 1; index, size, block size, timeout, flags; socket in two lists (0x8000: nested); identifier.
    assert request == Request(
        FAMILY,
        0,
        b"\1\1\0\0"
        + struct.pack("=HHI", 8, 1, 0)
        + struct.pack("=HHQ", 12, 2, 1 << 20)
        + struct.pack("=HHQ", 12, 3, 512)
        + struct.pack("=HHQ", 12, 4, 5)
        + struct.pack("=HHQ", 12, 5, 0x61)
        + struct.pack("=HHHHHHI", 16, 0x8007, 12, 0x8001, 8, 1, connection.socket.fileno())
        + struct.pack("=HH", 13, 10)
        + b"swap:0:1\0\0\0\0",
    )


def test_a_device_that_another_process_has_just_taken_is_passed_over(
    netlink: FakeNetlink, connection: NbdConnection, tmp_path: Path
) -> None:
    (tmp_path / "nbd0").mkdir()
    (tmp_path / "nbd0" / "pid").touch()
    netlink.acks = [Ack(errno.EBUSY)]

    assert NbdDevices().connect(connection, "swap:0:1") == "/dev/nbd2"


def test_the_kernels_words_are_passed_on(netlink: FakeNetlink, connection: NbdConnection) -> None:
    netlink.acks = [Ack(errno.EINVAL, "no size supplied"), Ack(errno.EPERM)]

    for reason in ("no size supplied", "EPERM"):
        with pytest.raises(NbdDeviceError, match=f"/dev/nbd0 cannot be connected: {reason}"):
            NbdDevices().connect(connection, "swap:0:1")


def test_devices_are_found_by_their_identifier_and_disconnected(netlink: FakeNetlink, tmp_path: Path) -> None:
    for index, identifier in enumerate(("swap:0:1", "swap2:0:1", "swap:12:3")):
        directory = tmp_path / f"nbd{index}"
        directory.mkdir()
        (directory / "backend").write_text(f"{identifier}\n")
        (directory / "pid").touch()
    (tmp_path / "nbd3").mkdir()
    netlink.acks = [Ack(0), Ack(errno.EINVAL)]

    assert connected("swap:") == {0: "swap:0:1", 2: "swap:12:3"}
    devices = NbdDevices()
    devices.disconnect(2)
    devices.disconnect(0)  # whose connection has just ended
    devices.disconnect(3)

    assert [request.payload for request in netlink.written] == [
        b"\2\1\0\0" + struct.pack("=HHI", 8, 1, index) for index in (2, 0)
    ]


def test_a_kernel_without_nbd_is_said(netlink: FakeNetlink) -> None:
    netlink.family = None
    with pytest.raises(NbdDeviceError, match="modprobe nbd"):
        NbdDevices()
