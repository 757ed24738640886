"""Who may read: the key of a console, and the cookie that a browser gets for it. Pure: no clock, no I/O.

The key is compared in constant time, and wrong ones of an address are counted. The cookie holds its expiry and an HMAC
of it under the key: nothing is stored, cookies stay valid over a restart with the same key, and another key ends all.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import Enum
from typing import Final

COOKIE_AGE_S: Final = 7 * 86_400
WRONG_KEYS: Final = 10
"""Wrong keys of one address within `WRONG_KEYS_WINDOW_S`; then none of its keys is looked at until that is over."""
WRONG_KEYS_WINDOW_S: Final = 60.0
_ADDRESSES: Final = 1_024
"""That are remembered for wrong keys; the oldest is forgotten."""


class AccessResult(Enum):
    """Whether a request may read."""

    ALLOWED = "allowed"
    NO_KEY = "no key"
    WRONG_KEY = "wrong key"
    TOO_MANY = "too many wrong keys"


class Access:
    """One key, which everybody who may read has."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._wrong: dict[str, list[float]] = {}
        """By address, when: at most `WRONG_KEYS` each."""

    def check(self, headers: Mapping[str, str], cookie_name: str, now_s: float) -> AccessResult:
        """By the cookie. ``now_s``: since the epoch."""
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        value = next((value for name, _, value in pairs if name == cookie_name), "")
        expires, _, _ = value.partition(".")
        if not expires.isascii() or not expires.isdigit() or len(expires) > 12:
            return AccessResult.NO_KEY
        genuine = hmac.compare_digest(value.encode(), self._signed(int(expires)).encode())
        return AccessResult.ALLOWED if genuine and now_s < int(expires) else AccessResult.NO_KEY

    def check_key(self, given: str, address: str, now_s: float) -> AccessResult:
        """By the key itself, of a client at an address."""
        if not given:
            return AccessResult.NO_KEY
        recent = [at_s for at_s in self._wrong.get(address, ()) if 0 <= now_s - at_s < WRONG_KEYS_WINDOW_S]
        if len(recent) >= WRONG_KEYS:
            return AccessResult.TOO_MANY
        if hmac.compare_digest(given.encode(), self._key):
            return AccessResult.ALLOWED
        self._wrong.pop(address, None)
        self._wrong[address] = [*recent, now_s]
        if len(self._wrong) > _ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return AccessResult.WRONG_KEY

    def cookie(self, name: str, now_s: float, *, secure: bool) -> str:
        """A Set-Cookie header's value for a browser that had the key. ``secure``: it came over TLS."""
        value = self._signed(int(now_s) + COOKIE_AGE_S)
        flags = "; Secure" if secure else ""
        return f"{name}={value}; Path=/; Max-Age={COOKIE_AGE_S}; HttpOnly; SameSite=Strict{flags}"

    def _signed(self, expires_s: int) -> str:
        mac = hmac.new(self._key, f"turnbuckle console until {expires_s}".encode(), hashlib.sha256)
        return f"{expires_s}.{mac.hexdigest()}"
