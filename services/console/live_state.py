"""Applications and containers as they are now: a fold over observations, sent once a second. Pure: no clock, no I/O.

Everything is repeated every second: the hub sends what differs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.leases import Members
from schemas.limits import LimitDecisions
from schemas.message import ROW_SEPARATOR
from schemas.queries import AppState
from schemas.reasons import Resource, sentence
from services.console.container_group import Array, ContainerGroup
from services.console.history import History, Series
from services.console.messages import console_message

STALE_S: Final = 3.0
"""Containers that were in no batch for so long have gone."""
HISTORY_BYTES: Final = 96 << 20
"""Of containers: 5,242 of them. Applications have a twelfth of it besides."""
HISTORY_COLUMNS: Final = ("used_us", "quota_us", "throttled_share", "memory_bytes", "memory_limit_bytes")
"""Of a container; of an application the sums over its containers (throttled: the mean), and `APP_COLUMNS`."""
APP_COLUMNS: Final = ("app_cpu_limit_us", "app_memory_limit_bytes")
TREND_S: Final = 60


class Change(NamedTuple):
    """A piece of state for the pages."""

    key: str
    data: bytes
    removed: bool = False


@dataclass(slots=True)
class AppTotals:
    """What is known of an application besides its containers; 0 or empty: unknown."""

    app: str
    mode: str = ""
    policy: str = ""
    owner: str = ""
    announced: bool = False
    cpu_limit_us: int = 0
    cpu_held_us: int = 0
    memory_limit_bytes: int = 0
    memory_held_bytes: int = 0
    memory_reserved_bytes: int = 0


class LiveState:
    """Every application, with the last hour of what was read."""

    def __init__(self) -> None:
        self._apps: dict[str, AppTotals] = {}
        self._members = Members()
        self._groups: dict[tuple[str, str], ContainerGroup] = {}
        self._slots: dict[tuple[str, str], Array] = {}
        self._reasons: dict[tuple[str, str], dict[str, str]] = {}
        self._decided: dict[str, dict[str, tuple[LimitDecisions, int]]] = {}
        """By application and container: the newest decision of this second, and its row."""
        self._containers = History(len(HISTORY_COLUMNS), HISTORY_BYTES)
        self._totals = History(len(HISTORY_COLUMNS + APP_COLUMNS), HISTORY_BYTES // 12)

    def add_batch(self, batch: CfsBatch, now_s: float) -> None:
        """Add an observation; ``now_s`` as of `tick`."""
        place = batch.app, batch.node
        group = self._groups.get(place)
        if group is None:
            if not batch.is_early:
                self._groups[place] = ContainerGroup(batch, now_s)
            return
        before = group.containers
        if group.add(batch, now_s):
            gone = set(before.split(ROW_SEPARATOR)).difference(batch.keys)
            self._slots.pop(place, None)
            self._containers.release((*place, key) for key in gone)
            for key in gone.intersection(self._reasons.get(place, ())):
                del self._reasons[place][key]

    def add_decisions(self, decisions: LimitDecisions) -> None:
        """Add one application's decisions."""
        app = self._app(decisions.app)
        app.mode, app.policy = decisions.mode, decisions.policy
        app.cpu_limit_us, app.cpu_held_us = decisions.cpu_limit_us, decisions.cpu_allocated_us
        app.memory_limit_bytes, app.memory_held_bytes = decisions.memory_limit_bytes, decisions.memory_allocated_bytes
        app.memory_reserved_bytes = decisions.memory_reserved_bytes
        decided = self._decided.setdefault(decisions.app, {})
        decided.update((key, (decisions, row)) for row, key in enumerate(decisions.keys))

    def announce(self, name: str, spec: AppSpec | None) -> None:
        """Set an application's limits, as the `apps` bucket holds them; None: withdrawn."""
        app = self._app(name)
        app.announced, app.owner = spec is not None, "" if spec is None else self._members.owner(name)
        if spec is not None:
            app.mode, app.policy = spec.mode, spec.policy
            app.cpu_limit_us, app.memory_limit_bytes = spec.cpu_limit_us, int(spec.memory_limit)

    def set_members(self, members: Members) -> None:
        """Set the allocator's replicas: each application's owner follows."""
        self._members = members
        for name, app in self._apps.items():
            app.owner = members.owner(name) if app.announced else ""

    def seed(self, state: AppState) -> None:
        """Set the pools from the allocator's reply, so that they are known before the first decision."""
        app = self._app(state.spec.name)
        app.cpu_held_us, app.memory_held_bytes = state.cpu_committed_us, state.memory_committed_bytes
        app.memory_reserved_bytes = state.memory_reserved_bytes
        app.owner = state.owner or app.owner

    def tick(self, time_s: float, now_s: float, *, connected: bool) -> Iterator[Change]:
        """End a second.

        Args:
            time_s: since the epoch, for the history.
            now_s: on the clock of `add_batch`.
            connected: while nothing can be heard, nothing has gone.
        """
        if connected:
            yield from self._drop_stale(now_s)
        self._containers.advance(time_s)
        self._totals.advance(time_s)
        sums: dict[str, list[Array]] = {}
        for place, group in self._groups.items():
            rows = group.next_second()
            if now_s - group.received_s <= STALE_S:  # otherwise the newest stays, and is no history
                self._keep(place, group, rows)
                sums.setdefault(group.app, []).append(rows)
            yield Change(f"rows/{group.app}/{group.node}", _rows_message(group, rows))
            yield Change(f"reasons/{group.app}/{group.node}", self._reasons_message(place, group))
        self._decided.clear()
        now = {name: self._total(name, parts) for name, parts in sums.items()}
        yield from self._app_changes()
        yield Change("tick", console_message("Tick", time_s=time_s, apps=now))

    def history(self, app: str, node: str = "", container: str = "") -> Series | None:
        """The last hour of a container, or of an application; columns as `HISTORY_COLUMNS` says."""
        return self._containers.read((app, node, container)) if container else self._totals.read(app)

    def trends(self) -> list[dict[str, Any]]:
        """CPU of every container in the last minute: used and quota of each second, float32."""
        return [
            {
                "app": group.app,
                "node": group.node,
                "containers": group.containers,
                "values": self._containers.newest(self._slots[place], (0, 1), TREND_S).tobytes(),
            }
            for place, group in self._groups.items()
            if place in self._slots
        ]

    def _app(self, name: str) -> AppTotals:
        return self._apps.setdefault(name, AppTotals(name))

    def _drop_stale(self, now_s: float) -> Iterator[Change]:
        for place, group in list(self._groups.items()):
            if now_s - group.received_s > STALE_S:
                del self._groups[place]
                self._slots.pop(place, None)
                self._reasons.pop(place, None)
                self._containers.release((*place, key) for key in group.keys)
                for kind in ("reasons", "rows"):  # the page drops both at the second
                    gone = console_message("Gone", app=group.app, node=group.node)
                    yield Change(f"{kind}/{group.app}/{group.node}", gone, removed=True)

    def _keep(self, place: tuple[str, str], group: ContainerGroup, rows: Array) -> None:
        slots = self._slots.get(place)
        if slots is None:
            slots = self._slots[place] = self._containers.claim((*place, key) for key in group.keys)
        self._containers.write(slots, rows[: len(HISTORY_COLUMNS)])

    def _total(self, name: str, parts: list[Array]) -> list[float]:
        """Sums over an application's containers; throttled: the mean."""
        rows = np.concatenate(parts, axis=1)
        sums = np.maximum(rows[: len(HISTORY_COLUMNS)], 0.0).sum(axis=1, dtype=np.float64)
        sums[HISTORY_COLUMNS.index("throttled_share")] /= max(1, rows.shape[1])
        app = self._app(name)
        limits = [float(limit) if limit > 0 else np.nan for limit in (app.cpu_limit_us, app.memory_limit_bytes)]
        self._totals.write(self._totals.claim([name]), np.array([*sums, *limits], dtype=np.float32)[:, None])
        return [float(value) for value in sums]

    def _reasons_message(self, place: tuple[str, str], group: ContainerGroup) -> bytes:
        """Why each container's limit was changed last, a line each."""
        reasons, decided = self._reasons.setdefault(place, {}), self._decided.get(group.app, {})
        for key in group.keys if decided else ():
            if key in decided:
                reasons[key] = _reason(*decided[key])
        text = ROW_SEPARATOR.join(reasons.get(key, "") for key in group.keys)
        return console_message("Reasons", app=group.app, node=group.node, reasons=text)

    def _app_changes(self) -> Iterator[Change]:
        present = {app for app, _ in self._groups}
        for name, app in list(self._apps.items()):
            if app.announced or name in present:
                yield Change(f"app/{name}", console_message("App", **asdict(app)))
                continue
            del self._apps[name]
            self._totals.release([name])
            yield Change(f"app/{name}", console_message("Gone", app=name, node=""), removed=True)


def _rows_message(group: ContainerGroup, rows: Array) -> bytes:
    return console_message(
        "Rows",
        app=group.app,
        node=group.node,
        period_us=group.period_us,
        containers=group.containers,
        values=rows.tobytes(),
    )


def _reason(decisions: LimitDecisions, row: int) -> str:
    """One row. A numpy array of each column takes several times as long as the sentence."""
    at, after = 8 * row, 8 * row + 8
    resource: Resource
    if any(decisions.quota_to_us[at:after]):
        resource, reason = "cpu", decisions.quota_reason[row]
        numbers = decisions.quota_measured[at:after] + decisions.quota_threshold[at:after]
    else:
        resource, reason = "memory", decisions.limit_reason[row]
        numbers = decisions.limit_measured[at:after] + decisions.limit_threshold[at:after]
    return sentence(resource, reason, *_TWO_FLOATS.unpack(numbers))


_TWO_FLOATS: Final = struct.Struct("<2d")
