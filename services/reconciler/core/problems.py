"""What keeps a rule from being right, each with its remedy, for status and audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_EXAMPLES: Final = 3


class ProblemKind(StrEnum):
    """What is wrong; the values stand in metrics."""

    PORT_MISSING = "port_missing"
    PORT_UNBRIDGED = "port_unbridged"
    PORT_MAC = "port_mac"
    INGRESS_QDISC = "ingress_qdisc"
    VTEP_MISSING = "vtep_missing"
    VTEP_AMBIGUOUS = "vtep_ambiguous"
    VTEP_ADDRESS = "vtep_address"
    ENCAPSULATION_DEVICE = "encapsulation_device"
    TWO_DESTINATIONS = "two_destinations"
    TWO_PLACES = "two_places"
    MULTIHOMED = "multihomed"
    UNUSABLE_DESTINATION = "unusable_destination"
    CLAIMED_ELSEWHERE = "claimed_elsewhere"
    SHADOWED = "shadowed"
    PREF_TAKEN = "pref_taken"
    RULE_TAKEN = "rule_taken"
    REFUSED = "refused"
    TABLE_FULL = "table_full"
    UNSUPPORTED = "unsupported"
    FORBIDDEN = "forbidden"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong in one place, with everything that it concerns."""

    kind: ProblemKind
    place: str
    """A device, mostly."""
    what: str
    """What is wrong, without the subjects."""
    remedy: str
    subjects: tuple[str, ...] = ()
    """What it concerns (MACs), sorted; () where the place says it all."""

    @property
    def text(self) -> str:
        """One sentence with at most three of the subjects, and the remedy."""
        names = ", ".join(self.subjects[:_EXAMPLES])
        more = len(self.subjects) - _EXAMPLES
        listed = f" ({names}{f' and {more} more' if more > 0 else ''})" if names else ""
        return f"{self.place}: {self.what}{listed}; {self.remedy}"


def problem(kind: ProblemKind, place: str, what: str, remedy: str, subjects: Iterable[str] = ()) -> Problem:
    """A problem whose subjects are sorted and listed once."""
    return Problem(kind, place, what, remedy, tuple(sorted(set(subjects))))
