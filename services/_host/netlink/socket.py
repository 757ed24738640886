"""Raw AF_NETLINK sockets (netlink(7), rtnetlink(7)): many requests in one datagram, dumps, subscriptions.

Neither class starts a thread or waits for ever; one socket belongs to one thread at a time. A socket stays in the
namespace that it was made in, and keeps that namespace alive, even where its name has gone: see `Namespace.present`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final, Self

from services._host.netlink.attributes import MalformedError, NetlinkError
from services._host.netlink.messages import (
    ACK,
    CREATE,
    DUMP,
    DUMP_INTERRUPTED,
    EXCLUSIVE,
    FIRST_OWN,
    HEADER,
    NLMSG_DONE,
    NLMSG_ERROR,
    REPLACE,
    REQUEST,
    Ack,
    Message,
    Request,
    framed,
    leading_int,
    read_ack,
)
from services._host.netlink.subscription import (
    LARGEST_DATAGRAM,
    RECEIVE_BYTES,
    SOL_NETLINK,
    Namespace,
    Received,
    Subscription,
    open_netlink,
)

BATCH_BYTES: Final = 32 << 10
BATCH_REQUESTS: Final = 64
ANSWER_WITHIN_S: Final = 5.0
DUMP_ATTEMPTS: Final = 5
_CAP_ACK, _EXT_ACK, _STRICT_CHECK = 10, 11, 12


class DumpInterruptedError(NetlinkError):
    """What was dumped changed meanwhile, at every attempt."""


class NetlinkSocket:
    """Requests and dumps. A failure in the middle closes the socket; the next call makes a new one."""

    def __init__(
        self,
        netns: str | None = None,
        *,
        receive_bytes: int = RECEIVE_BYTES,
        within_s: float = ANSWER_WITHIN_S,
        protocol: int = socket.NETLINK_ROUTE,
    ) -> None:
        self._netns, self._receive_bytes, self._within_s, self._protocol = netns, receive_bytes, within_s, protocol
        self._buffer = bytearray(LARGEST_DATAGRAM)
        self._sequence = 0
        self._socket: socket.socket | None = None
        self._connected()

    @property
    def port_id(self) -> int:
        """What events that we caused carry."""
        return int(self._connected().getsockname()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go; twice does no harm."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def write(self, requests: Sequence[Request]) -> list[Ack]:
        """Carry out in order, each whatever became of those before; many per datagram.

        The kernel answers errors, and the last of a datagram: that is one system call for dozens of requests.

        Raises:
            OSError: the socket itself failed.
            NetlinkError: the answers make no sense, or none came in time.
        """
        acks: list[Ack] = []
        start, size = 0, 0
        for index, request in enumerate(requests):
            length = 16 + ((len(request.payload) + 3) & ~3)
            if index > start and (index - start == BATCH_REQUESTS or size + length > BATCH_BYTES):
                acks += self._write_batch(requests[start:index])
                start, size = index, 0
            size += length
        if start < len(requests):
            acks += self._write_batch(requests[start:])
        return acks

    def write_one(self, request: Request) -> Ack:
        """As `write`, of one."""
        return self.write((request,))[0]

    def ask(self, requests: Sequence[Request]) -> list[bytes | None]:
        """The payload of the kernel's one answer to each question; None: there is no such thing (any more).

        Raises:
            OSError: the socket itself failed.
            NetlinkError: the answers make no sense, or none came in time.
        """
        answers: list[bytes | None] = []
        for start in range(0, len(requests), BATCH_REQUESTS):
            answers += self._ask_batch(requests[start : start + BATCH_REQUESTS])
        return answers

    def dump(self, request: Request, *, attempts: int = DUMP_ATTEMPTS) -> list[Message]:
        """Every message of a dump, taken again while something changed during it (NLM_F_DUMP_INTR, EINTR).

        Raises:
            DumpInterruptedError: at each of `attempts`.
            OSError: the kernel refuses, or the socket failed.
            NetlinkError: the answer makes no sense, or did not come in time.
        """
        return [
            Message(kind, flags, port_id, data[start:end])
            for data in self.dump_datagrams(request, attempts=attempts)
            for kind, flags, _, port_id, start, end in framed(data)
            if kind >= FIRST_OWN
        ]

    def dump_datagrams(self, request: Request, *, attempts: int = DUMP_ATTEMPTS) -> list[bytes]:
        """As `dump`, but the datagrams as they came, for who reads only some of each; the last holds NLMSG_DONE."""
        for _ in range(attempts):
            try:
                taken = self._dump_once(request)
            except BaseException:
                self.close()  # the rest of the answer would stand before the next one
                raise
            if taken is not None:
                return taken
        raise DumpInterruptedError(f"a dump (message type {request.kind}) changed {attempts} times while it was taken")

    def _write_batch(self, requests: Sequence[Request]) -> list[Ack]:
        last = len(requests) - 1
        first = self._send([r if i < last else r._replace(flags=r.flags | ACK) for i, r in enumerate(requests)])
        refused: dict[int, Ack] = {}
        lost, done = False, False
        try:
            while not done:
                try:
                    data = self._receive()
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    # The kernel has carried out everything within send(): what it could say is in the buffer.
                    lost = True
                    self._connected().settimeout(0.0)
                    continue
                except NetlinkError:
                    if lost:
                        break
                    raise
                for kind, flags, answered, _, start, end in framed(data):
                    index = (answered - first) & 0xFFFFFFFF
                    if kind != NLMSG_ERROR or index > last:
                        continue
                    refused[index] = read_ack(data, flags, start, end)
                    done = done or index == last
        except BaseException:
            self.close()
            raise
        if lost:
            self.close()  # so that nothing late is taken for the next answer
            return [refused.get(index, Ack(errno.ENOBUFS)) for index in range(last + 1)]
        return [refused.get(index, _DONE_ACK) for index in range(last + 1)]

    def _ask_batch(self, requests: Sequence[Request]) -> list[bytes | None]:
        first = self._send(requests)
        answers: dict[int, bytes | None] = {}
        try:
            while len(answers) < len(requests):
                data = self._receive()
                for kind, _, answered, _, start, end in framed(data):
                    index = (answered - first) & 0xFFFFFFFF
                    if index < len(requests):
                        answers[index] = data[start:end] if kind >= FIRST_OWN else None
        except BaseException:
            self.close()
            raise
        return [answers[index] for index in range(len(requests))]

    def _dump_once(self, request: Request) -> list[bytes] | None:
        """None where it was interrupted."""
        sequence = self._send((request._replace(flags=request.flags | DUMP),))
        datagrams: list[bytes] = []
        interrupted = False
        while True:
            data = self._receive()
            is_answer = True
            for kind, flags, answered, _, start, end in framed(data):
                if answered != sequence:
                    is_answer = False
                    break
                interrupted = interrupted or bool(flags & DUMP_INTERRUPTED)
                if kind not in {NLMSG_DONE, NLMSG_ERROR}:
                    continue
                number = -leading_int(data, start, end)
                if number in {0, errno.EINTR}:
                    datagrams.append(data)
                    return None if interrupted or number else datagrams
                raise OSError(number, f"dump (message type {request.kind}): {os.strerror(number)}")
            if is_answer:
                datagrams.append(data)

    def _send(self, requests: Sequence[Request]) -> int:
        """Sequence number of the first; each further one has the next."""
        first = (self._sequence + 1) & 0xFFFFFFFF
        parts: list[bytes] = []
        for index, (kind, flags, payload) in enumerate(requests):
            length, sequence = 16 + len(payload), (first + index) & 0xFFFFFFFF
            parts += (HEADER.pack(length, kind, flags | REQUEST, sequence, 0), payload, bytes(-length % 4))
        self._sequence = (first + len(requests) - 1) & 0xFFFFFFFF
        self._connected().send(b"".join(parts))
        return first

    def _receive(self) -> bytes:
        """The next datagram of the kernel; those of other senders are dropped."""
        while True:
            try:
                size, sender = self._connected().recvfrom_into(self._buffer, 0, socket.MSG_TRUNC)
            except BlockingIOError as error:
                raise NetlinkError(f"the kernel has not answered within {self._within_s:g} s") from error
            if sender[0] != 0:
                continue
            if size > len(self._buffer):
                raise MalformedError(f"a datagram of {size} bytes: the most is {len(self._buffer)}")
            return bytes(memoryview(self._buffer)[:size])

    def _connected(self) -> socket.socket:
        if self._socket is None:
            opened = open_netlink(self._netns, self._receive_bytes, self._protocol)
            for option in (_CAP_ACK, _EXT_ACK, _STRICT_CHECK):
                opened.setsockopt(SOL_NETLINK, option, 1)
            whole, part = divmod(self._within_s, 1.0)
            # Cheaper than settimeout(), which polls before each read.
            within = struct.pack("@ll", int(whole), int(part * 1e6))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, within)
            self._socket = opened
        return self._socket


_DONE_ACK: Final = Ack(0)

__all__ = [
    "ACK",
    "CREATE",
    "DUMP",
    "EXCLUSIVE",
    "REPLACE",
    "REQUEST",
    "Ack",
    "DumpInterruptedError",
    "MalformedError",
    "Message",
    "Namespace",
    "NetlinkError",
    "NetlinkSocket",
    "Received",
    "Request",
    "Subscription",
    "framed",
]
