"""The first file system of the guest: a cpio archive (Documentation/driver-api/early-userspace/buffer-format.rst)."""

from __future__ import annotations

import lzma
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

DIRECTORIES: Final = ("bin", "proc", "sys", "dev", "modules")


def write_initramfs(target: Path, init: str, busybox: Path, modules: Sequence[Path]) -> None:
    """Pack the init script, a static busybox and kernel modules (.ko, or .ko.xz which are unpacked here)."""
    entries: list[tuple[str, int, bytes]] = [(name, stat.S_IFDIR | 0o755, b"") for name in DIRECTORIES]
    entries.append(("init", stat.S_IFREG | 0o755, init.encode()))
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()))
    entries += [
        (f"modules/{module.name.removesuffix('.xz')}", stat.S_IFREG | 0o644, _module(module)) for module in modules
    ]
    target.write_bytes(b"".join(_newc(entries)))


def _module(file: Path) -> bytes:
    return lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()


def _newc(entries: Sequence[tuple[str, int, bytes]]) -> Iterator[bytes]:
    for inode, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        path = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        yield header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)
