"""What an agent service stands on, as plain values: a host, a discovery, a watchdog that only writes down its calls."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, field

from tests.support.fake_host import FakeContainer, FakeHost


class FakeDiscovery:
    """Reports what a test tells it to."""

    available = True

    def __init__(self):
        self._sink = None
        self._changes = []

    async def run(self, sink):
        self._sink = sink
        for change in self._changes:
            sink(change)
        await asyncio.Event().wait()

    def report(self, change):
        self._changes.append(change)
        if self._sink is not None:
            self._sink(change)


@dataclass
class FakeWatchdog:
    """Calls and reports."""

    calls: list[str] = field(default_factory=list)
    reports: list = field(default_factory=list)

    def start(self):
        self.calls.append("start")

    def heartbeat(self):
        self.calls.append("heartbeat")

    def take_reports(self):
        taken, self.reports = self.reports, []
        return taken

    def forget_reports(self):
        self.calls.append("forget_reports")

    def stop(self):
        self.calls.append("stop")


@dataclass
class FakeBackend:
    """In place of `services.agent.backend.Backend`."""

    host: FakeHost = field(default_factory=FakeHost)
    discovery: FakeDiscovery = field(default_factory=FakeDiscovery)
    watchdog: FakeWatchdog = field(default_factory=FakeWatchdog)
    source_timeouts_s: dict = field(default_factory=dict)
    select_pods: object = None
    closed: bool = False
    holder: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    def __post_init__(self):
        self.host.notification_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.host.throttle_notifier = None
        self.host.no_op_writes = 0

    @property
    def discoveries(self):
        return {"fake": self.discovery}

    @property
    def reserves(self):
        return self.host.reserve_store

    def release_leftovers(self):
        return []

    def recorded(self):
        return list(self.host.recorded)

    def close(self):
        self.closed = True
        os.close(self.host.notification_fd)

    def add(self, name, app="shop", **values) -> FakeContainer:
        """A container starts."""
        found = self.host.add(name, app, **values)
        self.discovery.report(found)
        return self.host.containers[found.container_id]

    def touch(self, container, added_bytes):
        """Use memory, and let the alarms ring."""
        container.touch(added_bytes)
        if container.notifications:
            os.eventfd_write(self.host.notification_fd, 1)
            self.host.before_notifications = lambda: os.eventfd_read(self.host.notification_fd)
