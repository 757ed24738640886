"""Block devices as files."""

from __future__ import annotations

import errno
import os
import stat

from services.memory.adapters.programs import ProgramError, run


class BlockDisk:
    """The block devices of this host."""

    def size_bytes(self, path: str) -> int:
        """Its size.

        Raises:
            OSError: it cannot be opened.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.lseek(descriptor, 0, os.SEEK_END)
        finally:
            os.close(descriptor)

    def refusal(self, path: str) -> str:
        """Why it cannot be used, whatever is on it; empty: it can.

        Raises:
            OSError: it cannot be opened.
        """
        if not stat.S_ISBLK(os.stat(path).st_mode):  # noqa: PTH116 - a string, as everywhere here
            return "is no block device (of a file: losetup --find --show FILE makes one)"
        try:
            # Exclusive: refused while a mount, a swap area or another block device has it or a part of it (open(2)).
            os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return "is in use: mounted, swapped to, or part of another device (lsblk, /proc/swaps)"
            raise
        return ""

    def content(self, path: str) -> str:
        """What blkid(8) finds on it: type of a file system, partition table, swap area; empty: nothing known.

        Raises:
            ProgramError: blkid is missing.
            OSError: the device cannot be opened.
        """
        self.size_bytes(path)  # blkid says nothing of a device that is not there, either
        try:
            return " ".join(run(["blkid", "--probe", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", path]).split())
        except ProgramError as error:
            if "exit code 2" in str(error):
                return ""
            raise

    def erase(self, path: str) -> None:
        """Erase what `content` may find, copies of it included, by wipefs(8); the rest of the disk stays as it is.

        Raises:
            ProgramError: the disk is in use, or cannot be written.
        """
        run(["wipefs", "--all", path])

    def zero(self, path: str, size_bytes: int) -> None:
        """Zero its beginning, on the disk itself.

        Raises:
            OSError: it cannot be written.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = 0
            while written < size_bytes:
                written += os.pwrite(descriptor, bytes(size_bytes - written), written)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
