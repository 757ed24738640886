"""The command line of `turnbuckle devices`."""

from __future__ import annotations

import json

import pytest

from services.collector.devices.options import Meeting, SandboxPlace, parse

GIB = 1 << 30
HERE = ["--measure", "--machines", "2", "--rank", "1", "--master", "10.0.0.1:29500"]


def test_what_is_given_is_read() -> None:
    given = parse([*HERE, "--sandbox", "0.5:2GiBx2", "--sandbox", "1:512MiB"])

    assert given.meeting == Meeting(2, 1, "10.0.0.1", 29_500)
    assert given.sandbox == [SandboxPlace(0.5, 2 * GIB, 2), SandboxPlace(1.0, GIB // 2, 1)]
    assert [place.kind for place in given.sandbox] == ["sandbox:0.5", "sandbox:1"]
    assert parse([]).meeting is None


def test_the_brackets_of_an_ipv6_address_are_not_part_of_it() -> None:
    assert parse([*HERE, "--master", "[2001:db8::1]:29500"]).meeting == Meeting(2, 1, "2001:db8::1", 29_500)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sandbox", "0.5"], "'0.5' is no sandbox: write CORES:MEMORY"),
        (["--sandbox", "0:1GiB"], "0 is not within 0.01 and 1024"),
        (["--sandbox", "1:much"], "'much' is no size"),
        (["--sandbox", "1:10"], "10 is less than 1 MiB"),
        (["--sandbox", "1:1GiBx0"], "0 is not within 1 and"),
        (["--measure", "--machines", "2"], "--machines, --rank and --master belong together"),
        (HERE[1:], "belong together, and to --measure"),
        ([*HERE, "--rank", "2"], "--rank 2: ranks of 2 machines are 0 to 1"),
        ([*HERE, "--master", "nowhere"], "'nowhere' is no address: write HOST:PORT"),
        ([*HERE, "--master", "a:99999"], "'a:99999' is no address"),
    ],
)
def test_what_is_wrong_is_2(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)

    assert ended.value.code == 2
    assert sentence in json.loads(capsys.readouterr().out)["message"]
