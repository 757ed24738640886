"""Aggregators on loopback sockets: results to the bit, moves, and peers that are hostile or stuck."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch

from services._jobs.aggregation_frames import (
    PREFIX,
    Challenge,
    DeniedHeader,
    FetchHeader,
    FrameError,
    Header,
    Hello,
    MovedHeader,
    PushHeader,
    RangePlace,
    RefusedHeader,
    ResultHeader,
    Role,
    StateHeader,
    Welcome,
    client_proof,
    decode_header,
    decode_prefix,
    encode_frame,
)
from services.aggregator.adapters import wire
from services.aggregator.hosted_job import RangeError
from services.aggregator.range_state import OptimizerSpec
from services.aggregator.shard import UNPROVEN_CONNECTIONS, JobKeys, Shard
from services.trainer.worker.gather import RankFailedError
from services.trainer.worker.push_pull import AggregationLostError, Moments, PushPull
from tests.support.aggregation import ADAMW, DEADLINE_S, KEYS, by_torch, gradient, parameters, run_ranks, spec
from tests.support.deadline import until

ENOUGH = 1 << 30
SGD = OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9)


@asynccontextmanager
async def shards(count: int, memory_limit_bytes: int = ENOUGH) -> AsyncIterator[list[Shard]]:
    started = [Shard(memory_limit_bytes) for _ in range(count)]
    try:
        for shard in started:
            await shard.start("127.0.0.1", 0)
        yield started
    finally:
        for shard in started:
            await shard.stop()


class RawWorker:
    """A peer that sends what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, shard: Shard) -> RawWorker:
        host, port = shard.address.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def join(self, job: str, key: bytes, *, role: Role = "worker", rank: int = 0) -> Header:
        challenge, _ = await self.receive()
        assert isinstance(challenge, Challenge)
        nonce = b"n" * 16
        proof = client_proof(key, (job, role, rank), challenge.nonce, nonce)
        self.send(Hello(job=job, role=role, rank=rank, nonce=nonce, proof=proof))
        return (await self.receive())[0]

    def send(self, header: Header, content: bytes = b"") -> None:
        self.writer.write(encode_frame(header, len(content)) + content)

    async def receive(self) -> tuple[Header, bytes]:
        async with asyncio.timeout(DEADLINE_S):
            header_bytes, content_bytes = decode_prefix(await self.reader.readexactly(PREFIX.size))
            header = decode_header(await self.reader.readexactly(header_bytes))
            return header, await self.reader.readexactly(content_bytes)

    async def ended(self) -> bool:
        """Whether the aggregator ends the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_worker(shard: Shard, job: str = "job", *, rank: int = 0) -> AsyncIterator[RawWorker]:
    worker = await RawWorker.connect(shard)
    try:
        assert isinstance(await worker.join(job, KEYS.worker, rank=rank), Welcome)
        yield worker
    finally:
        worker.close()


def content(values: int, fill: float = 1.0) -> bytes:
    return torch.full((values,), fill).numpy().tobytes()


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, OptimizerSpec(kind="adam", lr=1e-2)], ids=lambda each: each.kind)
async def test_the_result_has_the_bits_of_one_process_wherever_ranges_are_cut(optimizer: OptimizerSpec) -> None:
    job = spec(ranks=3, optimizer=optimizer)
    async with shards(2) as (first, second):
        places = []
        for index, (start, last, shard) in enumerate([(0, 1, first), (1, 700, second), (700, 1001, first)]):
            if not index or shard is second:
                shard.host(job, KEYS)
            shard.add("job", index, last - start, 1)
            places.append(RangePlace(start, last, 1, shard.address))

        results = await asyncio.to_thread(run_ranks, job, places, 5)

        assert [load.job for load in first.loads()] == ["job"]

    expected = by_torch(job, 1001, 5)
    assert len(results) == 3
    assert all(torch.equal(result, expected) for result in results)


async def test_a_range_moves_between_push_and_pull() -> None:
    async with shards(2) as (old, new):
        for shard in (old, new):
            shard.host(spec(), KEYS)
        old.add("job", 0, 2, 1)
        async with raw_worker(old) as zero, raw_worker(old, rank=1) as one, raw_worker(new) as zero_there:
            for worker in (zero, one):
                worker.send(PushHeader(range=0, step=0, version=1), content(2))
            for worker in (zero, one):
                assert (await worker.receive())[0] == ResultHeader(range=0, step=0)
            zero.send(PushHeader(range=0, step=1, version=1), content(2))
            new.add("job", 0, 2, 2, moving=True)
            zero_there.send(PushHeader(range=0, step=1, version=2), content(2))  # before the state is there

            await old.move("job", 0, 2, new.address)

            moved = MovedHeader(range=0, version=2, address=new.address)
            assert (await zero.receive())[0] == moved, "its content was there already"
            one.send(PushHeader(range=0, step=1, version=1), content(2))
            assert (await one.receive())[0] == moved
            async with raw_worker(new, rank=1) as one_there:
                one_there.send(PushHeader(range=0, step=1, version=2), content(2))
                for worker in (zero_there, one_there):
                    assert (await worker.receive())[0] == ResultHeader(range=0, step=1)
            with pytest.raises(RangeError, match="not here"):
                await old.move("job", 0, 3, new.address)


async def test_a_move_that_is_not_acknowledged_is_repeated() -> None:
    async with shards(2) as (old, new):
        old.host(spec(ranks=1), KEYS)
        old.add("job", 0, 2, 1)
        async with raw_worker(old) as worker:
            worker.send(PushHeader(range=0, step=0, version=1), content(2, 3.0))
            await worker.receive()
        with pytest.raises(RangeError, match="the job is not there, or has another key"):
            await old.move("job", 0, 2, new.address)
        new.host(spec(ranks=1), KEYS)
        with pytest.raises(RangeError, match=f"was not taken by {new.address}: range 0 is not expected"):
            await old.move("job", 0, 2, new.address)  # the range is not expected
        new.add("job", 0, 2, 2, moving=True)

        await old.move("job", 0, 2, new.address)

        async with raw_worker(new) as worker:
            worker.send(PushHeader(range=0, step=0, version=2), content(2))  # as if the answer had been lost
            assert await worker.receive() == (ResultHeader(range=0, step=0), content(2, 3.0))
        with pytest.raises(RangeError, match="not here"):
            await old.move("job", 0, 2, new.address)  # it was acknowledged, and freed


NAMES = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, OptimizerSpec(kind="adam", lr=1e-2)], ids=lambda each: each.kind)
async def test_a_job_that_begins_anew_with_its_moments_has_the_bits_of_one_that_was_never_interrupted(
    optimizer: OptimizerSpec,
) -> None:
    values, names = 1001, NAMES[optimizer.kind]

    def train(places: list[RangePlace], steps: range, held: torch.Tensor, moments: Moments | None) -> Moments:
        worker = PushPull(("job", 0, KEYS.worker), places, DEADLINE_S)
        after = worker.start(held, moments)
        for step in steps:
            after = worker.reduce(gradient(values, step, 0))
        found = worker.moments(names)
        worker.close()
        return Moments({"parameters": after, **found.vectors}, found.scalars)

    first: Moments | None = None
    for steps in (range(1, 4), range(4, 7)):
        async with shards(2) as pair:
            places = []
            for index, (start, last, shard) in enumerate([(0, 700, pair[0]), (700, values, pair[1])]):
                shard.host(spec(ranks=1, optimizer=optimizer), KEYS)
                shard.add("job", index, last - start, 1)
                places.append(RangePlace(start, last, 1, shard.address))
            held = parameters(values) if first is None else first.vectors["parameters"]
            given = None if first is None else Moments({name: first.vectors[name] for name in names}, first.scalars)
            first = await asyncio.to_thread(train, places, steps, held, given)

    assert first is not None
    assert torch.equal(first.vectors["parameters"], by_torch(spec(ranks=1, optimizer=optimizer), values, 6))
    assert first.scalars == ({} if optimizer is SGD else {"step": 6.0})


async def test_a_moment_is_answered_once_the_range_has_come() -> None:
    async with shards(2) as (old, new):
        for shard in (old, new):
            shard.host(spec(ranks=1, optimizer=SGD), KEYS)
        old.add("job", 0, 2, 1)
        async with raw_worker(old) as worker, raw_worker(new) as there:
            for step in (0, 1):
                worker.send(PushHeader(range=0, step=step, version=1), content(2, 3.0))
                await worker.receive()
            new.add("job", 0, 2, 2, moving=True)
            fetch = FetchHeader(range=0, step=1, version=2, vector="momentum_buffer")
            there.send(fetch)
            await old.move("job", 0, 2, new.address)

            # The first step's momentum is its gradient.
            assert await there.receive() == (
                ResultHeader(range=0, step=1, vector="momentum_buffer"),
                content(2, 3.0),
            )
            worker.send(fetch.model_copy(update={"version": 1}))
            assert (await worker.receive())[0] == MovedHeader(range=0, version=2, address=new.address)


@pytest.mark.parametrize(
    "header",
    [
        PushHeader(range=0, step=0, version=1, vectors=("exp_avg",)),
        PushHeader(range=0, step=0, version=1, vectors=("exp_avg", "exp_avg_sq")),
        PushHeader(range=0, step=0, version=1, vectors=("exp_avg_sq", "exp_avg"), scalars={"step": 1.0}),
        PushHeader(range=0, step=0, version=1, scalars={"step": 1.0}),
    ],
    ids=["one of two", "no count", "in another order", "a count alone"],
)
async def test_moments_that_are_not_the_optimizers_are_refused(header: PushHeader) -> None:
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard) as worker:
            worker.send(header, content(2 * (1 + len(header.vectors))))

            refused, _ = await worker.receive()
            assert isinstance(refused, RefusedHeader)
            assert "moments of adamw stand behind rank 0's first push only" in refused.reason
            worker.send(PushHeader(range=0, step=0, version=1), content(2))
            assert (await worker.receive())[0] == ResultHeader(range=0, step=0)


async def test_only_rank_0_gives_moments() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(optimizer=SGD), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard, rank=1) as worker:
            worker.send(PushHeader(range=0, step=0, version=1, vectors=("momentum_buffer",)), content(4))

            assert isinstance((await worker.receive())[0], RefusedHeader)


@pytest.mark.parametrize(
    ("step", "vector", "reason"),
    [
        (0, "exp_avg", "version 1 is at step 0, and has no such exp_avg"),
        (1, "exp_avg", "version 1 is at step 0, and has no such exp_avg"),
        (0, "parameters", "version 1 is at step 0, and has no such parameters"),
    ],
)
async def test_a_moment_that_is_not_there_is_refused(step: int, vector: str, reason: str) -> None:
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard) as worker:
            worker.send(PushHeader(range=0, step=0, version=1), content(2))
            await worker.receive()
            worker.send(FetchHeader(range=0, step=step, version=1, vector=vector))

            assert (await worker.receive())[0] == RefusedHeader(range=0, step=step, reason=reason)


async def test_a_worker_asks_where_its_ranges_are_once_an_aggregator_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.trainer.worker.push_pull.ASK_WHERE_BROKEN_S", 0.0)
    async with shards(2) as (old, new):
        for shard in (old, new):
            shard.host(spec(ranks=1), KEYS)
            shard.add("job", 0, 4, 1 if shard is old else 2)
        places = [RangePlace(0, 4, 1, old.address)]
        answers = [places, [RangePlace(0, 4, 2, new.address)]]

        def where() -> list[RangePlace]:
            if not answers:
                raise AggregationLostError("aggregator 1: it has died by signal 9")
            return answers.pop(0)

        worker = PushPull(("job", 0, KEYS.worker), places, DEADLINE_S, where)
        await old.stop()
        assert torch.equal(await asyncio.to_thread(worker.start, parameters(4)), parameters(4))
        await new.stop()
        with pytest.raises(AggregationLostError, match="died by signal 9"):
            await asyncio.to_thread(worker.reduce, gradient(4, 1, 0))
        worker.close()


async def test_a_worker_whose_job_an_aggregator_has_dropped_asks_whether_it_is_lost() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 4, 1)

        def where() -> list[RangePlace]:
            raise AggregationLostError("it could not be moved")

        worker = PushPull(("job", 0, KEYS.worker), [RangePlace(0, 4, 1, shard.address)], DEADLINE_S, where)
        await asyncio.to_thread(worker.start, parameters(4))
        shard.drop("job")
        with pytest.raises(AggregationLostError, match="could not be moved"):
            await asyncio.to_thread(worker.reduce, gradient(4, 1, 0))
        worker.close()


async def test_a_key_opens_its_own_job_and_role_only() -> None:
    async with shards(1) as (shard,):
        shard.host(spec("mine"), KEYS)
        shard.host(spec("other"), JobKeys(b"x" * 32, b"y" * 32))
        for job, key, role, rank in (
            ("other", KEYS.worker, "worker", 0),
            ("none", KEYS.worker, "worker", 0),
            ("mine", KEYS.worker, "aggregator", 0),
            ("mine", KEYS.aggregator, "worker", 0),
            ("mine", KEYS.worker, "worker", 2),
        ):
            worker = await RawWorker.connect(shard)
            assert await worker.join(job, key, role=role, rank=rank) == DeniedHeader()
            assert await worker.ended()
            worker.close()


async def test_a_connection_reaches_no_range_of_another_job() -> None:
    async with shards(1) as (shard,):
        shard.host(spec("job", ranks=1), KEYS)
        shard.host(spec("other", ranks=1), JobKeys(b"x" * 32, b"y" * 32))
        shard.add("other", 5, 2, 1)
        async with raw_worker(shard) as worker:
            worker.send(PushHeader(range=5, step=0, version=1), content(2))
            refused, _ = await worker.receive()
            assert refused == RefusedHeader(range=5, step=0, reason="job has no such range here")
        async with raw_worker(shard) as worker:
            worker.send(StateHeader(range=5, version=1, done=0, vectors=(), scalars={}), content(2))
            assert await worker.ended()


async def test_a_worker_says_why_its_key_is_no_use() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 4, 1)
        worker = PushPull(("job", 0, b"z" * 32), [RangePlace(0, 4, 1, shard.address)], timeout_s=DEADLINE_S)

        with pytest.raises(RankFailedError, match=f"{shard.address}: job job with this key and rank 0 is not there"):
            await asyncio.to_thread(worker.start, parameters(4))


async def test_a_worker_says_that_its_ranges_are_others() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 5, 1)
        worker = PushPull(("job", 0, KEYS.worker), [RangePlace(0, 4, 1, shard.address)], timeout_s=DEADLINE_S)

        with pytest.raises(RankFailedError, match=f"{shard.address} refuses range 0: the range has 20 bytes"):
            await asyncio.to_thread(worker.start, parameters(4))

        worker.close()


async def test_a_worker_refuses_a_server_without_the_key() -> None:
    def answer_anything(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(encode_frame(Challenge(nonce=b"n" * 16)))
            connection.recv(1 << 12)
            connection.sendall(encode_frame(Welcome(proof=b"p" * 32)))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        worker = PushPull(("job", 0, KEYS.worker), [RangePlace(0, 4, 1, address)], timeout_s=DEADLINE_S)
        answering = asyncio.create_task(asyncio.to_thread(answer_anything, listening))

        with pytest.raises(RankFailedError, match="does not have the job's key"):
            await asyncio.to_thread(worker.start, parameters(4))

        await answering


async def test_a_step_ahead_is_refused() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard) as worker:
            worker.send(PushHeader(range=0, step=7, version=1), content(2))

            assert (await worker.receive())[0] == RefusedHeader(range=0, step=7, reason="version 1 is at step -1")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode_frame(Challenge(nonce=b"n" * 16)),
        encode_frame(PushHeader(range=0, step=0, version=1), 8)[:-4] + b"\xc1\xc1\xc1\xc1",
        PREFIX.pack(b"TBA1", 5000, 0),
    ],
    ids=["http", "out of turn", "no msgpack", "long header"],
)
async def test_what_is_not_due_ends_the_connection_and_nothing_else(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SILENCE_S", 10 * DEADLINE_S)  # else silence ends it, too
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard) as worker, raw_worker(shard) as other:
            worker.writer.write(sent)
            assert await worker.ended()

            other.send(PushHeader(range=0, step=0, version=1), content(2))
            assert await other.receive() == (ResultHeader(range=0, step=0), content(2))


async def test_a_content_of_another_length_takes_no_memory_and_is_refused() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 2, 1)
        async with raw_worker(shard) as worker, raw_worker(shard) as endless:
            endless.writer.write(encode_frame(PushHeader(range=0, step=0, version=1), 1 << 62) + bytes(1 << 20))
            worker.send(PushHeader(range=0, step=0, version=1), content(3))
            reason = "the range has 8 bytes"
            assert (await worker.receive())[0] == RefusedHeader(range=0, step=0, reason=reason)

            worker.send(PushHeader(range=0, step=0, version=1), content(2))
            assert await worker.receive() == (ResultHeader(range=0, step=0), content(2))


async def test_a_peer_that_does_not_read_loses_its_connection() -> None:
    values = 1 << 16
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, values, 1)
        async with raw_worker(shard) as stuck:
            stuck.reader._transport.pause_reading()
            push, ended = encode_frame(PushHeader(range=0, step=0, version=1), values * 4) + content(values), False
            try:
                async with asyncio.timeout(DEADLINE_S):
                    for _ in range(1000):  # each copy asks for 256 KiB: the kernel's buffers take a few MiB
                        stuck.writer.write(push)
                        await stuck.writer.drain()
            except ConnectionError:
                ended = True
        assert ended, "256 MB of answers were queued"


async def test_the_newest_connection_of_a_rank_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A content that stopped halfway, on a connection whose other end is gone, does not keep the next one out."""
    monkeypatch.setattr(wire, "SILENCE_S", 10 * DEADLINE_S)  # else its silence ends it, too
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 1000, 1)
        async with raw_worker(shard) as halfway, raw_worker(shard) as successor:
            halfway.writer.write(encode_frame(PushHeader(range=0, step=0, version=1), 4000) + content(10))
            await halfway.writer.drain()
            await until(lambda: shard._jobs["job"][0]._ranges[0].reading, what="the content begins to come")

            successor.send(PushHeader(range=0, step=0, version=1), content(1000))

            assert (await successor.receive())[0] == ResultHeader(range=0, step=0)
            assert await halfway.ended()


