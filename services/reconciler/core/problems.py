"""Problems that keep rules out of sync, each with its remedy, for status and events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_EXAMPLES: Final = 3


class ProblemKind(StrEnum):
    """Kinds of problems; the values are metric labels."""

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
    """One problem in one place, with the objects that it concerns."""

    kind: ProblemKind
    place: str
    """Usually a device."""
    what: str
    """The problem, without the subjects."""
    remedy: str
    subjects: tuple[str, ...] = ()
    """Objects concerned (MACs), sorted; () where the place is enough."""

    @property
    def text(self) -> str:
        """One sentence with at most three of the subjects, and the remedy."""
        names = ", ".join(self.subjects[:_EXAMPLES])
        more = len(self.subjects) - _EXAMPLES
        listed = f" ({names}{f' and {more} more' if more > 0 else ''})" if names else ""
        return f"{self.place}: {self.what}{listed}; {self.remedy}"


def problem(kind: ProblemKind, place: str, what: str, remedy: str, subjects: Iterable[str] = ()) -> Problem:
    """Make a problem; subjects are sorted and deduplicated."""
    return Problem(kind, place, what, remedy, tuple(sorted(set(subjects))))
