"""Nats-Msg-Id values that other users cannot predict.

A stream's duplicate window is shared by all its publishers: one that guessed another's next id and published it first
would make the server acknowledge and drop that event.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

from services._runtime.bus.api import BusError
from services._runtime.bus.options import BusOptions

_PURPOSE: Final = b"turnbuckle Nats-Msg-Id\0"
_ID_BYTES: Final = 16


class MessageIds:
    """Maps ids to keyed hashes, the same after a restart; users without a secret send the id itself."""

    def __init__(self, options: BusOptions) -> None:
        """Read the secret.

        Raises:
            BusError: its file cannot be read.
        """
        self._secret = _secret(options)

    def wire_id(self, message_id: str) -> str:
        """The id on the wire: 128 bits of HMAC-SHA256 (RFC 2104), base64url."""
        if self._secret is None:
            return message_id
        digest = hmac.digest(self._secret, _PURPOSE + message_id.encode("utf-8", "surrogatepass"), "sha256")
        return urlsafe_b64encode(digest[:_ID_BYTES]).decode("ascii").rstrip("=")


def _secret(options: BusOptions) -> bytes | None:
    path = options.nkey_seed_file or options.creds_file
    if path is not None:
        try:
            return Path(path).expanduser().read_bytes().strip()
        except OSError as error:
            raise BusError(f"credentials file {path} cannot be read: {error.strerror}") from None
    text = options.password or options.token
    return text.encode() if text else None
