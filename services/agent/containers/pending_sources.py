"""Discovery sources that have not answered yet: until all have, the list of containers is incomplete. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.containers import ContainerSource


class Inventory:
    """Whether the list of containers is complete: which discovery sources have not answered since the agent's start.

    An agent that starts again samples at once, while the Docker Engine or the container runtime may answer late. Until
    each source has named all that it knows, or its timeout has passed, a container that the agent does not name is not
    known to be gone (decision 0034). Containers that are recorded in the state directory are sampled from the start;
    the first full answer of their source says which of them still exist.
    """

    def __init__(self, deadlines_ns: Mapping[ContainerSource, int]) -> None:
        """Begin with all sources pending.

        Args:
            deadlines_ns: by source, monotonic: from then on its silence no longer counts.
        """
        self._pending = dict(deadlines_ns)
        self._unconfirmed: dict[str, ContainerSource] = {}

    @property
    def pending(self) -> tuple[ContainerSource, ...]:
        """Sources that have neither answered nor timed out."""
        return tuple(sorted(self._pending))

    @property
    def complete(self) -> bool:
        """Whether no source is pending."""
        return not self._pending

    def expire(self, now_ns: int) -> tuple[ContainerSource, ...]:
        """Stop waiting for sources whose deadline has passed; returns them, once each. ``now_ns``: monotonic."""
        expired = tuple(source for source in self.pending if now_ns >= self._pending[source])
        for source in expired:
            del self._pending[source]
        return expired

    def recorded(self, container_id: str, source: ContainerSource) -> None:
        """A container is sampled because the state directory names it."""
        self._unconfirmed[container_id] = source

    def confirm(self, container_id: str) -> bool:
        """Its source has named it, or it is gone. Returns whether it was only recorded before."""
        return self._unconfirmed.pop(container_id, None) is not None

    def answered(self, source: ContainerSource, *, exists: bool) -> list[str]:
        """The source has named all that it knows; returns recorded containers (ids) that it no longer has.

        Args:
            source: it.
            exists: False: there is no such engine on this host now, which says nothing about its containers.
        """
        self._pending.pop(source, None)
        if not exists:
            return []
        gone = [container_id for container_id, owner in self._unconfirmed.items() if owner == source]
        for container_id in gone:
            del self._unconfirmed[container_id]
        return gone
