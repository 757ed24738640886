"""A replicated job's steps through aggregators: gradients out, updated parameters back.

In place of an all-reduce and an optimizer in every rank. A push is sent again where a connection breaks or its range
has moved: aggregators take each (range, step, rank) once. Where an aggregator does not answer, the service that
placed the ranges is asked where they are now: they may have moved, or be lost with it.
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor

from services._jobs.aggregation_frames import (
    NONCE_BYTES,
    PREFIX,
    VALUE_BYTES,
    AnyHeader,
    Challenge,
    DeniedHeader,
    FetchHeader,
    FrameError,
    Hello,
    MovedHeader,
    PushHeader,
    RangePlace,
    RefusedHeader,
    ResultHeader,
    Welcome,
    address_of,
    client_proof,
    decode_header,
    decode_prefix,
    encode_frame,
    server_proof,
)
from services.trainer.worker.gather import RankFailedError

_PAUSE_S: Final = 0.05
"""Between two attempts to reach an aggregator."""
_BROKEN: Final = (OSError, EOFError)
ASK_WHERE_BROKEN_S: Final = 1.0
"""Between two questions where the ranges are, while an aggregator cannot be reached."""
ASK_WHERE_SILENT_S: Final = 10.0
"""The same, while it says nothing: other ranks may take as long for a step."""


class AggregationLostError(Exception):
    """The job's ranges are gone with their aggregator; the text says how. They can be placed anew."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What an optimizer keeps beside the parameters."""

    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    """By name in ``torch.optim``, each as long as the parameters."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Once for all values, such as ``step``."""


@dataclass(slots=True)
class _Turn:
    """What is sent for each range, and the answers."""

    step: int
    deadline_s: float
    missing: set[int]
    """Ranges without an answer."""
    result: Tensor
    sent: Sequence[memoryview] = ()
    """Bytes of parameters or a gradient, then of moments; none: a moment is asked for."""
    moments: Moments = field(default_factory=Moments)
    """Those that are sent."""
    fetched: str = ""
    """The moment that is asked for."""
    scalars: dict[str, float] = field(default_factory=dict)
    """That came with it."""

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def header(self, index: int, version: int) -> PushHeader | FetchHeader:
        if self.fetched:
            return FetchHeader(range=index, step=self.step, version=version, vector=self.fetched)
        names, scalars = tuple(self.moments.vectors), dict(self.moments.scalars)
        return PushHeader(range=index, step=self.step, version=version, vectors=names, scalars=scalars)

    def content(self, place: RangePlace) -> memoryview:
        parts = [vector[place.first * VALUE_BYTES : place.last * VALUE_BYTES] for vector in self.sent]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def take(self, link: _Link, header: ResultHeader, place: RangePlace, content_bytes: int) -> None:
        first, last = place.first * VALUE_BYTES, place.last * VALUE_BYTES
        if content_bytes != last - first:
            raise FrameError(f"a result of {content_bytes} bytes for a range of {last - first}")
        if (header.step, header.vector) == (self.step, self.fetched) and header.range in self.missing:
            link.receive_into(_bytes_of(self.result)[first:last])
            self.missing.remove(header.range)
            self.scalars |= header.scalars
        else:  # an answer that came twice, to a push that was sent twice
            link.receive_into(memoryview(bytearray(content_bytes)))


