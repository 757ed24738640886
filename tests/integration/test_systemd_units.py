"""The systemd units: one per service, told by the service when it serves, and none in the way of a watchdog process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from services._runtime.service.interpreter import installed_services

FOLDER = Path(__file__).parents[2] / "compose" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
BIN = "/opt/turnbuckle/bin"
PYTHON = f"{BIN}/python"


def values(unit: Path, key: str) -> list[str]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_each_service_and_the_fast_path_has_one() -> None:
    commands = {value for unit in UNITS for value in values(unit, "ExecStart")}

    assert commands == {f"{BIN}/turnbuckle run {name}" for name in installed_services()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_what_all_units_keep(unit: Path) -> None:
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "TimeoutStartSec") == ["infinity"], "until NATS is there"
    assert values(unit, "RestartPreventExitStatus") == ["78"]
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "NoNewPrivileges") == ["yes"]
    assert int(values(unit, "TimeoutStopSec")[0]) > 10
    assert int(values(unit, "WatchdogSec")[0]) >= 10, "a beat each second, and a busy machine"
    assert values(unit, "MemoryMax")
    for key in ("ExecStartPre", "ExecStopPost"):
        for command in values(unit, key):
            assert command.startswith(f"{PYTHON} -I -m ")
            assert find_spec(command.split()[3]) is not None


def test_the_agents_watchdog_and_state_outlive_it() -> None:
    """Only the agent is stopped: the watchdog ends waits until the next agent is there, out of what lies in /run."""
    unit = FOLDER / "turnbuckle-agent.service"

    assert values(unit, "KillMode") == ["process"]
    assert values(unit, "OOMPolicy") == ["continue"]
    assert values(unit, "RuntimeDirectory") == ["turnbuckle"]
    assert values(unit, "ProtectControlGroups") == ["no"]
    for other in ("agent", "reconciler", "fast-path"):
        assert values(FOLDER / f"turnbuckle-{other}.service", "RuntimeDirectoryPreserve") == ["yes"], other


def test_nothing_of_a_fast_path_stays_in_the_tables() -> None:
    unit = FOLDER / "turnbuckle-fast-path.service"

    flush = [f"{PYTHON} -I -m services.fastpath.flush"]
    assert values(unit, "ExecStartPre") == values(unit, "ExecStopPost") == flush


def test_users_of_their_own_may_enter_the_folder_that_the_page_makes() -> None:
    """A dynamic user reads the certificate authority there; the keys in it are readable for root only."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert re.findall(r"install -d -m (\d+) /etc/turnbuckle", page) == ["755"]
    assert set(re.findall(r"install -m (\d+) nats/secrets/", page)) == {"600"}


@pytest.mark.host  # systemd-analyze
def test_systemd_knows_every_key(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    copies = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, copies, strict=True):
        copy.write_text(
            unit.read_text(encoding="utf-8")
            .replace(f"{BIN}/turnbuckle", sys.executable)
            .replace(PYTHON, sys.executable),
            encoding="utf-8",
        )

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, copies)], check=False, capture_output=True, text=True
    )

    ours = [line for line in done.stderr.splitlines() if "turnbuckle" in line]
    assert (done.returncode, ours) == (0, [])
