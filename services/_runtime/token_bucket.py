"""A token bucket. Pure."""

from __future__ import annotations


class TokenBucket:
    """At most ``burst`` tokens at once, and ``per_s`` a second from then on."""

    __slots__ = ("_at_s", "_burst", "_per_s", "_tokens")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        """Full at ``now_s``, seconds of the clock that all later times are of."""
        self._burst, self._per_s = burst, per_s
        self._tokens, self._at_s = burst, now_s

    def take(self, now_s: float, tokens: float = 1.0) -> bool:
        """Take so many tokens; False: there are fewer, and none is taken."""
        self._refill(now_s)
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

    def is_full(self, now_s: float) -> bool:
        """Whether it is as if it had just been made."""
        self._refill(now_s)
        return self._tokens >= self._burst

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
