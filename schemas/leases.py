"""Leases: ownership of applications."""

from __future__ import annotations

from typing import ClassVar

from schemas.message import Count, Message


class Lease(Message):
    """Ownership with its epoch: a fencing token that rises with each owner."""

    type_name: ClassVar[str] = "turnbuckle.lease.v1.Lease"

    owner: str
    """Service and instance, for display."""
    epoch: Count
    time_ns: Count
