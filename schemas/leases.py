"""Ownership of applications: the members among the allocator's replicas, and their heartbeats."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import ClassVar, Final

from pydantic import Field

from schemas.message import Count, Message

RENDEZVOUS_RULE: Final = "rendezvous-blake2b-64"
"""Of several replicas that may serve an application the one with the highest hash owns it (Thaler and Ravishankar,
1998): when one joins or leaves, only what it owns moves."""


MEMBERS_KEY: Final = "members"
"""Key of the record in the bucket `leases`; beside it ``replica.<id>`` is the heartbeat of each replica."""


class Members(Message):
    """The replicas that share the applications: one record, from which the owner of every application follows.

    Changed by compare-and-set only, so all who have read the same record agree on every owner.
    """

    type_name: ClassVar[str] = "turnbuckle.lease.v1.Members"

    rule: str = RENDEZVOUS_RULE
    """How owners follow from the replicas. A replica that does not know the rule owns nothing."""
    epoch: Count = 0
    """Identity of the record, which only rises: the fencing token of what its members acquire by it."""
    previous: Count = 0
    """Epoch of the record that this one replaced."""
    replicas: tuple[str, ...] = ()
    """Identities of the members, sorted."""
    unable: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Members that cannot serve an application, for example since its subjects could not be subscribed to."""
    time_ns: Count = 0

    def owner(self, app: str) -> str:
        """The replica that owns an application if it is announced; empty: none can serve it, or the rule is unknown."""
        if self.rule != RENDEZVOUS_RULE:
            return ""
        unable = self.unable.get(app, ())
        return preferred_owner(app, tuple(name for name in self.replicas if name not in unable))


class Heartbeat(Message):
    """A replica is alive and has just read the members' record."""

    type_name: ClassVar[str] = "turnbuckle.lease.v1.Heartbeat"

    replica: str
    epoch: Count
    """Of the members' record that it knows."""
    time_ns: Count


class Lease(Message):
    """Ownership of one application in versions before the members' record; read only, for their epochs."""

    type_name: ClassVar[str] = "turnbuckle.lease.v1.Lease"

    owner: str
    """Service and instance, for display."""
    epoch: Count
    time_ns: Count


@lru_cache(maxsize=1 << 16)
def preferred_owner(app: str, replicas: tuple[str, ...]) -> str:
    """The replica with the highest rendezvous score for an application; empty: there is none."""
    return max(replicas, key=lambda replica: (_score(app, replica), replica), default="")


def _score(app: str, replica: str) -> bytes:
    return blake2b(f"{len(app)}:{app}{replica}".encode(), digest_size=8).digest()
