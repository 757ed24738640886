"""Iterations of workers from the kernel's records of single connections (kernel/records.h). Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

SETTLE_NS: Final = 100_000_000
"""Connections of one worker begin an iteration within this time of each other; so long is waited for the others."""
RECORD: Final = struct.Struct("=5QI2H16s16s16s")
"""``struct tb_iteration``."""


class FlowRecord(NamedTuple):
    """One iteration: of one connection, or of all of a worker's; times by CLOCK_MONOTONIC."""

    time_ns: int
    period_ns: int
    sending_ns: int
    sent_bytes: int
    cgroup_id: int
    retransmissions: int
    congestion_control: str

    @property
    def end_ns(self) -> int:
        """When the next iteration began."""
        return self.time_ns + self.period_ns


def parse_records(records: bytes) -> list[FlowRecord]:
    """What the loader handed over.

    Raises:
        ValueError: these are no whole records.
    """
    if len(records) % RECORD.size:
        raise ValueError(f"{len(records)} bytes are no records of {RECORD.size} bytes each")
    return [FlowRecord._make((*fields[:6], _text(fields[-1]))) for fields in RECORD.iter_unpack(records)]


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("ascii", errors="replace")


def merge_records(records: Iterable[FlowRecord], now_ns: int) -> tuple[list[FlowRecord], list[FlowRecord]]:
    """One record per worker and iteration, and those that others of the same iteration may still follow.

    A worker has a connection to each of its neighbours: their bytes add up. Period and congestion control are those of
    the connection that sent the most.
    """
    merged: list[FlowRecord] = []
    pending: list[FlowRecord] = []
    for iteration in _iterations(records):
        if now_ns < max(record.end_ns for record in iteration) + SETTLE_NS:
            pending += iteration
        else:
            merged.append(_sum(iteration))
    return sorted(merged), pending


def _iterations(records: Iterable[FlowRecord]) -> Iterator[list[FlowRecord]]:
    """Records of the same worker that begin less than half of a period after the first of them."""
    ordered = sorted(records, key=lambda record: (record.cgroup_id, record.time_ns))
    for _, of_worker in groupby(ordered, key=lambda record: record.cgroup_id):
        together: list[FlowRecord] = []
        for record in of_worker:
            if together and record.time_ns - together[0].time_ns >= together[0].period_ns / 2:
                yield together
                together = []
            together.append(record)
        yield together


def _sum(iteration: Sequence[FlowRecord]) -> FlowRecord:
    largest = max(iteration, key=lambda record: (record.sent_bytes, -record.time_ns))
    begin_ns = min(record.time_ns for record in iteration)
    return largest._replace(
        time_ns=begin_ns,
        sending_ns=max(record.time_ns + record.sending_ns for record in iteration) - begin_ns,
        sent_bytes=sum(record.sent_bytes for record in iteration),
        retransmissions=sum(record.retransmissions for record in iteration),
    )
