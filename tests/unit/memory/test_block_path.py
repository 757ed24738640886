"""A disk is cut into slabs that do not overlap, and a mirror's status is read as the kernel writes it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.memory.core.block_path import LayoutError, MirrorHealth, copied_within_s, cut, read_health

MIB = 1 << 20


def ranges(tables: list[str]) -> list[tuple[int, int]]:
    """First sector and the one behind the last of each linear table, in order."""
    words = [table.split() for table in tables]
    return sorted((int(line[4]), int(line[4]) + int(line[1])) for line in words)


@given(st.integers(1, 64), st.integers(0, 512 * MIB))
def test_parts_of_the_disk_do_not_overlap_and_end_on_it(slab_mib: int, disk_bytes: int) -> None:
    if disk_bytes < (slab_mib + 2) * MIB:
        with pytest.raises(LayoutError, match="need"):
            cut("/dev/vdb", disk_bytes, slab_mib * MIB)
        return

    layout = cut("/dev/vdb", disk_bytes, slab_mib * MIB)

    assert layout.slabs == disk_bytes // ((slab_mib + 2) * MIB)
    parts = ranges(
        [
            table
            for slab in range(layout.slabs)
            for table in (layout.disk_table(slab), layout.metadata_table(slab, 0), layout.metadata_table(slab, 1))
        ]
    )
    assert all(before[1] <= after[0] for before, after in pairwise(parts))
    assert parts[-1][1] * 512 <= disk_bytes
    assert all(first % 8 == 0 for first, _ in parts), "whole pages"


@given(st.integers(1, 2048))
def test_a_region_of_the_bitmap_is_a_power_of_two_within_the_slab(slab_mib: int) -> None:
    layout = cut("/dev/vdb", 4096 * MIB, slab_mib * MIB)

    words = layout.mirror_table(("/dev/nbd0", "/dev/mapper/d"), ("/dev/mapper/m0", "/dev/mapper/m1")).split()

    region = int(words[words.index("region_size") + 1])
    assert region & (region - 1) == 0
    assert layout.slab_sectors // 2 < region <= layout.slab_sectors
    # Behind "0 SECTORS raid raid1": as many parameters as are said, then two pairs of devices.
    assert len(words[5:]) == int(words[4]) + 5


@pytest.mark.parametrize("slab_bytes", [0, -MIB, MIB - 512, MIB + 4096])
def test_sizes_that_do_not_do_are_refused(slab_bytes: int) -> None:
    with pytest.raises(LayoutError, match="has to be a multiple"):
        cut("/dev/vdb", 64 * MIB, slab_bytes)


@pytest.mark.parametrize(
    ("status", "remote_alive", "synchronized", "disk_alive"),
    [
        ("0 32768 raid raid1 2 aA 1024/32768 recover 0 0 -", True, False, True),
        ("0 32768 raid raid1 2 AA 32768/32768 idle 0 0 -", True, True, True),
        ("0 32768 raid raid1 2 DA 32768/32768 idle 0 0 -", False, False, True),
        ("0 32768 raid raid1 2 AD 32768/32768 idle 0 0 -", True, True, False),
    ],
)
def test_a_status_is_read(status: str, *, remote_alive: bool, synchronized: bool, disk_alive: bool) -> None:
    assert read_health(status) == MirrorHealth(remote_alive, synchronized, disk_alive)
    assert read_health("0 32768 linear ") is None


@pytest.mark.parametrize(
    "status", ["", "0 8 zero", "0 8 raid raid1 3 AAA 8/8 idle 0 0 -", "0 8 raid raid1 2 A 8/8 idle 0"]
)
def test_a_status_of_another_form_is_refused(status: str) -> None:
    with pytest.raises(LayoutError, match="no status of a mirror"):
        read_health(status)


def test_a_copy_has_a_minute_or_the_time_that_it_takes_at_5_mb_per_s() -> None:
    # 300,000,000 bytes at 5,000,000 a second take 60 s; 16 GiB 17,179,869,184 / 5,000,000 = 3,436 s.
    assert copied_within_s(1 << 20) == copied_within_s(300_000_000) == 60
    assert copied_within_s(16 << 30) == pytest.approx(3_436, abs=0.5)
