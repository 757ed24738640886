"""Containers that are not admitted yet: keep room for them, then give them their first limits.

A full application has no room for a newcomer until the others were cut, which takes a step and its acknowledgement.
So what newcomers and announced containers need is taken out of the others' budget first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from schemas.apps import PERIOD_US
from schemas.reasons import Reason
from services.allocator.budget import ledger
from services.allocator.budget.node_room import NEWCOMER_SHARE, counted_bytes, node_rooms
from services.allocator.memory.policy import MARGIN_BYTES
from services.allocator.messages import Reasons
from services.allocator.state import eligibility as standing
from services.allocator.state.admission import Newcomer, Refusal, Room, admit
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import Roster
from services.allocator.state.container_columns import UNLIMITED, BoolArray, IntArray
from services.allocator.state.eligibility import Stock

PATIENCE_STEPS = 10
"""Steps for which a newcomer waits for room before it is called refused: a cut needs at most three."""


@dataclass(slots=True)
class Waiting:
    """Room that is kept free per application, and who waits for it."""

    quota_us: IntArray
    limit_bytes: IntArray
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be admitted now."""

    row: int
    reason: str
    tell: bool
    """Whether it has waited long enough, or can never fit."""


def room_to_keep(roster: Roster, table: AppTable, stock: Stock, waiting: BoolArray) -> Waiting:
    """What announced containers that have not joined, and newcomers, will need.

    Args:
        roster: all rows.
        table: parameters per application.
        stock: what is held now.
        waiting: rows that want to join.
    """
    joined, own = stock.pools.containers, stock.per_row
    missing = np.maximum(table.announced - joined, 0)
    kept = Waiting(missing * table.initial_quota_us, missing * table.initial_memory_bytes)
    virtual = table.virtual[roster.rows.app]
    kept.rows = np.flatnonzero(waiting & ~virtual).tolist()
    for app in {int(roster.rows.app[row]) for row in kept.rows}:
        spec = roster.specs[roster.apps[app]]
        mine = [row for row in kept.rows if roster.rows.app[row] == app]
        count = max(int(joined[app]) + len(mine), int(table.announced[app]))
        unannounced = max(len(mine) - int(missing[app]), 0)
        usage = sum(int(roster.rows.memory_usage_bytes[row]) + MARGIN_BYTES for row in mine)
        kept.quota_us[app] += unannounced * spec.initial_quota_us(count)
        kept.limit_bytes[app] = max(kept.limit_bytes[app] + unannounced * spec.initial_memory_bytes(count), usage)
        # What they hold already (a limit of their own) counts as held.
        kept.quota_us[app] = max(kept.quota_us[app] - own[0][mine].sum(), 0)
        kept.limit_bytes[app] = max(kept.limit_bytes[app] - own[1][mine].sum(), 0)
    return kept


def admit_newcomers(
    roster: Roster, table: AppTable, stock: Stock, ready: IntArray, reasons: tuple[Reasons, Reasons]
) -> list[Refused]:
    """Give first limits to the rows ``ready``, as far as there is room.

    Args:
        roster: rows are changed in place.
        table: parameters per application.
        stock: what is held now.
        ready: rows that may be admitted now.
        reasons: CPU and memory, written in place.
    """
    refused, own, free = [], stock.per_row, standing.free(stock.pools, table)
    rooms, counted = node_rooms(roster), counted_bytes(roster.rows)
    for row in ready.tolist():
        app = int(roster.rows.app[row])
        joined = int(np.count_nonzero(roster.rows.admitted & (roster.rows.app == app)))
        if table.virtual[app]:
            _admit_virtually(roster, row, app, joined + 1)
            continue
        node = int(roster.rows.node[row])
        of_node = int(rooms[node]), int(counted[row])
        room = _room(roster, table, (row, joined), (free, own), of_node)
        together = joined + int(np.count_nonzero(~roster.rows.admitted & (roster.rows.app == app)))
        newcomer = _newcomer(roster, table, row, max(together, int(table.announced[app])))
        answer = admit(room, newcomer)
        if isinstance(answer, Refusal):
            roster.rows.refusals[row] += 1
            tell = answer.permanent or int(roster.rows.refusals[row]) >= PATIENCE_STEPS
            refused.append(Refused(row, answer.reason, tell))
            continue
        _set_ordered(roster, row, answer.quota_us, answer.limit_bytes)
        for account, value in zip(ledger.ACCOUNTS, (answer.quota_us, answer.limit_bytes), strict=True):
            inflight = account.of(roster.rows, "inflight")
            inflight[row] = max(int(inflight[row]), value)  # it goes out in this step
        free[0][app] -= max(answer.quota_us - int(own[0][row]), 0)
        free[1][app] -= max(answer.limit_bytes - int(own[1][row]), 0)
        rooms[node] -= min(max(answer.limit_bytes - int(counted[row]), 0), int(rooms[node]))
        for why, wished, there in (
            (reasons[0], newcomer.share_us, room.cpu_free_us),
            (reasons[1], newcomer.share_bytes, room.memory_free_bytes),
        ):
            why.reason[row], why.measured[row], why.threshold[row] = Reason.ADMITTED, wished, there
    return refused


