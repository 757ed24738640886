"""`make images` and scripts/load_images.sh with programs that record how they were called: no engine, no cluster.

tests/kernel/test_loaded_images.py has a real containerd.
"""

from __future__ import annotations

import os
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
    "exec "*) INSIDE="docker exec $2 " exec "${@:3}" ;;
    "build "*) exit "${BUILD_EXIT:-0}" ;;
    *) exit 64 ;;
esac
"""
DIGEST = "sha256:" + "0123456789abcdef" * 4
LOADER = """
case "$*" in
    "get nodes "*) printf "%s\\n" $NODES; exit ;;
    *"images ls name=="*)
        echo "REF TYPE DIGEST SIZE PLATFORMS LABELS"
        case "$*" in *lost*) ;; *) echo "ref type $DIGEST 1.0 MiB - -" ;; esac
        exit ;;
esac
for each in "$@"; do
    case "$each" in *.tar) cat "$each" >>"$CALLS/loaded"; echo "$each" >>"$CALLS/archives" ;; esac
done
exit "${LOADER_EXIT:-0}"
"""


def images_of_the_chart() -> list[str]:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    images = [value["image"] for value in values.values() if isinstance(value, dict) and "image" in value]
    return [f"{image['repository']}:{image['tag']}" for image in images]


class Machine:
    """A folder of programs that stands first in PATH, and what they were called with."""

    def __init__(self, folder: Path, programs: tuple[str, ...]) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in programs:
            record = f'#!/bin/bash\n[ "$1" = exec ] || echo "${{INSIDE-}}{name} $*" >>"$CALLS/calls"\n'
            path = folder / "bin" / name
            path.write_text(record + (DOCKER if name == "docker" else LOADER))
            path.chmod(0o755)
        for name in ("awk", "bash", "cat", "dirname", "mktemp", "rm", "sed"):
            (folder / "bin" / name).symlink_to(f"/usr/bin/{name}")

    def load(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("/bin/bash", str(SCRIPT), *arguments, **variables)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder}/bin", "CALLS": str(self.folder), "TMPDIR": str(self.folder)}
        environment |= {"NODES": "kind-control-plane", "DIGEST": DIGEST} | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def builds(self) -> list[str]:
        """What each `docker build` made."""
        return [call.split(" --tag ")[1] for call in self.lines("calls") if call.startswith("docker build ")]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def loader_calls(self) -> list[str]:
        [archive] = self.lines("archives")
        calls = [call for call in self.lines("calls") if archive in call and not call.startswith("docker ")]
        return [call.replace(archive, "ARCHIVE") for call in calls]

    def names(self) -> list[str]:
        """What was given a second name, by which command."""
        return [call for call in self.lines("calls") if " images tag " in call]


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
    [loaded] = machine.lines("loaded")
    assert sorted(loaded.split()) == sorted(images_of_the_chart())
    assert all(image.endswith(f":{VERSION}") for image in images_of_the_chart())


@pytest.fixture
def path_with_make(machine: Machine) -> str:
    return f"{machine.folder}/bin:{os.environ['PATH']}"


def test_make_images_builds_the_images_of_the_chart(machine: Machine, path_with_make: str) -> None:
    done = machine.run("make", "--directory", str(ROOT), "images", PATH=path_with_make)

    assert done.returncode == 0, done.stderr
    assert sorted(machine.builds()) == sorted(f"{image} ." for image in images_of_the_chart())
    assert machine.lines("loaded") == []


@pytest.mark.parametrize(("variable", "loader"), [("KIND=1", "kind load image-archive"), ("K3S=1", "k3s ctr")])
def test_make_images_loads_what_it_built(machine: Machine, path_with_make: str, variable: str, loader: str) -> None:
    command = ("make", "--directory", str(ROOT), "images", "ARGS=agent cli", variable)
    done = machine.run(*command, PATH=path_with_make)

    assert done.returncode == 0, done.stderr
    assert machine.builds() == [f"turnbuckle-agent:{VERSION} .", f"turnbuckle-cli:{VERSION} ."]
    assert machine.lines("loaded") == [f"turnbuckle-agent:{VERSION} turnbuckle-cli:{VERSION}"]
    [call] = machine.loader_calls()
    assert call.startswith(loader)


def test_nothing_is_loaded_where_an_image_cannot_be_built(machine: Machine, path_with_make: str) -> None:
    command = ("make", "--directory", str(ROOT), "images", "KIND=1")
    done = machine.run(*command, PATH=path_with_make, BUILD_EXIT="3")

    assert done.returncode != 0
    assert len(machine.builds()) == 1
    assert machine.lines("loaded") == []


def test_bases_are_handed_to_the_build(machine: Machine, path_with_make: str) -> None:
    """As scripts/make_images_offline.sh gives them."""
    script = str(ROOT / "scripts" / "make_images.sh")
    machine.run(script, "agent", PATH=path_with_make, BASE="b:1", BUILD_BASE="c:2")

    [call] = [call for call in machine.lines("calls") if call.startswith("docker build ")]
    assert "--build-arg SERVICE=agent --build-arg BASE=b:1 --build-arg BUILD_BASE=c:2 --tag" in call


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


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("kind", "docker exec kind-control-plane ctr -n k8s.io"),
        ("k3s", "k3s ctr -n k8s.io"),
        ("containerd", "ctr -n k8s.io"),
    ],
)
@pytest.mark.parametrize(
    ("image", "stored"),
    [
        ("turnbuckle-agent:1", "docker.io/library/turnbuckle-agent"),
        ("team/agent:1", "docker.io/team/agent"),
        ("registry.example/team/agent:1", "registry.example/team/agent"),
        ("localhost:5000/agent:1", "localhost:5000/agent"),
    ],
)
def test_a_loaded_image_is_named_by_its_digest_on_the_node(
    machine: Machine, target: str, command: str, image: str, stored: str
) -> None:
    done = machine.load(target, image)

    assert done.returncode == 0, done.stderr
    assert machine.names() == [f"{command} images tag --force {stored}:1 {stored}@{DIGEST}"]
    assert yaml.safe_load(done.stdout) == [{"name": image.removesuffix(":1"), "digest": DIGEST}]
    assert "below `images:` of a kustomize overlay" in done.stderr


def test_every_node_of_kind_gets_the_name(machine: Machine) -> None:
    done = machine.load("kind", "a:1", NODES="one two")

    assert done.returncode == 0, done.stderr
    assert [call.split()[2] for call in machine.names()] == ["one", "two"]
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "image", "said"),
    [
        ({"NODES": ""}, "a:1", "kind knows no node of the cluster kind"),
        ({}, "lost:1", "docker.io/library/lost:1 is not in the node's runtime after the import"),
    ],
)
def test_without_a_digest_it_fails(machine: Machine, variables: dict[str, str], image: str, said: str) -> None:
    done = machine.load("kind", image, **variables)

    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""


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
