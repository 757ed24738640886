"""Random histories of replicas, a store and agents: soon always one that acts, and never two in one epoch.

What a history may hold: `tests.support.members_model`. A rule taken away has to make it fail, else it proves nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.ownership import members
from tests.support.examples import examples
from tests.support.members_model import Disturbance, History, World

KINDS = ("freeze", "crash", "stop", "store away", "cut off", "deaf", "unable", "able", "not heard of", "join")
DISTURBANCES = st.builds(
    Disturbance,
    wait_s=st.floats(0, 3),
    kind=st.sampled_from(KINDS),
    which=st.integers(0, 9),
    long_s=st.one_of(st.floats(0, 1), st.floats(0, 6), st.floats(0, 18)),
)


def histories(**fixed: bool) -> st.SearchStrategy[History]:
    return st.builds(
        History,
        seed=st.integers(0, 1 << 32),
        replicas=st.integers(2, 5),
        disturbances=st.lists(DISTURBANCES, max_size=30).map(tuple),
        roughness=st.sampled_from((0.0, 0.1, 0.5)),
        lost_way=st.sampled_from(("", "reads", "writes", "all")),
        **{name: st.just(value) for name, value in fixed.items()},
    )


@given(histories())
@settings(max_examples=examples(600), deadline=None)
def test_every_application_has_one_owner_soon_and_never_two_in_one_epoch(history):
    world = World(history).run()

    assert not world.faults, world.first


@given(histories(reads_lag=True))
@settings(max_examples=examples(200), deadline=None)
def test_so_it_is_where_reads_show_the_value_before(history):
    world = World(history).run()

    assert not world.faults, world.first


@given(histories(store_loses_end=True))
@settings(max_examples=examples(200), deadline=None)
def test_so_it_is_where_the_store_loses_its_newest_writes(history):
    world = World(history).run()

    assert not world.faults, world.first


BUSY = tuple(
    Disturbance(1.5, kind, which, 4.0)
    for which, kind in enumerate(
        ("freeze", "cut off", "unable", "crash", "store away", "freeze", "stop", "deaf", "unable")
    )
)
ASSUMED = {
    "an older record is doubted": (
        "elif record.epoch < view.seen_epoch or (record.epoch == view.record.epoch and view.revision >= 0):",
        "elif False:",
    ),
    "a heartbeat follows a read only": ("if not _heartbeat_due(view, now_s):", "if True:"),
    "refusals of agents are heeded": ("if view.epochs.get(event.app, event.epoch) >= event.epoch:", "if True:"),
    "who is unable says so": ("unable.setdefault(app, set()).add(view.replica_id)", "pass"),
    "the silent are removed": (">= view.ttl_s}", ">= 1e9}"),
    "applications go to those who are able": ("if view.owner(app) == view.replica_id]", "]"),
}
SEEDS = 12


def without(rule: str) -> ModuleType:
    """The rules, but for one."""
    text, (before, after) = Path(members.__file__).read_text(encoding="utf-8"), ASSUMED[rule]
    assert text.count(before) == 1, f"the rule is written differently now: {before}"
    changed = ModuleType("members_without_a_rule")
    sys.modules[changed.__name__] = changed  # dataclasses look their module up
    exec(compile(text.replace(before, after), changed.__name__, "exec"), changed.__dict__)
    return changed


@pytest.mark.parametrize("rule", ASSUMED)
def test_without_a_rule_the_model_fails(rule):
    rules = without(rule)

    worlds = (
        World(History(seed, disturbances=BUSY, roughness=0.3, reads_lag=seed % 2 == 1), rules) for seed in range(SEEDS)
    )

    assert any(world.run().faults for world in worlds)
