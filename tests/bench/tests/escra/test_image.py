"""What decides whether the bench's image has to be made again, and from where it is made."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.bench.escra.image import build, packages


def test_another_package_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.wanted_key()
    assert build.wanted_key() == before
    monkeypatch.setattr(packages, "PACKAGES", (*packages.PACKAGES, "sl"))
    assert build.wanted_key() != before


def test_every_package_is_installed_without_recommendations() -> None:
    script = packages.prepare_script()
    [line] = [line for line in script.splitlines() if " install " in line]
    assert "--no-install-recommends" in line
    assert set(packages.PACKAGES) <= set(line.split())


def test_a_cluster_is_made_where_the_server_looks_for_it() -> None:
    assert f"initdb --no-sync --locale=C.UTF-8 --auth=trust -D {packages.POSTGRES_DATA}'" in packages.set_up_script()


def _apt_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == "apt-get"
        return subprocess.CompletedProcess(command, 0, text)

    monkeypatch.setattr(subprocess, "run", run)


def test_sources_are_those_of_this_host_for_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other suites and other components are left out; the same line twice counts once."""
    lines = "bookworm main http://a/\nbookworm main http://a/\nbookworm-security main http://b/\n"
    _apt_says(monkeypatch, f"{lines}bookworm contrib http://a/\ntrixie main http://c/\n")
    assert build._sources() == ["deb http://a/ bookworm main", "deb http://b/ bookworm-security main"]


def test_a_host_without_the_suite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _apt_says(monkeypatch, "trixie main http://c/\n")
    with pytest.raises(build.ImageError, match="knows no Debian bookworm"):
        build._sources()
