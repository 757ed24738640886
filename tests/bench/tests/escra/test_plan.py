"""What is run: order, seeds, budget, limits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.escra.plan import (
    BATCH_LOAD,
    OVERHEAD_S,
    SETTLE_S,
    Block,
    Cell,
    Limit,
    Plan,
    app_limits,
    cell_seed,
    profile_seed,
    trace_start_s,
    window_for,
)
from tests.bench.escra.profile import ContainerProfile, Profile
from tests.bench.escra.store import Store, code_mark

_BLOCK = Block(("shop", "cache"), ("fixed", "burst"), ("ample",), ("none", "escra", "waterfill"))
_PLAN = Plan((_BLOCK, Block(("shop",), ("fixed",), ("ample", "tight"), ("escra",))), 3, seed=7, window_s=4.0)


def test_every_cell_once_in_a_seeded_order_with_applications_together():
    cells = _PLAN.order()
    # 2 x 2 x 3 and one more (shop/fixed/tight; its ample twin is in the first block), three times.
    assert len(cells) == len(set(cells)) == 39
    assert cells == _PLAN.order()
    assert cells != Plan(_PLAN.blocks, 3, seed=8, window_s=4.0).order()
    for repetition in range(3):
        apps = [cell.app for cell in cells if cell.repetition == repetition]
        assert sum(one != other for one, other in itertools.pairwise(apps)) == 1
    policies = [cell.policy for cell in cells if cell.app == "cache"]
    assert policies != sorted(policies)


def test_no_limits_are_measured_once_for_all_limits():
    cells = list(Block(("shop",), ("fixed",), ("ample", "tight"), ("none", "escra")).cells(0))
    assert [(cell.policy, cell.limit) for cell in dict.fromkeys(cells)] == [
        ("none", "ample"),
        ("escra", "ample"),
        ("escra", "tight"),
    ]


def test_where_the_load_is_another_one_no_limits_and_the_profile_are_too():
    """Under a limit that matches all would else wait for the machine: decision 29."""
    limits: tuple[Limit, ...] = ("ample", "matched", "tight")
    block = Block(("shop",), ("fixed",), limits, ("none", "escra"))
    cells = list(dict.fromkeys(block.cells(0)))
    references = [(cell.limit, cell.load_share) for cell in cells if cell.policy == "none"]
    assert references == [("ample", 1), ("matched", 0.6)]
    ours = {cell.limit: cell for cell in cells if cell.policy == "escra"}
    assert [ours[limit].reference.limit for limit in limits] == ["ample", "matched", "ample"]
    assert ours["ample"].profile_name == ours["tight"].profile_name != ours["matched"].profile_name
    assert len({cell.name for cell in cells}) == 5
    # Two profiles of 14 s instead of one, and two cells instead of one.
    one, two = (window_for([replace(block, limits=chosen)], 1, 10) for chosen in (limits[:1], limits[:2]))
    assert 2 * (one + SETTLE_S + OVERHEAD_S) - 4 * (two + SETTLE_S + OVERHEAD_S) == pytest.approx(14, abs=0.5)
    batch = Cell("grid-search", BATCH_LOAD, "matched", "escra", 0)
    assert (batch.load_share, batch.reference.limit) == (1, "ample")


def test_policies_of_a_pair_get_the_same_requests_and_its_profile_others():
    one, other = Cell("shop", "burst", "ample", "none", 1), Cell("shop", "burst", "tight", "escra", 1)
    assert cell_seed(_PLAN, one) == cell_seed(_PLAN, other)
    seeds = {
        cell_seed(_PLAN, one),
        cell_seed(_PLAN, Cell("shop", "burst", "ample", "none", 2)),
        cell_seed(_PLAN, Cell("shop", "fixed", "ample", "none", 1)),
        profile_seed(_PLAN, "shop", "burst"),
    }
    assert len(seeds) == 4


def test_a_trace_is_played_from_one_place_for_each_pair_and_seed():
    starts = [
        trace_start_s(replace(_PLAN, seed=seed), app, load)
        for seed, app, load in (
            (7, "shop", "diurnal"),
            (7, "cache", "diurnal"),
            (7, "shop", "bursty"),
            (8, "shop", "diurnal"),
        )
    ]
    assert all(0 <= start < 3600 for start in starts)
    assert len(set(starts)) == 4


def test_the_budget_gives_the_window():
    # 10 minutes less 8 %: 552 s; one application, deployed 3 times: 24 s; one profile: 14 s; 9 cells share 514 s.
    block = Block(("shop",), ("burst",), ("ample",), ("none", "escra", "waterfill"))
    assert window_for([block], 3, 10) == pytest.approx(514 / 9 - SETTLE_S - OVERHEAD_S, abs=0.11)
    with pytest.raises(ValueError, match=r"minutes: 1\.3 are needed"):
        window_for([block], 3, 1)
    batch = Block(("grid-search",), (BATCH_LOAD,), ("ample",), ("none",))
    assert window_for([block, batch], 3, 10) < window_for([block], 3, 10)


def test_limits_of_an_application():
    # Two containers of 30 ms per period for 10 s, with one second of 60 ms, not the same second.
    one, other = [30_000] * 100, [30_000] * 100
    one[10:20] = other[50:60] = [60_000] * 10
    profile = Profile(
        {name: ContainerProfile(tuple(used), (100 << 20,) * 100) for name, used in (("a", one), ("b", other))}
    )
    # S = 60 + 60 = 120 ms; largest 1-s total 60 + 30 = 90 ms; 10-s total 60 + 2 x 3 = 66 ms.
    assert app_limits(profile, "ample").cpu_cores == pytest.approx(1.8)
    matched = app_limits(profile, "matched")
    assert (matched.cpu_cores, matched.demand_over_limit, matched.peak_over_limit) == (1.2, 1.0, 0.75)
    # 120 / 1.5 = 80 ms, above 1.12 x 66 = 73.92 ms.
    assert app_limits(profile, "tight").cpu_cores == pytest.approx(0.8)
    # 1.5 x 200 MiB / 0.8, and 16 MiB each.
    assert matched.memory_bytes == (375 + 32) << 20


def test_a_tight_limit_stays_above_the_use():
    # Constant use: S = 50 + 50 = 100 ms = the mean; S / 1.5 would be two thirds of what is used.
    flat = ContainerProfile((50_000,) * 100, (1 << 20,) * 100)
    assert app_limits(Profile({"a": flat, "b": flat}), "tight").cpu_cores == pytest.approx(1.12)


def test_names_of_variants_are_files():
    names = {
        Cell("shop", "fixed", "ample", policy, 0).name for policy in ("escra:kappa=0.5", "escra:kappa=0_5", "escra")
    }
    assert len(names) == 3
    assert not any(set(name) & set(":=/ ,") for name in names)


def test_a_finished_cell_is_found_again_and_an_unfinished_one_is_not(tmp_path: Path):
    store, cell = Store(tmp_path, _PLAN), _PLAN.order()[0]
    assert not store.is_finished(cell)
    store.record_path(cell).with_suffix(".json.part").write_text("{")
    again = Store(tmp_path, _PLAN)
    assert not list(tmp_path.rglob("*.part"))
    again.finish(cell, {"a": 1})
    assert Store(tmp_path, _PLAN).is_finished(cell)
    assert again.record(cell)["a"] == 1
    assert not Store(tmp_path, Plan(_PLAN.blocks, 3, seed=7, window_s=5.0)).is_finished(cell)
    assert Store(tmp_path, Plan(_PLAN.blocks[:1], 9, seed=7, window_s=4.0)).is_finished(cell)


def test_cells_of_other_code_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path, _PLAN)
    ours, none = (Cell("shop", "fixed", "ample", policy, 0) for policy in ("waterfill", "none"))
    for cell in (ours, none):
        store.finish(cell, {})
    assert store.forget_outdated(_PLAN.order()) == 0
    marks = {policy: code_mark(policy) for policy in ("waterfill", "escra:kappa=0.5", "vpa", "none")}
    assert marks["waterfill"] == marks["escra:kappa=0.5"] != marks["vpa"] != marks["none"]
    (tmp_path / "allocator" / "cpu").mkdir(parents=True)
    (tmp_path / "allocator" / "cpu" / "waterfill.py").write_text("# changed")
    monkeypatch.setattr("tests.bench.escra.store.ALLOCATOR", tmp_path / "allocator")
    code_mark.cache_clear()
    try:
        assert store.forget_outdated(_PLAN.order()) == 1
    finally:
        code_mark.cache_clear()
    assert (store.is_finished(ours), store.is_finished(none)) == (False, True)
