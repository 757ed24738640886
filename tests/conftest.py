"""Marks that need something from the machine, and the hypothesis profile. Fixtures stand near their tests.

A test that the machine cannot run is skipped with the reason printed; with ``CI=true`` it fails instead, so that no
mark is skipped unnoticed where everything is meant to be there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.skipping import skip_or_fail

# Timings on a shared machine say nothing about the code.
settings.register_profile("turnbuckle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnbuckle")

# A shell without job control starts background jobs with SIGINT ignored, and every process of a test inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def missing_root() -> str | None:
    """Why tests that need root cannot run, or None."""
    return None if os.geteuid() == 0 else "needs root: run `sudo make test`"


@cache
def missing_docker() -> str | None:
    """Why tests that need a Docker Engine cannot run, or None."""
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not url.startswith("unix://"):
        return None  # an engine elsewhere was asked for: let the tests find out
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            connection.connect(url.removeprefix("unix://"))
    except OSError as error:
        return f"needs a Docker Engine at {url} ({error.strerror or error}): start dockerd"
    return None


@cache
def missing_netns() -> str | None:
    """Why tests that make network namespaces cannot run, or None."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if not Path("/proc/self/ns/net").exists():
        return "needs a kernel with network namespaces"
    for command, package in (("ip", "iproute2"), ("tc", "iproute2"), ("vtysh", "frr")):
        if shutil.which(command) is None:
            return f"needs the command {command}: apt-get install {package}"
    return None


@cache
def missing_vm() -> str | None:
    """Why tests that boot a virtual machine cannot run, or None."""
    from tests.lab.vm import machine  # noqa: PLC0415 - only where such a test was collected

    return machine.missing()


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": missing_root,
    "docker": missing_docker,
    "netns": missing_netns,
    "vm": missing_vm,
}


@pytest.hookimpl(tryfirst=True)  # before fixtures that need what is missing
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or with ``CI=true`` fail, a test whose mark the machine cannot serve."""
    for mark, missing in NEEDS.items():
        reason = missing() if item.get_closest_marker(mark) else None
        if reason:
            skip_or_fail(reason)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What runs a command within the test's process sets a threshold for its logs, and other tests read logs."""
    yield
    structlog.reset_defaults()
