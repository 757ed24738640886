"""What a report acknowledges: limits in the kernel, updates that are no longer in flight, values to start from again.

An update in flight may or may not have arrived, so a container counts with the largest value that may be in the kernel:
the reported one, or any update that its agent is not known to have applied (`budget.committed`). The agent makes this
sound: it rejects out-of-order updates, it raises only when it receives one, and what it delays is always a decrease
(`services.agent.limits.accepted_updates`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray, at
from services.allocator.arrays.limit_values import UNLIMITED
from services.allocator.state.rows import Rows

RESYNC_AFTER_REPORTS: Final = 5
"""A decrease waits at most 130 ms for its boundary; a difference that lasts longer is an external change."""


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
    exceeding = _exceeds_order(rows, index) if rows.defied[mine].any() else None
    rows.quota_us[mine] = report.quota_us
    rows.limit_bytes[mine] = report.limit_bytes
    if exceeding is not None:
        rows.defied[index[exceeding & ~_exceeds_order(rows, index)]] = 0
    seen = report.limit_update_seq >= rows.limit_update_seq[mine]
    acked, periodic = (index, report.periodic) if seen.all() else (index[seen], report.periodic[seen])
    mine = at(acked)
    rows.acked[mine] = True
    rows.quota_inflight_us[mine] = rows.limit_inflight_bytes[mine] = 0
    _resync_external_changes(rows, acked, periodic)
    return newer


def _resync_external_changes(rows: Rows, index: IntArray, periodic: BoolArray) -> None:
    """Where the kernel has committed something else than ordered for several reports, start from what it holds."""
    mine = at(index)
    admitted = rows.admitted[mine] & ~rows.observe_only[mine]
    quota_us, limit_bytes = rows.quota_us[mine], rows.limit_bytes[mine]
    differs = (quota_us != rows.quota_ordered_us[mine]) | (limit_bytes != rows.limit_ordered_bytes[mine])
    mismatches = np.where(differs & admitted, rows.mismatches[mine] + periodic, 0)
    rows.mismatches[mine] = mismatches
    resync(rows, index[(mismatches >= RESYNC_AFTER_REPORTS) | (_lacks_limits(rows, index) & admitted)])


def resync(rows: Rows, index: IntArray) -> None:
    """Continue from the kernel's values for these rows, dropping what was ordered.

    A row that is unlimited there is no longer admitted, and needs initial limits again, unless the kernel refuses them.
    """
    rows.mismatches[index] = 0
    rows.defied[index] += _exceeds_order(rows, index)
    rows.quota_ordered_us[index] = rows.quota_us[index]
    rows.limit_ordered_bytes[index] = rows.limit_bytes[index]
    rows.admitted[index[_lacks_limits(rows, index)]] = False


def _exceeds_order(rows: Rows, index: IntArray) -> BoolArray:
    """Whether admitted rows hold more than was ordered."""
    exceeds: BoolArray = rows.admitted[index] & (
        (rows.quota_us[index] > rows.quota_ordered_us[index])
        | (rows.limit_bytes[index] > rows.limit_ordered_bytes[index])
    )
    return exceeds


def _lacks_limits(rows: Rows, index: IntArray) -> BoolArray:
    lacks: BoolArray = ((rows.quota_us[index] == UNLIMITED) & (rows.quota_refusals[index] == 0)) | (
        (rows.limit_bytes[index] == UNLIMITED) & (rows.limit_refusals[index] == 0)
    )
    return lacks


def record_updates(rows: Rows, index: IntArray, sent: tuple[IntArray, IntArray], seq: IntArray | int) -> None:
    """Record that updates are sent for these rows: each counts with its largest value in flight.

    Only values that are sent may count: no capacity was reserved for an ordered value that the kernel has long lost.

    Args:
        rows: all rows.
        index: row indices.
        sent: quota and memory limit per index; 0: unchanged.
        seq: sequence of the message that carries them, per index.
    """
    for inflight, values in zip((rows.quota_inflight_us, rows.limit_inflight_bytes), sent, strict=True):
        inflight[index] = np.maximum(inflight[index], values)
    rows.limit_update_seq[index] = seq
    rows.acked[index] = False
    rows.mismatches[index] = 0
