"""Discovery of Docker containers by their labels, through the Docker Engine API.

Level-triggered: an event only triggers a listing, and a listing comes every few seconds too, so nothing depends on
an event arriving. The docker package blocks, so two daemon threads use it and hand over to the event loop. A third one
reports containers as they start (`services.agent.discovery.starting`), before the engine does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import docker
from docker.errors import NotFound

from schemas.containers import ContainerSource
from services._host.docker_engine import FAILURES, FIRST_RETRY_S, LAST_RETRY_S, EngineEvents
from services.agent.discovery.labels import APP_LABEL, NAME_LABEL, refuse_names
from services.agent.discovery.starting import StartingContainers
from services.agent.ports import Discovered, FoundContainer, GoneContainer, RejectedContainer, SourceAnswered

RELIST_S: Final = 5.0
STOP_GRACE_S: Final = 1.0
_SHOWN_LENGTH: Final = 200
_EVENTS: Final = ["start", "restart", "die", "destroy", "rename"]


class Listed(NamedTuple):
    """A container that carries the label."""

    container_id: str
    app: str
    name: str


def labelled_containers(rows: Iterable[Mapping[str, Any]]) -> list[Listed]:
    """From the engine's answer to ``GET /containers/json``: paused containers are in it, restarting ones left out."""
    running = (row for row in rows if row.get("State") != "restarting")
    return [listed for row in running if (listed := _listed(row)) is not None]


def _listed(row: Mapping[str, Any]) -> Listed | None:
    """None: it does not carry the label."""
    labels = row.get("Labels") or {}
    if APP_LABEL not in labels:
        return None
    own_names = [name[1:] for name in row.get("Names") or () if name.count("/") == 1]  # others are links' aliases
    return Listed(row["Id"], labels[APP_LABEL], labels.get(NAME_LABEL) or (own_names[0] if own_names else ""))


class ContainerTable:
    """What has been reported, compared with each new listing."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._pids: dict[str, int] = {}
        self._rejected: set[str] = set()

    def starting(self, listed: Listed, groups: Mapping[str, str]) -> FoundContainer:
        """Report of a container whose control groups have just been made; a listing confirms it later."""
        self._pids.pop(listed.container_id, None)  # restarted: a listing from before must not report it as gone
        return FoundContainer(
            listed.container_id, listed.app, listed.name, ContainerSource.DOCKER, directories=dict(groups)
        )

    def update(self, listing: list[Listed], inspect_pid: Callable[[str], int]) -> list[Discovered]:
        """Reports for a listing. `inspect_pid` gives the init process, 0 where there is none (any more).

        A container whose init has vanished while it is listed as running was restarted in between: it has new control
        groups, so it is reported as gone and found again.
        """
        reports: list[Discovered] = []
        ids = {listed.container_id for listed in listing}
        for gone in [known for known in list(self._pids) if known not in ids]:
            reports += self._forget(gone)
        self._rejected &= ids
        for listed in listing:
            container_id = listed.container_id
            if container_id in self._rejected or self._is_running(container_id):
                continue
            if reason := refuse_names(listed.app, listed.name):
                self._rejected.add(container_id)
                reports.append(
                    RejectedContainer(
                        container_id,
                        listed.app[:_SHOWN_LENGTH],
                        listed.name[:_SHOWN_LENGTH],
                        ContainerSource.DOCKER,
                        reason,
                    )
                )
                continue
            pid = inspect_pid(container_id)
            if pid == self._pids.get(container_id):
                continue
            reports += self._forget(container_id)
            if pid > 0:
                self._pids[container_id] = pid
                reports.append(FoundContainer(container_id, listed.app, listed.name, ContainerSource.DOCKER, pid=pid))
        return reports

    def _forget(self, container_id: str) -> list[Discovered]:
        return [GoneContainer(container_id)] if self._pids.pop(container_id, None) is not None else []

    def _is_running(self, container_id: str) -> bool:
        pid = self._pids.get(container_id)
        return pid is not None and Path(f"{self._proc}/{pid}").exists()


class _Session:
    """The two threads of one `DockerDiscovery.run`: the engine's events, each of which wakes the lister, and it."""

    def __init__(self, base_url: str | None, relist_s: float, report: Callable[[Discovered], None]) -> None:
        self.events = EngineEvents(base_url, {"type": "container", "event": _EVENTS, "label": APP_LABEL})
        self._relist_s = relist_s
        self._report = report
        self._table = ContainerTable()
        self.available = False

    def list_containers(self) -> None:
        """Lists when woken, and every `relist_s`."""
        client: docker.APIClient | None = None
        wait_s = FIRST_RETRY_S
        while not self.events.stopped.is_set():
            self.events.changed.clear()
            try:
                if client is None:
                    client = self.events.connect()
                else:
                    self.events.probe()
                self._list_once(client)
                self.available, wait_s = True, self._relist_s
                self._report(SourceAnswered(ContainerSource.DOCKER))
            except FAILURES as error:
                if isinstance(error, FileNotFoundError):  # no socket
                    self._report(SourceAnswered(ContainerSource.DOCKER, exists=False))
                if client is not None:
                    client.close()
                client = None
                wait_s = min(2 * wait_s, LAST_RETRY_S) if not self.available else FIRST_RETRY_S
                self.available = False
            self.events.changed.wait(wait_s)
        if client is not None:
            client.close()

    def _list_once(self, client: docker.APIClient) -> None:
        def inspect_pid(container_id: str) -> int:
            try:
                return int(client.inspect_container(container_id)["State"]["Pid"])
            except NotFound:
                return 0

        rows = client.containers(filters={"label": APP_LABEL})
        for report in self._table.update(labelled_containers(rows), inspect_pid):
            self._report(report)

    def follow_starts(self, starting: StartingContainers) -> None:
        """Report containers as they start, until stopped."""
        starting.follow(self.events.stopped, _Labels(self.events).find, self._report_starting)

    def _report_starting(self, listed: Listed, groups: Mapping[str, str]) -> None:
        self._report(self._table.starting(listed, groups))


