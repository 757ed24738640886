"""The bell's ring buffer, played by a file: a page of positions taken, one of positions given."""

import mmap
import os
import struct

import pytest

from services._host.bpf.throttle_ring import ThrottleRing


def test_silence_is_as_if_all_had_been_read() -> None:
    descriptor = os.memfd_create("ring")
    os.ftruncate(descriptor, 3 * mmap.PAGESIZE)
    os.pwrite(descriptor, struct.pack("=QQ", 0, 77), 0)
    os.pwrite(descriptor, struct.pack("=QQ", 48, 99), mmap.PAGESIZE)
    bell = ThrottleRing(descriptor)
    assert bell.fileno() == descriptor

    bell.drain()

    assert struct.unpack("=QQ", os.pread(descriptor, 16, 0)) == (48, 77)
    assert struct.unpack("=QQ", os.pread(descriptor, 16, mmap.PAGESIZE)) == (48, 99)
    bell.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_cannot_be_mapped_is_closed() -> None:
    descriptor = os.eventfd(0)
    with pytest.raises(OSError, match="No such device"):
        ThrottleRing(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
