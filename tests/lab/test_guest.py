"""The machines that the other tests of mark vm run in: jobs, and what becomes of one that hangs."""

from __future__ import annotations

import pytest

from tests.lab.vm.guest import Guest
from tests.lab.vm.machine import MachineError
from tests.support.cgroup_lab import wait_until

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_000)]


@pytest.fixture(params=["guest", "quick_guest"])
def either(request: pytest.FixtureRequest) -> Guest:
    """The emulated machine, and User-Mode Linux."""
    guest: Guest = request.getfixturevalue(request.param)
    return guest


def test_a_job_returns_its_output_and_exit_code(either: Guest) -> None:
    ended = either.run(
        ["sh", "-c", "uname -r; echo to stderr >&2; echo left >$JOB_DIRECTORY/file; exit 3"], within_s=300
    )
    assert (ended.exit_code, ended.output) == (3, f"{either.image.release}\nto stderr\n")
    assert (ended.directory / "file").read_text() == "left\n"


def test_orphans_of_a_job_are_buried(either: Guest) -> None:
    """A test that kills a daemon looks whether it is gone: nobody else would wait for it."""
    script = "sh -c 'sleep 0.2 & echo $! >/run/orphan'; while kill -0 $(cat /run/orphan); do sleep 0.1; done"
    assert either.run(["sh", "-c", script], within_s=300).exit_code == 0


def test_who_hangs_loses_the_machine_and_the_next_one_gets_another(either: Guest) -> None:
    job = either.machine().start(["sh", "-c", "echo alive; exec sleep 1000"])
    boots = either.boots
    wait_until(lambda: job.output() == "alive\n", what="a job that hangs")
    with pytest.raises(MachineError, match=r"(?s)runs on after \d+ s: .*output:\nalive\n"):
        job.wait(2)
    assert either.run(["true"], within_s=300).exit_code == 0
    assert either.boots == boots + 1


def test_a_machine_that_crashes_is_told_and_replaced(either: Guest) -> None:
    with pytest.raises(MachineError, match="the machine went away"):
        either.run(["sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60"], within_s=300)
    assert either.run(["true"], within_s=300).exit_code == 0