class _Link:
    """One connection to an aggregator, and what was sent on it."""

    def __init__(self, address: str, identity: tuple[str, int, bytes], within_s: float) -> None:
        self._socket = socket.create_connection(address_of(address), within_s)
        self.pushed: set[tuple[int, int, int]] = set()
        """Range, step, version."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._join(*identity)
        except (*_BROKEN, ValueError):
            self._socket.close()
            raise

    def _join(self, job: str, rank: int, key: bytes) -> None:
        challenge = self.receive_header()[0]
        if not isinstance(challenge, Challenge):
            raise FrameError("a challenge was due")
        nonce = os.urandom(NONCE_BYTES)
        proof = client_proof(key, (job, "worker", rank), challenge.nonce, nonce)
        self._socket.sendall(encode_frame(Hello(job=job, role="worker", rank=rank, nonce=nonce, proof=proof)))
        welcome = self.receive_header()[0]
        if isinstance(welcome, DeniedHeader):
            raise FrameError(f"job {job} with this key and rank {rank} is not there")
        expected = server_proof(key, challenge.nonce, nonce)
        if not isinstance(welcome, Welcome) or not hmac.compare_digest(welcome.proof, expected):
            raise FrameError("the aggregator does not have the job's key")

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def within(self, seconds: float) -> None:
        """Bound what each of the following calls waits for the peer."""
        self._socket.settimeout(max(seconds, 1e-3))

    def push(self, header: PushHeader | FetchHeader, values: memoryview) -> None:
        """Send a range's values, or a question about it."""
        self._socket.sendall(encode_frame(header, values.nbytes))
        self._socket.sendall(values)
        self.pushed.add((header.range, header.step, header.version))

    def receive_header(self) -> tuple[AnyHeader, int]:
        """The next frame's header, and the bytes of content that follow."""
        header_bytes, content_bytes = decode_prefix(self._exactly(bytearray(PREFIX.size)))
        return decode_header(self._exactly(bytearray(header_bytes))), content_bytes

    def receive_into(self, target: memoryview) -> None:
        """The content that follows."""
        while target:
            read = self._socket.recv_into(target)
            if not read:
                raise EOFError("the aggregator has ended the connection")
            target = target[read:]

    def _exactly(self, target: bytearray) -> bytearray:
        self.receive_into(memoryview(target))
        return target

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class PushPull:
    """One rank's connections to the aggregators of its job."""

    def __init__(
        self,
        identity: tuple[str, int, bytes],
        places: Sequence[RangePlace],
        timeout_s: float = 300.0,
        where: Callable[[], Sequence[RangePlace]] | None = None,
    ) -> None:
        """Connections are made when they are needed.

        Args:
            identity: the job as the aggregators know it, this worker's rank in it, and the key of the job's workers.
            places: where each range of the flat vector begins; together they cover it, in order, without gaps.
            timeout_s: for one step, with all that the other ranks take for it.
            where: the ranges' places now, or those before where that is not known; raises `AggregationLostError`.
                None: only aggregators are asked.

        Raises:
            ValueError: the places do not cover a vector.
        """
        ends = [0, *(place.last for place in places)]
        if not places or any(place.first != end or place.last <= end for place, end in zip(places, ends, strict=False)):
            raise ValueError("ranges have to follow one another from 0 on, each with a value at least")
        self._identity = identity
        self._where = where
        self._asked_s = 0.0
        self.places = list(places)
        """Where ranges are now, as far as this rank knows."""
        self._timeout_s = timeout_s
        self._links: dict[str, _Link] = {}
        self._step = -1

    def start(self, parameters: Tensor, moments: Moments | None = None) -> Tensor:
        """Give the parameters to begin with; returns rank 0's, which count for all.

        Args:
            parameters: as `reduce` takes a gradient.
            moments: rank 0's, to go on with; None or empty: they begin anew.

        Raises:
            RankFailedError: not all ranks' have come within ``timeout_s``, or an aggregator refuses them.
            AggregationLostError: the ranges are lost.
        """
        assert self._step < 0
        given = moments if moments is not None and self._identity[1] == 0 else Moments()
        sent = [self._checked(vector) for vector in (parameters, *given.vectors.values())]
        self._step = 0
        return self._exchange(self._turn(sent=sent, moments=given)).result

    def reduce(self, flat: Tensor) -> Tensor:
        """Give this rank's gradient; returns the parameters after the step on the sum of all ranks' gradients.

        Args:
            flat: fp32 on the processor, one-dimensional, as long as the ranges together.

        Raises:
            RankFailedError: not all ranks' have come within ``timeout_s``, or an aggregator refuses it.
            AggregationLostError: the ranges are lost.
        """
        assert self._step >= 0
        sent = [self._checked(flat)]
        self._step += 1
        return self._exchange(self._turn(sent=sent)).result

    def moments(self, names: Sequence[str]) -> Moments:
        """The optimizer's moments after the last step. No rank may have pushed the next one for all ranges: not this.

        Args:
            names: in ``torch.optim``.

        Raises:
            RankFailedError: an aggregator does not answer within ``timeout_s``, or has no such moment.
            AggregationLostError: the ranges are lost.
        """
        turns = {name: self._exchange(self._turn(fetched=name)) for name in names}
        scalars = {key: value for turn in turns.values() for key, value in turn.scalars.items()}
        return Moments({name: turn.result for name, turn in turns.items()}, scalars)

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _checked(self, flat: Tensor) -> memoryview:
        if flat.dtype != torch.float32 or flat.device.type != "cpu" or flat.shape != (self.places[-1].last,):
            raise ValueError(f"not a vector of {self.places[-1].last} fp32 values on the processor")
        return _bytes_of(flat.detach().contiguous())

    def _turn(self, **fields: Any) -> _Turn:
        deadline_s, missing = time.monotonic() + self._timeout_s, set(range(len(self.places)))
        return _Turn(self._step, deadline_s, missing, torch.empty(self.places[-1].last), **fields)

    def _exchange(self, turn: _Turn) -> _Turn:
        """Until every range has answered."""
        self._asked_s = time.monotonic()
        for link in self._links.values():
            link.pushed.clear()
        while turn.missing:
            if self._push(turn):
                for address in self._readable(turn):
                    self._take(turn, address)
        return turn

    def _push(self, turn: _Turn) -> bool:
        """Every missing range to its aggregator, unless it was sent on the present connection; False: one broke."""
        for index in sorted(turn.missing):
            place = self.places[index]
            try:
                link = self._link(turn, place.address)
                if (index, turn.step, place.version) not in link.pushed:
                    link.push(turn.header(index, place.version), turn.content(place))
            except (*_BROKEN, ValueError) as error:
                self._failed(turn, place.address, error)
                return False
        return True

    def _link(self, turn: _Turn, address: str) -> _Link:
        left_s = max(turn.left_s, 1e-3)
        if address not in self._links:
            self._links[address] = _Link(address, self._identity, left_s)
        self._links[address].within(left_s)
        return self._links[address]

    def _readable(self, turn: _Turn) -> list[str]:
        """Aggregators of missing ranges that have sent something."""
        awaited = {self.places[index].address for index in turn.missing} & self._links.keys()
        if not awaited:
            return []
        with selectors.DefaultSelector() as selector:
            for address in awaited:
                selector.register(self._links[address], selectors.EVENT_READ, address)
            left_s = max(turn.left_s, 0)
            ready = selector.select(left_s if self._where is None else min(left_s, ASK_WHERE_SILENT_S))
        if not ready and turn.left_s <= 0:
            self._fail(turn, f"no answer within {self._timeout_s:g} s")
        if not ready:
            self._ask(ASK_WHERE_SILENT_S)
        return [key.data for key, _ in ready]

    def _take(self, turn: _Turn, address: str) -> None:
        """One answer of an aggregator."""
        try:
            link = self._link(turn, address)
            header, content_bytes = link.receive_header()
            match header:
                case ResultHeader(range=index):
                    if index >= len(self.places):
                        raise FrameError(f"a result of range {index}, which does not exist")
                    turn.take(link, header, self.places[index], content_bytes)
                case MovedHeader():
                    self._follow(header.range, header.version, header.address)
                case RefusedHeader(step=step, reason=reason) if step == turn.step:
                    self._fail(turn, f"{address} refuses range {header.range}: {reason}")
        except (*_BROKEN, ValueError) as error:
            self._failed(turn, address, error)

    def _follow(self, index: int, version: int, address: str) -> bool:
        """Whether the range has gone there."""
        if index >= len(self.places) or version <= self.places[index].version:
            return False
        self.places[index] = self.places[index]._replace(version=version, address=address)
        return True

    def _ask(self, after_s: float) -> bool:
        """Ask where the ranges are, so long after the question before; whether one has gone elsewhere."""
        if self._where is None or time.monotonic() < self._asked_s + after_s:
            return False
        places = self._where()
        self._asked_s = time.monotonic()
        followed = [self._follow(index, place.version, place.address) for index, place in enumerate(places)]
        return any(followed)

    def _failed(self, turn: _Turn, address: str, error: Exception) -> None:
        """Connect again after a pause; or the job is not at this aggregator any more, or never was."""
        if (link := self._links.pop(address, None)) is not None:
            link.close()
        if not isinstance(error, _BROKEN):
            if not self._ask(0.0):
                self._fail(turn, f"{address}: {error}")
            return
        if turn.left_s < _PAUSE_S:
            self._fail(turn, f"no answer within {self._timeout_s:g} s: {address}: {error or type(error).__name__}")
        time.sleep(_PAUSE_S)
        self._ask(ASK_WHERE_BROKEN_S)

    def _fail(self, turn: _Turn, reason: str) -> NoReturn:
        ranges = ", ".join(map(str, sorted(turn.missing)[:5]))
        raise RankFailedError(f"step {turn.step} is not aggregated in range {ranges}: {reason}")


def _bytes_of(vector: Tensor) -> memoryview:
    """Its memory."""
    return vector.numpy().view(np.uint8).data
