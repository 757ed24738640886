"""A short run of the fuzzer (``make fuzz`` runs a million inputs), and that it would notice."""

from __future__ import annotations

import pytest

from schemas.codec import MESSAGE_TYPES, CodecError, decode, encode
from schemas.message import Message
from schemas.queries import StateRequest
from tests.fuzz import message_fuzzer
from tests.fuzz.message_fuzzer import FuzzReport, fuzz, try_one
from tests.fuzz.message_mutation import Mutator, corpus
from tests.support.examples import examples

SEED = 3
COUNT = examples(100_000)


@pytest.mark.slow
def test_nothing_but_codec_errors_comes_out_of_spoiled_messages() -> None:
    report = fuzz(SEED, COUNT)

    assert not report.findings, report.text
    assert report.count == COUNT
    assert report.outcomes.keys() >= {"malformed", "invalid", "unknown_type"}
    assert report.outcomes.keys() >= {model.__name__ for model in MESSAGE_TYPES.values()}, "some never came through"


def test_another_exception_is_told_with_the_smallest_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> Message:
        if data[:1] == b"{":
            raise KeyError("oops")
        return decode(data)

    monkeypatch.setattr(message_fuzzer, "decode", broken)
    report = fuzz(SEED, 500)

    [finding] = report.findings.values()
    assert "KeyError" in finding.what
    assert finding.count > 20
    again = FuzzReport(SEED)
    try_one(again, Mutator(SEED, corpus(SEED)), finding.number)
    assert [other.data for other in again.findings.values()] == [finding.data]


@pytest.mark.parametrize("text", [rb'"\ud800"', rb'"a\udfffb"', rb'{"x": "\ud800"}', b'"\xed\xa0\x80"', b'"\xff"'])
def test_half_a_surrogate_pair_is_refused_because_it_could_not_be_sent_on(text: bytes) -> None:
    with pytest.raises(CodecError, match="malformed"):
        decode(b'{"type": "turnbuckle.query.v1.StateRequest", "app": ' + text + b"}")


def test_a_whole_surrogate_pair_is_a_character() -> None:
    message = decode(rb'{"type": "turnbuckle.query.v1.StateRequest", "app": "\ud83d\ude00"}')

    assert message == StateRequest(app="\N{GRINNING FACE}")
    assert decode(encode(message)) == message
