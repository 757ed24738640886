"""The programs of kernel/ on a stock Debian kernel with control groups of version 2, in a machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.guest_pytest import figures, python
from tests.lab.vm.machine import CHECKOUT

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1_000)]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Built here, from this machine's types: in the guest is another kernel."""
    made = subprocess.run(["make", "-C", "kernel"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if "kernel: needs" in made.stderr or "kernel: no " in made.stderr:
        pytest.skip(made.stderr.strip().splitlines()[0])
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="module")
def guest(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """With two processors: programs count on each, and records of both have to find their order."""
    two = Guest(guest.image, tmp_path_factory.mktemp("two"), cores=2)
    yield two
    two.close()


def run(guest: Guest, capsys: pytest.CaptureFixture[str], *command: str) -> None:
    ended = guest.run([python(), *command], within_s=900)
    with capsys.disabled():
        for line in figures(ended):
            print(f"\n  {line}", end="")  # noqa: T201
    assert ended.exit_code == 0, ended.output[-4000:]


@pytest.mark.machine
@pytest.mark.parametrize("part", ["periods", "memory", "table", "throttles", "refusals"])
def test_in_the_machine(part: str, guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """What each part shows is written at the head of tests/lab/vm/guest_kernel_PART.py."""
    run(guest, capsys, "-S", "-m", f"tests.lab.vm.guest_kernel_{part}")


@pytest.mark.parametrize("part", ["kernel", "namespace", "agent"])
def test_who_wrote_a_quota_is_known(part: str, guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    """See tests/lab/vm/guest_quota_writers.py; it needs the agent's own packages."""
    run(guest, capsys, "-m", "tests.lab.vm.guest_quota_writers", part)
