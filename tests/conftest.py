"""Tiers, marks that need something from the machine, and hypothesis profiles. Fixtures stand near their tests.

Tests of `HOST_FOLDERS` and with a mark of `NEEDS` get the mark ``host``: ``make test-host`` runs these, ``make test``
the others. Of the host's, those without the mark ``machine`` get ``core``. A test that the machine cannot run is
skipped with the reason printed; with ``CI=true`` it fails, unless `tests/never_here.toml` lists it.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from services.collector.devices.machine import DRIVERS
from tests.support.never_here import is_never_here
from tests.support.virtual_time import VirtualTimeLoop

HOST_FOLDERS = {"kernel", "lab", "system", "compose"}
"""Below tests/: real control groups, network namespaces and whole systems, which need the machine for themselves."""

# Timings on a shared machine say nothing about the code. `make test-deep` chooses the other profile. With CI=true
# hypothesis derandomizes both and keeps no database: the gate tries the same examples each time, other runs try others.
for profile, examples in {"fast": 10, "deep": 100}.items():
    settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("fast")

# Tests take every core by processes. Threads of torch and BLAS beside them only spin: a fit cost nine times the CPU.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# What commands keep for their next run stays out of the home directory of the user who runs the tests.
STATE_HOME = tempfile.mkdtemp(prefix="turnbuckle-tests-state-")
os.environ["XDG_STATE_HOME"] = STATE_HOME

WORKERS_PER_CORE = 2
"""Processes of `make test`: tests wait for services that start, and for timers. On 2 cores 4 took 288 s, 3 328 s."""

# A shell without job control starts background jobs with SIGINT ignored, and every process of a test inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def missing_root() -> str | None:
    """Why tests that need root cannot run, or None."""
    return None if os.geteuid() == 0 else "needs root: run `sudo make test-host`"


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


@cache
def missing_gpu() -> str | None:
    """Why tests that need a GPU cannot run, or None."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return "needs a GPU: no driver is loaded here"
    import torch  # noqa: PLC0415 - seconds, and only where a driver is

    return None if torch.cuda.is_available() else f"needs a GPU that torch sees: torch {torch.__version__} sees none"


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": missing_root,
    "docker": missing_docker,
    "netns": missing_netns,
    "vm": missing_vm,
    "gpu": missing_gpu,
}


def pytest_xdist_auto_num_workers() -> int | None:
    """What ``--numprocesses auto`` is, unless `PYTEST_XDIST_AUTO_NUM_WORKERS` says so."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return math.ceil(WORKERS_PER_CORE * len(os.sched_getaffinity(0)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no cycles among what is collected, thousands of tests: that was a quarter of the collection's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries that count their objects at the end see them go; remove what commands have kept."""
    gc.unfreeze()
    shutil.rmtree(STATE_HOME, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what only ``make test-host`` runs."""
    for item in items:
        folder = item.path.relative_to(config.rootpath / "tests").parts[0]
        if folder in HOST_FOLDERS or any(item.get_closest_marker(mark) for mark in NEEDS):
            item.add_marker("host")
        mark_core(item)


def mark_core(item: pytest.Item) -> None:
    """Part the host's tests in two: what a busy machine may break (mark ``machine``), and all others (``core``).

    Raises:
        pytest.UsageError: ``make test`` would run it, which may be red only because of the code.
    """
    host, machine = (item.get_closest_marker(mark) is not None for mark in ("host", "machine"))
    if machine and not host:
        raise pytest.UsageError(f"{item.nodeid} has the mark machine, and so needs one that makes it a host test")
    if host and not machine:
        item.add_marker("core")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one loop of each asynchronous test."""
    virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if virtual else {"real": asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)  # before fixtures that need what is missing
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark the machine cannot serve."""
    for mark, missing in NEEDS.items():
        reason = missing() if item.get_closest_marker(mark) else None
        if reason:
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ``CI=true`` a skip is a failure, unless `tests/never_here.toml` lists the test."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not is_never_here(item.nodeid):
        report.outcome = "failed"
        report.longrepr = f"CI must run every test that tests/never_here.toml does not list: {report.longreprtext}"
    return report


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What runs a command within the test's process sets a threshold for its logs, and other tests read logs."""
    yield
    structlog.reset_defaults()
