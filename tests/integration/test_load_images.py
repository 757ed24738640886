"""scripts/load_images.sh with programs that only record how they were called: no engine, no cluster."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts.generate_chart import CHART

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "load_images.sh"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DOCKER = """
case "$1 $2" in
    "image inspect") case "$3" in *absent*) exit 1 ;; esac ;;
    "save --output") echo "${@:4}" >"$3" ;;
    *) exit 64 ;;
esac
"""
LOADER = """
for each in "$@"; do
    case "$each" in *.tar) cat "$each" >>"$CALLS/loaded"; echo "$each" >>"$CALLS/archives" ;; esac
done
exit "${LOADER_EXIT:-0}"
"""


class Machine:
    """A folder of programs that stands first in PATH, and what they were called with."""

    def __init__(self, folder: Path, programs: tuple[str, ...]) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in programs:
            record = f'#!/bin/bash\necho "{name} $*" >>"$CALLS/calls"\n'
            path = folder / "bin" / name
            path.write_text(record + (DOCKER if name == "docker" else LOADER))
            path.chmod(0o755)
        for name in ("bash", "cat", "dirname", "mktemp", "rm", "sed"):
            (folder / "bin" / name).symlink_to(f"/bin/{name}")

    def load(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder}/bin", "CALLS": str(self.folder), "TMPDIR": str(self.folder)} | variables
        command = ["/bin/bash", str(SCRIPT), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def loader_calls(self) -> list[str]:
        [archive] = self.lines("archives")
        return [call.replace(archive, "ARCHIVE") for call in self.lines("calls") if not call.startswith("docker ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, ("docker", "kind", "k3s", "ctr"))


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("kind", "kind load image-archive ARCHIVE --name kind"),
        ("k3s", "k3s ctr -n k8s.io images import ARCHIVE"),
        ("containerd", "ctr -n k8s.io images import ARCHIVE"),
    ],
)
def test_what_the_engine_saved_is_given_to_the_nodes_runtime(machine: Machine, target: str, call: str) -> None:
    done = machine.load(target, "team/a:1", "team/b:2")

    assert done.returncode == 0, done.stderr
    assert machine.loader_calls() == [call]
    assert machine.lines("loaded") == ["team/a:1 team/b:2"]
    [archive] = machine.lines("archives")
    assert not Path(archive).parent.exists(), "the archive is deleted afterwards"


def test_without_names_it_is_the_images_of_the_chart(machine: Machine) -> None:
    done = machine.load("k3s")

    assert done.returncode == 0, done.stderr
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    images = [value["image"] for value in values.values() if isinstance(value, dict) and "image" in value]
    [loaded] = machine.lines("loaded")
    assert sorted(loaded.split()) == sorted(f"{image['repository']}:{image['tag']}" for image in images)
    assert {image["tag"] for image in images} == {VERSION}


def test_another_cluster_of_kind_is_named_by_a_variable(machine: Machine) -> None:
    machine.load("kind", "a:1", KIND_CLUSTER="lab")

    assert machine.loader_calls() == ["kind load image-archive ARCHIVE --name lab"]


def test_nothing_is_loaded_where_an_image_is_missing(machine: Machine) -> None:
    done = machine.load("kind", "a:1", "absent:1")

    assert done.returncode == 1
    assert "not in the Docker Engine, nothing was loaded: absent:1" in done.stderr
    assert [call for call in machine.lines("calls") if not call.startswith("docker image inspect ")] == []


def test_a_loader_that_fails_fails_the_script(machine: Machine) -> None:
    done = machine.load("containerd", "a:1", LOADER_EXIT="3")

    assert done.returncode == 3
    assert "loaded" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("podman",), ("--help",)])
def test_an_unknown_target_shows_the_usage(machine: Machine, arguments: tuple[str, ...]) -> None:
    done = machine.load(*arguments)

    assert done.returncode == 1
    assert "usage: scripts/load_images.sh kind|k3s|containerd" in done.stderr
    assert machine.lines("calls") == []


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    done = Machine(tmp_path, ("docker",)).load("kind", "a:1")

    assert done.returncode == 1
    assert "needs the command kind" in done.stderr
