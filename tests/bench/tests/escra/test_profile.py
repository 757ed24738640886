"""Profiles: maxima over periods, seconds and containers, with every number worked out by hand."""

import numpy as np
import pytest

from tests.bench.escra.profile import ContainerProfile, Profile, read

MIB = 1 << 20


def test_the_largest_second_is_any_ten_periods_in_a_row() -> None:
    """Use 1000 for 5 periods, 4000 for 10, 1000 for 5: the ten in the middle average 4000, no aligned second does."""
    one = ContainerProfile((1_000,) * 5 + (4_000,) * 10 + (1_000,) * 5, (0,) * 20)
    assert (one.max_used_us, one.max_second_used_us) == (4_000, 4_000)


def test_a_short_life_is_averaged_over_what_there_is() -> None:
    """(1000 + 2000 + 2001) / 3 = 1667."""
    assert ContainerProfile((1_000, 2_000, 2_001), (0, 0, 0)).max_second_used_us == 1_667
    assert ContainerProfile((), ()).max_second_used_us == 0


def test_totals_are_aligned_in_time_and_averaged_over_seconds() -> None:
    """A uses 10 for 30 periods, B 100 in periods 25 to 34: totals 10 x 25, 110 x 5, 100 x 5.

    1 s: the best ten periods are 25 to 34 with (5 x 110 + 5 x 100) / 10 = 105.
    3 s: periods 5 to 34: (20 x 10 + 5 x 110 + 5 x 100) / 30 = 1250 / 30 = 41.67 -> 42.
    Maxima over seconds: A 10, B 100: 110 together. Memory: 5 MiB, from period 25 to 29 7 MiB.
    """
    profile = Profile(
        {
            "a": ContainerProfile((10,) * 30, (5 * MIB,) * 30),
            "b": ContainerProfile((100,) * 10, (2 * MIB,) * 10, first_period=25),
        }
    )
    assert np.array_equal(profile.total_used_us, [10] * 25 + [110] * 5 + [100] * 5)
    assert (profile.max_total_used_us(1), profile.max_total_used_us(3)) == (105, 42)
    assert profile.sum_of_second_maxima_us == 110
    assert (profile.max_total_memory_bytes, profile.sum_of_memory_maxima_bytes) == (7 * MIB, 7 * MIB)


def test_a_profile_survives_the_disk(tmp_path) -> None:
    path = tmp_path / "shop.json"
    profile = Profile({"web": ContainerProfile((1, 2, 3), (4, 5, 6), 7)})
    profile.write(path)
    assert read(path) == profile
    assert [file.name for file in tmp_path.iterdir()] == ["shop.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "period_us": 100000, "containers": {}}'])
def test_what_is_no_profile_is_refused_by_its_name(tmp_path, text) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.json"):
        read(path)
