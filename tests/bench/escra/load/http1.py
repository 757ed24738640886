"""HTTP/1.1 (RFC 9112) as far as a load client needs it: requests as bytes, and answers out of a stream of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_MOST_HEAD_BYTES: Final = 64 << 10


class AnswerError(ValueError):
    """The peer speaks no HTTP/1.1 that we understand: the connection is of no further use."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    keeps: bool
    """Whether the connection can take another request."""


def encode_request(host: str, method: str, path: str, body: bytes) -> bytes:
    """A request on a connection that is kept."""
    length = f"Content-Length: {len(body)}\r\n" if body or method in {"POST", "PUT", "PATCH"} else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n".encode("latin-1") + body


@dataclass(slots=True)
class AnswerReader:
    """Takes bytes as they come; one answer at a time."""

    _buffer: bytearray = field(default_factory=bytearray)
    _head: tuple[int, int | None, bool] | None = None
    """Status, length of the body (None: in chunks), whether the connection is kept."""
    _chunks: bytearray = field(default_factory=bytearray)

    @property
    def begun(self) -> bool:
        """Whether a part of an answer is there."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> Answer | None:
        """More bytes; the answer once it is whole.

        Raises:
            AnswerError: these are no answer.
        """
        self._buffer += data
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        status, length, keeps = self._head
        body = self._take_chunked() if length is None else self._take(length)
        if body is None:
            return None
        self._head = None
        return Answer(status, body, keeps)

    def _read_head(self) -> bool:
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            if len(self._buffer) > _MOST_HEAD_BYTES:
                raise AnswerError("an answer's head does not end")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + len(_HEAD_END)]
        version, _, rest = lines[0].partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise AnswerError(f"no status line: {lines[0][:80]!r}")
        fields = {
            name.strip().lower(): value.strip().lower() for name, _, value in (one.partition(b":") for one in lines)
        }
        keeps = version != b"HTTP/1.0" and fields.get(b"connection") != b"close"
        if fields.get(b"transfer-encoding") == b"chunked":
            self._head = int(rest[:3]), None, keeps
        elif (length := fields.get(b"content-length", b"0" if rest[:3] == b"204" else b"")).isdigit():
            self._head = int(rest[:3]), int(length), keeps
        else:
            raise AnswerError("an answer without a length")
        return True

    def _take(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _take_chunked(self) -> bytes | None:
        while True:
            line_end = self._buffer.find(b"\r\n")
            if line_end < 0:
                return None
            try:
                size = int(bytes(self._buffer[:line_end]).partition(b";")[0], 16)
            except ValueError as error:
                raise AnswerError("a chunk without a size") from error
            if len(self._buffer) < line_end + 2 + size + 2:
                return None
            self._chunks += self._buffer[line_end + 2 : line_end + 2 + size]
            del self._buffer[: line_end + 2 + size + 2]  # no trailers: none of the bench's servers sends any
            if not size:
                body = bytes(self._chunks)
                self._chunks.clear()
                return body
