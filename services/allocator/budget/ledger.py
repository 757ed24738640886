"""The pool's arithmetic: what may be in force anywhere, and how much of a wish may be ordered.

An order in flight may or may not have arrived, so a container counts with the largest value that may be in the
kernel: the reported one, or any order that the agent is not known to have seen. The agent makes this sound: it refuses
orders that were overtaken, it raises only at the moment it sees an order, and what it delays is always a cut
(`services.agent.limits.update_log`). So, with ``held`` as defined here, sum(held) <= limit is kept by never raising
beyond ``limit - sum(held)``; cuts free room only once the agent has reported the lower value.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from services.allocator.state.container_columns import UNLIMITED, BoolArray, IntArray, Rows
from services.allocator.state.slot_arrays import at


@dataclass(frozen=True, slots=True)
class Account:
    """One resource's columns of `Rows`, by name."""

    kernel: str
    ordered: str
    inflight: str
    wanted: str

    def of(self, rows: Rows, column: str) -> IntArray:
        """One of the four columns."""
        array: IntArray = getattr(rows, getattr(self, column))
        return array


CPU = Account("quota_us", "quota_ordered_us", "quota_inflight_us", "quota_wanted_us")
MEMORY = Account("limit_bytes", "limit_ordered_bytes", "limit_inflight_bytes", "limit_wanted_bytes")
ACCOUNTS = (CPU, MEMORY)

ADOPT_AFTER_REPORTS = 5
"""A cut waits at most 130 ms for its boundary; a difference that lasts longer was made by other hands."""


def held(rows: Rows, account: Account, virtual: BoolArray) -> IntArray:
    """The largest value per row that may be in force.

    A row that is not admitted counts too: its order may have arrived although its reply was lost, and a container may
    come with limits of its own. Unlimited ones count nothing until their first order goes out.

    Args:
        virtual: rows of applications in mode `observe`: nothing is sent, so what counts is what would be ordered.
    """
    kernel, ordered = account.of(rows, "kernel"), account.of(rows, "ordered")
    inflight = account.of(rows, "inflight")
    worst = np.maximum(kernel, inflight)
    return np.where(virtual, np.where(rows.admitted, ordered, 0), np.maximum(worst, 0))


def commit(rows: Rows, account: Account, target: IntArray, free: IntArray, holding: IntArray) -> IntArray:
    """What may be ordered of ``target`` now.

    A target up to what the row holds anyway is taken as it is. What goes beyond shares the application's free room in
    proportion. (Beyond what is *held*, not beyond what was ordered: after a lost reply the kernel may hold less.)

    Args:
        target: wished value per row; equal to the ordered one where nothing is to change.
        free: room per application, limit - sum(held) less what is withheld; negative: none.
        holding: what each row holds, by `held`.

    Returns:
        The new ordered value per row. ``wanted`` is set where less than the target could be ordered.
    """
    ordered = account.of(rows, "ordered")
    ask = np.where(target != ordered, np.maximum(target - holding, 0), 0)
    room = np.maximum(free, 0)
    asked = np.bincount(rows.app, ask, len(free))
    share = np.divide(room, asked, out=np.ones(len(free)), where=asked > room)
    granted = np.floor(ask * share[rows.app]).astype(np.int64)
    funded = np.where(ask > 0, holding + granted, target)
    result = np.where(target > ordered, np.maximum(funded, ordered), funded)
    wanted = account.of(rows, "wanted")
    wanted[:] = np.where(result < target, target, 0)
    return result


def record_orders(rows: Rows, index: IntArray, sent: tuple[IntArray, IntArray], seq: IntArray | int) -> None:
    """Orders go out for these rows: from now on they count with the largest value in flight.

    Only what is sent may count: an ordered value that the kernel gave up long ago was funded by nobody.

    Args:
        rows: all rows.
        index: row indices.
        sent: quota and memory limit per index; 0 where that limit is left alone.
        seq: sequence of the message that carries them, per index.
    """
    for account, values in zip(ACCOUNTS, sent, strict=True):
        inflight = account.of(rows, "inflight")
        inflight[index] = np.maximum(inflight[index], values)
    rows.order_seq[index] = seq
    rows.settled[index] = False
    rows.mismatches[index] = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent says about rows: the columns that batches and replies share."""

    index: IntArray
    """Row indices, unique."""
    report_seq: IntArray
    quota_us: IntArray
    limit_bytes: IntArray
    order_seq: IntArray
    periodic: BoolArray
    """It is one that comes every period, so that their number tells how long a difference lasts."""


def settle(rows: Rows, report: Report, now_ns: int) -> BoolArray:
    """Take in the truth about limits; returns which of the rows were newer than what is known.

    A report that was overtaken by a newer one is ignored. An order is settled once the agent has seen it; until then
    its value stays in flight.
    """
    newer = report.report_seq > rows.report_seq[report.index]
    if not newer.all():
        report = Report(*(getattr(report, column.name)[newer] for column in fields(Report)))
    index, mine = report.index, at(report.index)
    rows.report_seq[mine] = report.report_seq
    rows.report_ns[mine] = now_ns
    rows.quota_us[mine] = report.quota_us
    rows.limit_bytes[mine] = report.limit_bytes
    seen = report.order_seq >= rows.order_seq[mine]
    settled, periodic = (index, report.periodic) if seen.all() else (index[seen], report.periodic[seen])
    mine = at(settled)
    rows.settled[mine] = True
    for account in ACCOUNTS:
        account.of(rows, "inflight")[mine] = 0
    _adopt_foreign_values(rows, settled, periodic)
    return newer


def _adopt_foreign_values(rows: Rows, index: IntArray, periodic: BoolArray) -> None:
    """Where the kernel has held something else than ordered for several reports, start from what it holds."""
    mine = at(index)
    admitted, quota_us, limit_bytes = rows.admitted[mine], rows.quota_us[mine], rows.limit_bytes[mine]
    differs = (quota_us != rows.quota_ordered_us[mine]) | (limit_bytes != rows.limit_ordered_bytes[mine])
    mismatches = np.where(differs & admitted, rows.mismatches[mine] + periodic, 0)
    rows.mismatches[mine] = mismatches
    unlimited = (quota_us == UNLIMITED) | (limit_bytes == UNLIMITED)
    adopt(rows, index[(mismatches >= ADOPT_AFTER_REPORTS) | (unlimited & admitted)])


def adopt(rows: Rows, index: IntArray) -> None:
    """Forget what was ordered for these rows and go on from what the kernel holds.

    A row that is unlimited there is no longer admitted: it has to be given its first limits again.
    """
    rows.mismatches[index] = 0
    rows.quota_ordered_us[index] = rows.quota_us[index]
    rows.limit_ordered_bytes[index] = rows.limit_bytes[index]
    unlimited = (rows.quota_us[index] == UNLIMITED) | (rows.limit_bytes[index] == UNLIMITED)
    rows.admitted[index[unlimited]] = False
