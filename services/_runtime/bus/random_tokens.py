"""Unpredictable subject tokens for inboxes, reply subjects and message ids."""

from __future__ import annotations

from secrets import token_urlsafe


def random_token() -> str:
    """128 random bits as 22 characters of base64url (RFC 4648), all valid in a subject token."""
    return token_urlsafe(16)


class RandomTokens:
    """Replaces nats-py's NUID, a counter whose next value can be derived from earlier ones."""

    @staticmethod
    def next() -> bytearray:
        """A token of a NUID's length, which nats-py expects."""
        return bytearray(random_token(), "ascii")
