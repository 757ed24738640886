"""Subject tokens that nobody can guess: of inboxes, of reply subjects, of message ids."""

from __future__ import annotations

from secrets import token_urlsafe


def random_token() -> str:
    """128 random bits as 22 characters of base64url (RFC 4648), all of which a subject's token may hold."""
    return token_urlsafe(16)


class RandomTokens:
    """In place of nats-py's NUID, which counts up: its next token follows from those that were seen."""

    @staticmethod
    def next() -> bytearray:
        """As long as a NUID, on which nats-py relies."""
        return bytearray(random_token(), "ascii")
