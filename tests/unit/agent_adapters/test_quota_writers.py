"""What the kernel wrote down of a process that wrote a CPU quota, as the agent reads it."""

from __future__ import annotations

import json
import os
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services._host.bpf.quota_writers import QuotaWriters, decode
from services._host.bpf.records import WRITER, WRITER_COMM_BYTES, WRITER_LEVELS, WRITER_NAME_BYTES
from services._host.cgroup_snapshot import QuotaWriter
from services.agent.limits.drift import Change, sentence

STALE = b"left by the draft before"


def record(pid: int, comm: bytes, names: list[bytes], *, longer: bool = False) -> bytes:
    """As the program leaves it: each text ends with NUL, and after that is what was there before."""

    def field(text: bytes, size: int) -> bytes:
        return (text + b"\0" + STALE * 8)[:size]

    used = [field(name, WRITER_NAME_BYTES) for name in names]
    unused = [field(STALE, WRITER_NAME_BYTES)] * (WRITER_LEVELS - len(names))
    return WRITER.pack(pid, len(names) + longer, field(comm, WRITER_COMM_BYTES), b"".join(used + unused))


def test_a_group_is_named_from_the_top() -> None:
    assert decode(record(4711, b"runc", [b"docker.service", b"system.slice"])) == QuotaWriter(
        4711, "runc", "system.slice/docker.service"
    )


def test_the_root_is_a_slash() -> None:
    assert decode(record(2, b"kthreadd", [])).cgroup == "/"


def test_more_groups_above_are_dots() -> None:
    names = [b"h", b"g", b"f", b"e", b"d", b"c", b"b", b"a"]
    assert decode(record(5, b"sh", names)).cgroup == "a/b/c/d/e/f/g/h"
    assert decode(record(5, b"sh", names, longer=True)).cgroup == ".../a/b/c/d/e/f/g/h"


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"\x1b[2J\x07", "\\x1b[2J\\x07"),
        (b"a\nb\tc", "a\\nb\\tc"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("käse".encode(), "käse"),
        ("\u202eelif".encode(), "\\u202eelif"),
        (b"cut\xc3", "cut\\xc3"),
        (b"", ""),
    ],
)
def test_a_command_that_wants_to_be_more_than_text_is_escaped(comm: bytes, shown: str) -> None:
    assert decode(record(1, comm, [])).comm == shown


NAMES = st.binary(max_size=WRITER_NAME_BYTES - 1).map(lambda text: text.replace(b"\0", b"").replace(b"/", b""))


@given(
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=15).map(lambda text: text.replace(b"\0", b"")),
    st.lists(NAMES, max_size=WRITER_LEVELS),
)
@example(1, b'x" (pid 1, "', [b'b): "', b"\r\n"])
def test_whatever_they_are_called_the_sentence_is_one_printable_line_with_one_writer(
    pid: int, comm: bytes, names: list[bytes]
) -> None:
    writer = decode(record(pid, comm, names))
    assert len(writer.comm) <= 4 * 15
    assert len(writer.cgroup) <= 4 * WRITER_LEVELS * WRITER_NAME_BYTES
    said = sentence(Change("quota 30 ms became 90 ms", "put back"), None, writer)
    assert said.isprintable()
    assert said.endswith("): quota 30 ms became 90 ms, put back")
    # What is in quotes is one JSON string, whatever it holds: outside of those stands one pid.
    outside, quoted = [], said
    while '"' in quoted:
        plain, _, rest = quoted.partition('"')
        text, end = json.JSONDecoder().raw_decode(f'"{rest}')
        assert isinstance(text, str)
        outside.append(plain)
        quoted = f'"{rest}'[end:]
    outside.append(quoted)
    assert "".join(outside).count(f"(pid {pid}, ") == 1
    assert "".join(outside).count("(pid ") == 1
    assert all(before and after for before, after in pairwise(outside))


def test_what_is_no_map_is_refused_and_closed() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError, match="bpf"):
        QuotaWriters(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
