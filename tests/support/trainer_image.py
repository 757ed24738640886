"""An image in which ``python3`` is the tests' own, for workers of trainings as containers: no file of its own."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from services.cli.up.demo_docker import IMAGE, ensure_host_image, host_mounts

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def trainer_image(client: docker.APIClient, tag: str) -> Iterator[str]:
    """The image; removed at the end."""
    ensure_host_image(client)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    file = f"FROM {IMAGE}\nENV PATH={path} PYTHONDONTWRITEBYTECODE=1\n"
    for line in client.build(fileobj=io.BytesIO(file.encode()), tag=tag, rm=True, decode=True):
        assert "error" not in line, line["error"]
    try:
        yield tag
    finally:
        client.remove_image(tag, force=True)


def trainer_mounts() -> list[str]:
    """``SOURCE:TARGET:ro`` each: programs of this host, this Python, and all that it imports from."""
    imported = [path for path in sys.path if Path(path).is_dir()]
    return host_mounts(str(ROOT), *imported)
