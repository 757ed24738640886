"""The wheel of this checkout, and environments into which pip installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it is given no setting of ours, and has to succeed."""
    done = subprocess.run(command, cwd=cwd, env=plain_environment(), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain_environment() -> dict[str, str]:
    """This process' variables without settings of ours and of the interpreter."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_", "PYTHON"))
    }


def build_wheel(directory: Path) -> Path:
    """The wheel of this checkout, in a directory, by the build backend that pip calls."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory), cwd=ROOT)
    [wheel] = directory.glob("turnbuckle-*.whl")
    return wheel


def make_environment(directory: Path, wheel: Path) -> Path:
    """An environment that holds the wheel and nothing else; returns its directory for packages."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    interpreter = str(directory / "bin" / "python")
    run(*_PIP, "--python", interpreter, "install", "--no-deps", "--no-index", "--no-compile", str(wheel), cwd=directory)
    [packages] = directory.glob("lib/python*/site-packages")
    return packages


def link_dependencies(packages: Path) -> set[str]:
    """Put what pip would install beside the wheel, extras left out, into an environment; returns the names.

    Files are links to those of this environment, so that no index is needed.
    """
    [wheel] = [found for found in metadata.distributions(path=[str(packages)]) if found.name == "turnbuckle"]
    found = _with_dependencies(_wanted(wheel, ""))
    for distribution in found.values():
        for file in distribution.files or ():
            link = packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(Path(str(file.locate())).resolve())
    return set(found)


def _with_dependencies(wanted: Iterable[Requirement]) -> dict[str, metadata.Distribution]:
    """The distributions of this environment that satisfy these requirements and, in turn, their own."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found[name] = distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version), f"{requirement}, {distribution.version} is here"
        for extra in {"", *requirement.extras} - {extra for other, extra in seen if other == name}:
            seen.add((name, extra))
            waiting += _wanted(distribution, extra)
    return found


def _wanted(distribution: metadata.Distribution, extra: str) -> list[Requirement]:
    """What a distribution requires on this machine, with an extra or, if it is empty, without any."""
    requirements = [Requirement(text) for text in distribution.requires or ()]
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": extra})]
