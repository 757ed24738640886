"""The wheel, installed by pip into an environment of its own and used outside of the checkout: its files are in it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sysconfig
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services._runtime.bus.embedded_server import EmbeddedNats
from tests.support.installation import ROOT, build_wheel, make_environment, run

PACKAGES = ("services", "schemas")
NOT_SHIPPED = ("services/console/ui/",)
"""Sources of what is shipped built."""

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
"""An environment of its own, and some twenty processes in it: a quarter of a minute of a processor."""


@dataclass(frozen=True)
class Installed:
    wheel: Path
    environment: Path
    elsewhere: Path
    """A directory that is no checkout."""

    def __call__(self, program: str, *arguments: str) -> str:
        return run(self.environment / "bin" / program, *arguments, cwd=self.elsewhere)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(made)
    packages = make_environment(made / "environment", wheel)
    # What it depends on comes from here. A directory named so is searched, its own .pth files are not followed: the
    # checkout, which is installed here by one of these, stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    elsewhere = made / "elsewhere"
    elsewhere.mkdir()
    return Installed(wheel, made / "environment", elsewhere)


def shipped_files() -> Iterator[str]:
    """All that stands in the packages' directories beside what running them leaves there."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            left = any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(ROOT).parts)
            if path.is_file() and not left and not name.startswith(NOT_SHIPPED):
                yield name


def test_holds_every_file_of_the_packages_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    [script] = [name for name in held if ".data/" in name]
    assert script.endswith(".data/scripts/turnbuckle")
    assert held - {script} == set(shipped_files())
    assert {"services/py.typed", "services/console/static/index.html"} <= held


def test_runs_what_was_installed(installed: Installed) -> None:
    code = "import services, schemas; print(services.__path__[0], schemas.__path__[0])"
    for path in installed("python", "-c", code).split():
        assert Path(path).is_relative_to(installed.environment)
    assert installed("turnbuckle", "--version").strip() in installed.wheel.name


@pytest.mark.parametrize("search", [{}, {"PYTHONPATH": "."}], ids=["no PYTHONPATH", "PYTHONPATH=."])
@pytest.mark.parametrize("packages", [("schemas",), PACKAGES], ids=["schemas", "both"])
def test_a_directory_with_our_names_decides_nothing(
    installed: Installed, tmp_path: Path, search: dict[str, str], packages: tuple[str, ...]
) -> None:
    """Neither for a service nor for any other command, whatever its owner has put there."""
    (tmp_path / "services").mkdir()
    for package in packages:
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the package of the directory')")
    turnbuckle = installed.environment / "bin" / "turnbuckle"

    def said(*words: str) -> str:
        return run("env", *(f"{name}={value}" for name, value in search.items()), turnbuckle, *words, cwd=tmp_path)

    assert said("--version").strip() in installed.wheel.name
    assert said("run", "allocator", "--version").startswith("turnbuckle-allocator ")
    assert "gcp-vertex" in said("prices", "list")


def test_commands_find_their_data(installed: Installed) -> None:
    assert "gcp-vertex" in installed("turnbuckle", "prices", "list")
    assert "em-highcpu-16" in installed("turnbuckle", "emulate", "--plan")
    code = "from services.advisor.model_lineages import read_datasets as r; print(len(r(['shipped']).records))"
    assert int(installed("python", "-c", code)) > 500


@pytest.fixture
def nats() -> Iterator[EmbeddedNats]:
    made = EmbeddedNats()
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return bytes(reply.read())


def test_the_console_serves_its_files(installed: Installed, nats: EmbeddedNats) -> None:
    static = ROOT / "services" / "console" / "static"
    files = [path for path in static.rglob("*") if path.suffix in {".js", ".css", ".svg", ".html"}]
    program = installed.environment / "bin" / "turnbuckle"
    console = subprocess.Popen(
        [program, "console", "--port", "0", "--json", "--server", nats.url],
        cwd=installed.elsewhere,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert console.stdout is not None
        url = json.loads(console.stdout.readline())["url"].partition("#")[0]
        assert len(files) > 4
        for path in files:
            name = "" if path.name == "index.html" else path.relative_to(static).as_posix()
            assert fetched(url + name) == path.read_bytes()
    finally:
        console.send_signal(signal.SIGINT)
        console.communicate(timeout=60)
    assert console.returncode == 0
