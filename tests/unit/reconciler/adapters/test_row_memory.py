"""A memory of rows gives what decoding gives, whatever happens to them between two dumps."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services._host.netlink.attributes import MalformedError, attribute, u16
from services._host.netlink.dump_cache import RowMemory
from services._host.netlink.link_codec import add_fdb, ages, decode_fdb
from services._host.netlink.objects import FdbEntry
from services._host.netlink.tc_decode import actions_in, counters_of_action, decode_action
from tests.support import flower_messages as sent
from tests.support.examples import examples

MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(lambda address: str(address).split("%", maxsplit=1)[0])
INDEX = st.integers(1, 0x7FFFFFFF)
OF_BRIDGES = st.builds(
    FdbEntry,
    INDEX,
    MACS,
    own=st.just(value=False),
    vlan=st.integers(0, 4_094),
    static=st.booleans(),
    extern_learn=st.booleans(),
)
OF_TUNNELS = st.builds(
    FdbEntry,
    INDEX,
    MACS,
    own=st.just(value=True),
    destination=st.none() | V4 | V6,
    static=st.booleans(),
    extern_learn=st.booleans(),
    nexthop_id=INDEX | st.just(0),
    vni=st.integers(0, 0xFFFFFF),
    port=st.integers(0, 0xFFFF),
)
ENTRIES = OF_BRIDGES | OF_TUNNELS


def row(entry: FdbEntry, ages: bytes, *, last: bool = True) -> bytes:
    """As the kernel sends it: tables of VXLAN devices have the ages last, those of bridges the VLAN after them."""
    payload = add_fdb(entry).payload
    ages = attribute(3, ages)
    if last or not entry.vlan:
        return payload + ages
    without = u16(5, entry.vlan)
    return payload.replace(without, b"", 1) + ages + without


def read(memory: RowMemory[FdbEntry], rows: list[bytes]) -> tuple[FdbEntry, ...]:
    data, spans = b"", []
    for one in rows:
        spans.append((len(data), len(data) + len(one)))
        data += one
    return memory.read((data, start, end) for start, end in spans)


@given(ENTRIES, st.binary(min_size=16, max_size=16))
def test_a_forwarding_entry_comes_back(entry: FdbEntry, ages: bytes) -> None:
    assert decode_fdb(row(entry, ages)) == entry
    assert decode_fdb(row(entry, ages, last=False)) == entry


def test_golden_bytes_of_a_static_entry() -> None:
    """As `bridge fdb add 02:00:00:00:00:01 dev <4> master static` writes it: NUD_NOARP (0x40), NTF_MASTER (0x04)."""
    entry = FdbEntry(4, "02:00:00:00:00:01", own=False, static=True)
    header = struct.pack("=BxxxiHBB", 7, 4, 0x40, 0x04, 0)
    assert add_fdb(entry) == (28, 0x600, header + attribute(2, bytes.fromhex("020000000001")))


@settings(max_examples=examples(50))
@given(st.lists(ENTRIES, max_size=5), st.lists(ENTRIES, max_size=3), st.randoms())
def test_each_dump_is_read_as_if_it_were_the_first(first: list[FdbEntry], news: list[FdbEntry], random) -> None:
    memory = RowMemory(decode_fdb, ages)
    second = first + news
    random.shuffle(second)
    del second[random.randrange(len(second) + 1) :]
    last = random.random() < 0.5
    for entries in (first, second, second):
        rows = [row(entry, random.randbytes(16), last=last) for entry in entries]
        assert read(memory, rows) == tuple(entries)


def test_unchanged_rows_are_the_very_same_objects() -> None:
    """Comparing two looks at ten thousand rows is cheap then."""
    learned = [FdbEntry(4, f"02:00:00:00:00:{i:02x}", own=False, vlan=1, extern_learn=True) for i in range(9)]
    remote = [replace(entry, own=True, vlan=0, destination="10.255.0.2") for entry in learned]
    memory = RowMemory(decode_fdb, ages)
    first = read(memory, [row(entry, bytes(16), last=False) for entry in learned + remote])
    second = read(memory, [row(entry, b"\1" * 16, last=False) for entry in remote + learned[1:]])
    assert second == tuple(remote + learned[1:])
    kept = {id(entry) for entry in first}
    assert all(id(entry) in kept for entry in second)


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.data())
def test_a_memory_does_not_hide_nonsense(entries: list[FdbEntry], data: st.DataObject) -> None:
    rows = [row(entry, bytes(16)) for entry in entries]
    memory = RowMemory(decode_fdb, ages)
    read(memory, rows)
    which = data.draw(st.integers(0, len(rows) - 1))
    at = data.draw(st.integers(0, len(rows[which]) - 1))
    rows[which] = rows[which][:at] + bytes([data.draw(st.integers(0, 255))]) + rows[which][at + 1 :]
    try:
        expected = read(RowMemory(decode_fdb, ages), rows)
    except MalformedError:
        with pytest.raises(MalformedError):
            read(memory, rows)
        return
    assert read(memory, rows) == expected


@given(st.randoms())
def test_actions_but_for_their_counters(random) -> None:
    memory = RowMemory(decode_action, counters_of_action)
    seen = []
    for payload in (sent.KEYS, sent.REDIRECT):
        for start, end in actions_in(payload):
            for varying in counters_of_action(payload[start:end]):
                assert varying.end - varying.start > 4
                # All of the first's counters stand at the same place in the second: 64 bytes and 32 of them.
                seen.append(varying.end - varying.start)
    assert sorted(seen) == [36, 36, 36, 68, 68, 68]
    before = ()
    for _ in range(3):
        changed = bytearray(sent.KEYS)
        for start, end in actions_in(sent.KEYS):
            for varying in counters_of_action(sent.KEYS[start:end]):
                if varying.end - varying.start == 36:  # the times; the counters are nested
                    changed[start + varying.start + 4 : start + varying.end] = random.randbytes(32)
        payload = bytes(changed)
        found = memory.read((payload, start, end) for start, end in actions_in(payload))
        assert found == sent.actions_of(sent.KEYS)
        assert not before or all(new is old for new, old in zip(found, before, strict=True))
        before = found


@given(st.binary(max_size=120), st.data())
def test_garbage_is_read_or_refused(garbage: bytes, data: st.DataObject) -> None:
    whole = row(FdbEntry(4, "02:00:00:00:00:01", own=False, static=True), bytes(16))
    cut = data.draw(st.integers(0, len(whole)))
    memory = RowMemory(decode_fdb, ages)
    for payload in (whole, garbage, whole[:cut] + garbage, whole[:cut]):
        with suppress(MalformedError):
            read(memory, [payload])
        with suppress(MalformedError):
            sent.actions_of(payload)