async def test_silent_connections_keep_no_worker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_S", 10 * DEADLINE_S)  # else that ends them, too
    async with shards(1) as (shard,):
        shard.host(spec(ranks=1), KEYS)
        shard.add("job", 0, 2, 1)
        silent = [await RawWorker.connect(shard) for _ in range(UNPROVEN_CONNECTIONS + 3)]
        try:
            assert all([await worker.ended() for worker in silent[:3]])
            async with raw_worker(shard) as worker:
                worker.send(PushHeader(range=0, step=0, version=1), content(2))
                assert (await worker.receive())[0] == ResultHeader(range=0, step=0)
        finally:
            for worker in silent:
                worker.close()


async def test_ranges_are_refused_where_memory_is_short() -> None:
    # Values of 4 bytes, two ranks with a content and two connections each, a result, and AdamW: 6 + 1 + 3 * 3.
    async with shards(1, 100 * 4 * 16 + 99 * 4 * 16) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 100, 1)
        with pytest.raises(RangeError, match="12800 bytes may be needed with range 1 of job, of 12736"):
            shard.add("job", 1, 100, 1)
        shard.add("job", 1, 99, 1)


async def test_a_job_that_has_ended_is_freed() -> None:
    async with shards(1, 100 * 4 * 16) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 100, 1)
        async with raw_worker(shard) as worker:
            shard.drop("job")
            assert await worker.ended()
        with pytest.raises(RangeError, match="job job is not here"):
            shard.drop("job")
        shard.host(spec(), KEYS)
        shard.add("job", 0, 100, 1)