def _room(
    roster: Roster,
    table: AppTable,
    place: tuple[int, int],
    sums: tuple[tuple[IntArray, IntArray], ...],
    of_node: tuple[int, int],
) -> Room:
    """What there is for a row.

    Args:
        roster: all rows.
        table: parameters per application.
        place: the row, and how many of its application have joined.
        sums: free per application, held per row (CPU, memory each).
        of_node: what its node has left, and what the row counts for there.
    """
    (row, joined), (free, own) = place, sums
    rows, app = roster.rows, int(roster.rows.app[row])
    others = max(int(table.announced[app]) - joined - 1, 0)
    rivals = ~rows.admitted & (rows.app == app)
    rivals[row] = False
    # Shares of announced containers are kept free, but not twice where these hold limits of their own already.
    kept = [
        max(others * int(initial[app]) - int(account[rivals].sum()), 0)
        for initial, account in zip((table.initial_quota_us, table.initial_memory_bytes), own, strict=True)
    ]
    return Room(
        int(table.cpu_limit_us[app]),
        int(free[0][app] + own[0][row]) - kept[0],
        int(table.memory_limit_bytes[app]),
        int(free[1][app] + own[1][row]) - kept[1],
        int(table.delta_bytes[app]),
        sum(of_node),
        of_node[0] // NEWCOMER_SHARE + of_node[1],
    )


def _newcomer(roster: Roster, table: AppTable, row: int, count: int) -> Newcomer:
    rows, app = roster.rows, int(roster.rows.app[row])
    spec = roster.specs[roster.apps[app]]
    return Newcomer(
        name=roster.keys[row],
        used_us=int(rows.used_us[row]),
        usage_bytes=int(rows.memory_usage_bytes[row]),
        share_us=spec.initial_quota_us(count),
        share_bytes=spec.initial_memory_bytes(count),
        min_us=int(table.min_quota_us[app]),
        cap_us=min(int(rows.host_cpus[row]) * PERIOD_US, int(table.max_quota_us[app])),
        min_bytes=int(table.min_memory_bytes[app]),
        max_bytes=int(table.max_memory_bytes[app]),
    )


def _admit_virtually(roster: Roster, row: int, app: int, count: int) -> None:
    """Mode `observe`: start from what the container has, or from its equal share."""
    rows, spec = roster.rows, roster.specs[roster.apps[app]]
    quota_us, limit_bytes = int(rows.quota_us[row]), int(rows.limit_bytes[row])
    _set_ordered(
        roster,
        row,
        spec.initial_quota_us(count) if quota_us == UNLIMITED else quota_us,
        spec.initial_memory_bytes(count) if limit_bytes == UNLIMITED else limit_bytes,
    )


def _set_ordered(roster: Roster, row: int, quota_us: int, limit_bytes: int) -> None:
    rows = roster.rows
    rows.quota_ordered_us[row], rows.limit_ordered_bytes[row] = quota_us, limit_bytes
    rows.admitted[row] = True
    rows.refusals[row] = 0
