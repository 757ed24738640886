"""Debian packages that are unpacked beside the system instead of installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


class PackageError(Exception):
    """A package cannot be had; the message says what would help."""


def find_package(names: Sequence[str], cache: Path) -> str:
    """The first of `names` that apt knows, or what it depends on if it is an empty (meta) package.

    With a package of that family in the cache, apt is not asked: no network, and the same kernel every time.

    Raises:
        PackageError: apt knows none of them.
    """
    for name in names:
        family = re.compile(re.escape(name).replace(r"\-amd64", r"(-?[0-9][0-9A-Za-z.+~]*|\.[0-9A-Za-z.+~]+)?-amd64"))
        if cached := [entry for entry in cache.glob("*") if family.fullmatch(entry.name)]:
            return max(cached, key=lambda entry: entry.stat().st_mtime).name
    for name in names:
        shown = _output("apt-cache", "show", "--no-all-versions", name)
        if not shown:
            continue
        depends = re.search(rf"^Depends: ({re.escape(name.split('-')[0])}-[^ ,]+)", shown, re.MULTILINE)
        return depends[1] if depends else name
    raise PackageError(f"apt knows no package {' or '.join(names)}: apt-get update")


def unpacked(package: str, cache: Path, members: Sequence[str]) -> Path:
    """The directory with some of the package's files, fetched once.

    Raises:
        PackageError: it could not be fetched or unpacked.
    """
    target = cache / package
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        fetched = subprocess.run(
            ["apt-get", "download", "-qq", package], cwd=directory, capture_output=True, text=True, check=False
        )
        archives = list(Path(directory).glob("*.deb"))
        if fetched.returncode or len(archives) != 1:
            raise PackageError(f"apt-get download {package}: {fetched.stderr.strip()}; apt-get update may help")
        files = Path(directory, "files")
        files.mkdir()
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archives[0])], stdout=subprocess.PIPE) as archive:
            tar = ["tar", "--extract", "--directory", str(files), "--no-same-owner", "--wildcards", *members]
            extracted = subprocess.run(tar, stdin=archive.stdout, capture_output=True, text=True, check=False)
        if extracted.returncode or archive.returncode:
            raise PackageError(f"cannot unpack {package}: {extracted.stderr.strip()}")
        try:
            os.rename(files, target)  # noqa: PTH104 - atomic: another run may fetch the same
        except OSError:
            if not target.is_dir():
                raise
    return target


def with_module_index(directory: Path) -> None:
    """Make modules.dep and its like, which the package's own script makes on installation, unless they are there.

    Args:
        directory: of a kernel's modules, named as its release.

    Raises:
        PackageError: depmod failed.
    """
    if (directory / "modules.dep.bin").exists():
        return
    # In a copy of the tree's names, so that nobody ever sees half an index.
    with tempfile.TemporaryDirectory(dir=directory.parent) as base:
        copy = Path(base, "lib/modules", directory.name)
        copy.mkdir(parents=True)
        for entry in directory.iterdir():
            (copy / entry.name).symlink_to(entry)
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        depmod = shutil.which("depmod", path=path) or "depmod"
        made = subprocess.run([depmod, "-b", base, directory.name], capture_output=True, text=True, check=False)
        if made.returncode or not (copy / "modules.dep.bin").exists():
            raise PackageError(f"depmod {directory.name}: {made.stderr.strip()[-1000:]}")
        # Last the one that the check above looks for.
        for file in sorted(copy.glob("modules.*"), key=lambda file: file.name == "modules.dep.bin"):
            if not file.is_symlink():
                file.replace(directory / file.name)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