async def test_a_worker_fails_by_its_deadline_where_another_does_not_push() -> None:
    async with shards(1) as (shard,):
        shard.host(spec(), KEYS)
        shard.add("job", 0, 4, 1)
        worker = PushPull(("job", 0, KEYS.worker), [RangePlace(0, 4, 1, shard.address)], timeout_s=0.5)

        with pytest.raises(RankFailedError, match=r"step 0 is not aggregated in range 0: no answer within 0\.5 s"):
            await asyncio.to_thread(worker.start, parameters(4))

        worker.close()


def test_vectors_and_ranges_have_to_fit() -> None:
    for places in ([], [RangePlace(1, 4, 1, "a:1")], [RangePlace(0, 4, 1, "a:1"), RangePlace(5, 6, 1, "a:1")]):
        with pytest.raises(ValueError, match="ranges have to follow one another"):
            PushPull(("job", 0, KEYS.worker), places)
    worker = PushPull(("job", 0, KEYS.worker), [RangePlace(0, 4, 1, "a:1")])
    for vector in (gradient(5, 0, 0), gradient(4, 0, 0).double(), gradient(4, 0, 0).reshape(2, 2)):
        with pytest.raises(ValueError, match="not a vector of 4 fp32 values"):
            worker.start(vector)


def test_a_header_that_is_not_one_is_refused() -> None:
    for data in (b"", b"\xc1", b"\x81\xa4kind\xa4none", b"\x93" * 2000):
        with pytest.raises(FrameError):
            decode_header(data)
