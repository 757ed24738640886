"""Records of connections under MLTCP, as the kernel writes them."""

from __future__ import annotations

from typing import Final

from services.runner.core.flow_records import RECORD, FlowRecord

MS: Final = 10**6


def record(
    time_ms: int = 0, period_ms: int = 1_000, sending_ms: int = 300, sent: int = 1_000, group: int = 7
) -> FlowRecord:
    """One iteration of a connection of a control group, with one retransmission."""
    return FlowRecord(time_ms * MS, period_ms * MS, sending_ms * MS, sent, group, 1, "mltcp")


def packed(one: FlowRecord) -> bytes:
    """``struct tb_iteration``."""
    name = one.congestion_control.encode().ljust(16, b"\0")
    return RECORD.pack(*one[:6], 1_000, 2_000, bytes(16), bytes(16), name)
