"""Ledger of committed limits: what may be in force anywhere, and how much of a target may be ordered.

An update in flight may or may not have arrived, so a container counts with the largest value that may be in the kernel:
the reported one, or any update that its agent is not known to have applied. The agent makes this sound: it rejects
out-of-order updates, it raises only when it receives one, and what it delays is always a decrease
(`services.agent.limits.update_log`). So sum(`committed`) <= limit is kept by never raising beyond
``limit - sum(committed)``; a decrease frees capacity only once the agent has reported the lower value.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from services.allocator.columns import UNLIMITED, BoolArray, IntArray, Rows, at


@dataclass(frozen=True, slots=True)
class Account:
    """One resource's columns of `Rows`, by name."""

    kernel: str
    ordered: str
    inflight: str
    deferred: str

    def of(self, rows: Rows, column: str) -> IntArray:
        """One of the four columns."""
        array: IntArray = getattr(rows, getattr(self, column))
        return array


CPU = Account("quota_us", "quota_ordered_us", "quota_inflight_us", "quota_deferred_us")
MEMORY = Account("limit_bytes", "limit_ordered_bytes", "limit_inflight_bytes", "limit_deferred_bytes")
ACCOUNTS = (CPU, MEMORY)

RESYNC_AFTER_REPORTS = 5
"""A decrease waits at most 130 ms for its boundary; a difference that lasts longer is an external change."""


def committed(rows: Rows, account: Account, observe_only: BoolArray) -> IntArray:
    """The largest value per row that may be in force.

    A row that is not admitted counts too: its update may have arrived although the reply was lost, and a container may
    start with limits of its own. Unlimited ones count nothing until their first update is sent.

    Args:
        rows: all rows.
        account: CPU or memory.
        observe_only: rows of applications in mode `observe`: nothing is sent, so the ordered value counts.
    """
    kernel, ordered = account.of(rows, "kernel"), account.of(rows, "ordered")
    inflight = account.of(rows, "inflight")
    worst = np.maximum(kernel, inflight)
    return np.where(observe_only, np.where(rows.admitted, ordered, 0), np.maximum(worst, 0))


def committed_limits(rows: Rows, observe_only: BoolArray) -> tuple[IntArray, IntArray]:
    """`committed` of CPU and of memory."""
    return committed(rows, CPU, observe_only), committed(rows, MEMORY, observe_only)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What may be ordered of one resource's targets, shape (N,)."""

    ordered: IntArray
    deferred: IntArray
    """Targets of which less could be ordered; 0 elsewhere."""


def reserve(rows: Rows, account: Account, target: IntArray, free: IntArray, holding: IntArray) -> Reservation:
    """How much of each target may be ordered now.

    A target up to what the row has committed is ordered in full. Increases beyond that share the application's free
    capacity in proportion. (Beyond what is committed, not beyond what was ordered: after a lost reply the kernel may
    hold less.)

    Args:
        rows: all rows.
        account: CPU or memory.
        target: per row; equal to the ordered value where nothing is to change.
        free: per application, limit - sum(committed) less what is withheld; negative: none.
        holding: per row, by `committed`.

    Returns:
        The values to order. Where no target differs, `Reservation.ordered` is the rows' own column.
    """
    ordered = account.of(rows, "ordered")
    if np.array_equal(target, ordered):
        return Reservation(ordered, np.zeros_like(ordered))
    ask = np.where(target != ordered, np.maximum(target - holding, 0), 0)
    room = np.maximum(free, 0)
    asked = np.bincount(rows.app, ask, len(free))
    share = np.divide(room, asked, out=np.ones(len(free)), where=asked > room)
    granted = np.floor(ask * share[rows.app]).astype(np.int64)
    granted = np.where(ask > 0, holding + granted, target)
    result = np.where(target > ordered, np.maximum(granted, ordered), granted)
    return Reservation(result, np.where(result < target, target, 0))


def record_updates(rows: Rows, index: IntArray, sent: tuple[IntArray, IntArray], seq: IntArray | int) -> None:
    """Record that updates are sent for these rows: each counts with its largest value in flight.

    Only values that are sent may count: no capacity was reserved for an ordered value that the kernel has long lost.

    Args:
        rows: all rows.
        index: row indices.
        sent: quota and memory limit per index; 0: unchanged.
        seq: sequence of the message that carries them, per index.
    """
    for account, values in zip(ACCOUNTS, sent, strict=True):
        inflight = account.of(rows, "inflight")
        inflight[index] = np.maximum(inflight[index], values)
    rows.limit_update_seq[index] = seq
    rows.acked[index] = False
    rows.mismatches[index] = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Limits reported by an agent: the columns that batches and replies share."""

    index: IntArray
    """Row indices, unique."""
    report_seq: IntArray
    quota_us: IntArray
    limit_bytes: IntArray
    limit_update_seq: IntArray
    periodic: BoolArray
    """Periodic report: the number of such reports measures how long a difference lasts."""


def ack(rows: Rows, report: Report, now_ns: int) -> BoolArray:
    """Apply reported limits and acknowledge updates; returns which rows were newer than what is known.

    Out-of-order reports are ignored. An update is acknowledged once its agent has applied it; until then its value
    stays in flight.
    """
    newer = report.report_seq > rows.report_seq[report.index]
    if not newer.all():
        report = Report(*(getattr(report, column.name)[newer] for column in fields(Report)))
    index, mine = report.index, at(report.index)
    rows.report_seq[mine] = report.report_seq
    rows.report_ns[mine] = now_ns
    rows.quota_us[mine] = report.quota_us
    rows.limit_bytes[mine] = report.limit_bytes
    seen = report.limit_update_seq >= rows.limit_update_seq[mine]
    acked, periodic = (index, report.periodic) if seen.all() else (index[seen], report.periodic[seen])
    mine = at(acked)
    rows.acked[mine] = True
    for account in ACCOUNTS:
        account.of(rows, "inflight")[mine] = 0
    _resync_external_changes(rows, acked, periodic)
    return newer


def _resync_external_changes(rows: Rows, index: IntArray, periodic: BoolArray) -> None:
    """Where the kernel has committed something else than ordered for several reports, start from what it holds."""
    mine = at(index)
    admitted, quota_us, limit_bytes = rows.admitted[mine], rows.quota_us[mine], rows.limit_bytes[mine]
    differs = (quota_us != rows.quota_ordered_us[mine]) | (limit_bytes != rows.limit_ordered_bytes[mine])
    mismatches = np.where(differs & admitted, rows.mismatches[mine] + periodic, 0)
    rows.mismatches[mine] = mismatches
    unlimited = (quota_us == UNLIMITED) | (limit_bytes == UNLIMITED)
    resync(rows, index[(mismatches >= RESYNC_AFTER_REPORTS) | (unlimited & admitted)])


def resync(rows: Rows, index: IntArray) -> None:
    """Continue from the kernel's values for these rows, dropping what was ordered.

    A row that is unlimited there is no longer admitted: it needs initial limits again.
    """
    rows.mismatches[index] = 0
    rows.quota_ordered_us[index] = rows.quota_us[index]
    rows.limit_ordered_bytes[index] = rows.limit_bytes[index]
    unlimited = (rows.quota_us[index] == UNLIMITED) | (rows.limit_bytes[index] == UNLIMITED)
    rows.admitted[index[unlimited]] = False