class _Labels:
    """Labels of containers that start, by a list: one cannot be inspected while the engine starts it."""

    def __init__(self, events: EngineEvents) -> None:
        self._events = events
        self._client: docker.APIClient | None = None

    def find(self, container_id: str) -> Listed | None:
        """None: it does not carry the label, or labels that cannot be used, or the engine does not answer."""
        try:
            if self._client is None:
                self._client = self._events.connect()
            rows = self._client.containers(all=True, filters={"id": container_id, "label": APP_LABEL})
        except FAILURES:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            return None
        listed = _listed(rows[0]) if rows else None
        return None if listed is None or refuse_names(listed.app, listed.name) else listed


class DockerDiscovery:
    """Reports running containers with the label ``turnbuckle.app``, however they were started."""

    def __init__(
        self, base_url: str | None = None, relist_s: float = RELIST_S, starting: StartingContainers | None = None
    ) -> None:
        """Begin with `run`.

        Args:
            base_url: of the engine (``unix://...``, ``tcp://...``); None: where DOCKER_HOST says.
            relist_s: seconds between listings without an event.
            starting: reports containers before the engine does; None: nothing does.
        """
        self._starting = starting
        self._base_url = base_url
        self._relist_s = relist_s
        self._session: _Session | None = None

    @property
    def available(self) -> bool:
        """Whether the engine answered the last question."""
        return self._session is not None and self._session.available

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report what runs, then every change, until cancelled. An absent engine is waited for."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[BaseException | None] = asyncio.Queue()

        def hand_over(callback: Callable[..., object], *args: object) -> None:
            try:
                loop.call_soon_threadsafe(callback, *args)
            except RuntimeError:  # the loop was closed while this thread waited for the engine
                return

        session = _Session(self._base_url, self._relist_s, lambda report: hand_over(sink, report))

        def run_thread(body: Callable[[], None]) -> None:
            error: BaseException | None = None
            try:
                body()
            except BaseException as caught:  # noqa: BLE001 - raised again by run() below
                error = caught
            hand_over(ended.put_nowait, error)

        bodies = [("docker-events", session.events.follow), ("docker-list", session.list_containers)]
        if self._starting is not None:
            bodies.append(("docker-starts", partial(session.follow_starts, self._starting)))
        threads = [threading.Thread(target=run_thread, args=(body,), name=name, daemon=True) for name, body in bodies]
        self._session = session
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            error = await ended.get()
            running -= 1
            raise error if error is not None else RuntimeError("a docker thread ended by itself")
        finally:
            session.events.stop()
            self._session = None
            try:
                async with asyncio.timeout(STOP_GRACE_S):
                    for _ in range(running):
                        await ended.get()
            except TimeoutError:
                pass  # daemon threads: they end with their request, and never hold up the interpreter's exit
