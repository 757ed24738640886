"""The whole stack with a user per service and TLS: healthy, and no secret is told. Part of `make test-host`."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import compose_lab
from tests.support.compose_secured import Secured, assert_nothing_is_told

pytestmark = [
    pytest.mark.root,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # As in test_whole_stack.py.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SERVICES = ("nats", "agent", "allocator", "reconciler", "collector", "advisor")


async def test_all_services_are_healthy_and_no_secret_is_told(tmp_path):
    compose_lab.require("docker-compose", "debootstrap")
    await asyncio.to_thread(compose_lab.make_images)
    secured = Secured(tmp_path / "compose")
    assert len(secured.secrets) > len(SERVICES)
    try:
        await asyncio.to_thread(secured.project.up, *SERVICES)
        await asyncio.to_thread(secured.project.wait_healthy, "nats")
        await asyncio.to_thread(secured.declare)
        await asyncio.to_thread(secured.project.wait_healthy, *SERVICES)
        await assert_nothing_is_told(secured)
    finally:
        await asyncio.to_thread(secured.project.remove)
