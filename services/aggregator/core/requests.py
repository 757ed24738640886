"""What a request for a job's aggregation leads to, by what is known of the job. Pure."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum

from schemas.aggregations import Aggregation, AggregationRequest


class Action(Enum):
    """What is done with a request that is not refused."""

    ANSWER = "answer"
    """As before: it was placed by the same request."""
    PLACE = "place"
    """On an aggregator, in place of any earlier attempt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Code as of HTTP, and a sentence."""

    code: int
    reason: str


def decide(known: Aggregation | None, request: AggregationRequest) -> Action | Refusal:
    """What to do; who does not have the job's claim learns nothing of it but that the name is in use."""
    if known is None:
        return Action.PLACE
    if not has_claim(known, request.claim):
        return Refusal(403, f"the job {request.job} was placed with another claim: repeat that, or use another name")
    if request.attempt > known.attempt:
        return Action.PLACE
    return _same_or_earlier(known, request)


def _same_or_earlier(known: Aggregation, request: AggregationRequest) -> Action | Refusal:
    attempt = f"attempt {known.attempt} of {known.job}"
    if request.attempt < known.attempt:
        return Refusal(409, f"{attempt} was placed already")
    if known.lost:
        return Refusal(410, f"{attempt} is lost ({known.lost}): begin anew as attempt {known.attempt + 1}")
    if (known.ranks, known.values, known.optimizer) != (request.ranks, request.values, request.optimizer):
        return Refusal(409, f"{attempt} has other ranks, values or another optimizer: ask for the next attempt")
    return Action.ANSWER


def digest(claim: str) -> str:
    """What is kept of a claim."""
    return hashlib.sha256(claim.encode()).hexdigest()


def has_claim(known: Aggregation, claim: str) -> bool:
    """Whether it is the job's; takes the same time whatever differs."""
    return hmac.compare_digest(known.claim_sha256, digest(claim))


def next_version(known: Aggregation | None) -> int:
    """Of all ranges of the next attempt: above each one before."""
    return 1 + max((each.version for each in known.ranges), default=0) if known is not None else 1
