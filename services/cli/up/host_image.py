"""Containers without a registry: an empty image into which the host's own programs are mounted read-only.

What runs in such a container is the host's software, in control groups and namespaces of its own.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Final

import docker

IMAGE: Final = "turnbuckle-host:latest"
_SYSTEM_DIRECTORIES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")


def ensure_host_image(client: docker.APIClient, image: str = IMAGE) -> str:
    """Make the empty image unless the engine has it, and return its name.

    Raises:
        docker.errors.APIError: the engine refuses the import.
    """
    if not client.images(name=image):
        repository, _, tag = image.rpartition(":")
        client.import_image_from_data(_empty_root(), repository=repository, tag=tag)
    return image


def host_mounts(*extra: str) -> list[str]:
    """Bind mounts (``source:target:ro``) of the host's programs, this Python, and ``extra`` directories.

    Each keeps its own path. Directories below another one that is mounted anyway are left out. The environment of this
    Python (its prefix) and the installation that it came from (its base prefix) may be different places.
    """
    wanted = [*_SYSTEM_DIRECTORIES, sys.base_prefix, sys.prefix, *extra]
    existing = sorted({str(Path(path).absolute()) for path in wanted if Path(path).exists()})
    kept: list[str] = []
    for path in existing:
        if not any(path.startswith(f"{parent}/") for parent in kept):
            kept.append(path)
    return [f"{path}:{path}:ro" for path in kept]


def _empty_root() -> bytes:
    """A tar file with the directories that a process expects; mount points appear by themselves."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("root", 0o700)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            tar.addfile(directory)
    return buffer.getvalue()
