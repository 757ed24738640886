"""The grid file: what it says, in which order its runs are made, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.collector.emulator.grid import (
    SHIPPED,
    BadGridError,
    draw_configurations,
    expand,
    grid_digest,
    is_contended,
    parse,
    read,
)
from services.collector.emulator.instance_types import CATALOGUE, InstanceType, snapshot
from services.collector.emulator.tasks import TASKS

SMALL = {
    "tasks": ["text-dnn", "tabular-mlp"],
    "instance_types": ["em-standard-4", "em-highcpu-32"],
    "workers": [1, 2, 4],
    "batch_sizes": [16, 64],
}
EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "grid.yaml"


def keys(rows) -> list[str]:
    return [row.key for row in rows]


def test_every_configuration_of_every_task_is_there_once():
    rows = expand(parse(SMALL, "grid.yaml"), 2)
    # 2 tasks x 2 batch sizes x (3 worker counts of the small type + 1, 2 of the one with a whole core); 4 of those are
    # promised 4 cores of 2 and left out
    assert len(rows) == 2 * 2 * (3 + 2)
    assert len(set(keys(rows))) == len(rows)
    assert {row.task for row in rows} == {"text-dnn", "tabular-mlp"}


def test_contended_runs_are_marked_and_kept_only_where_asked_for():
    rows = expand(parse({**SMALL, "contended_share": 1.0}, "g"), 2)
    oversubscribed = [row for row in rows if row.contended]
    assert len(oversubscribed) == 2 * 2
    assert all(row.instance.cpu_cores * row.workers > 2 for row in oversubscribed)
    assert all(row.instance.cpu_cores * row.workers <= 2 for row in rows if not row.contended)


def test_quotas_that_fill_the_machine_are_not_contended():
    tenth = InstanceType("tenth", 0.1, 100, 10, 1.0)
    assert not is_contended(tenth, 20, 2)  # 20 x 0.1 is a little more than 2 in binary
    assert is_contended(tenth, 21, 2)


def test_the_order_is_random_and_the_same_for_a_seed():
    grid = parse(SMALL, "g")
    assert keys(expand(grid, 2)) == keys(expand(grid, 2))
    other = expand(parse({**SMALL, "seed": 1}, "g"), 2)
    assert keys(other) != keys(expand(grid, 2))
    assert sorted(keys(other)) == sorted(keys(expand(grid, 2)))
    tasks = [row.task for row in expand(grid, 2)]
    assert tasks != sorted(tasks)
    assert tasks != sorted(tasks, reverse=True)


def test_a_share_repeats_and_repeats_are_counted():
    rows = expand(parse({**SMALL, "repeats": {"count": 3, "share": 0.2}}, "g"), 2)
    per_configuration = Counter((row.task, row.instance.name, row.workers, row.batch_size) for row in rows)
    # 10 configurations a task, 2 of them three times
    assert Counter(per_configuration.values()) == {1: 16, 3: 4}
    thrice = {key for key, count in per_configuration.items() if count == 3}
    for key in thrice:
        of_key = [row for row in rows if (row.task, row.instance.name, row.workers, row.batch_size) == key]
        assert sorted(row.repeat for row in of_key) == [0, 1, 2]


@given(share=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
def test_what_is_drawn_and_what_is_left_out_are_together_all(share, seed):
    grid = parse({**SMALL, "share": share, "seed": seed}, "g")
    everything = set(keys(expand(parse({**SMALL, "seed": seed}, "g"), 2)))
    taken, left = (
        keys(expand(grid, 2)),
        keys(row for task in grid.tasks for row in draw_configurations(grid, task, 2)[1]),
    )
    assert sorted([*taken, *left]) == sorted(everything)
    assert taken


def test_a_type_of_the_grids_own():
    own = {"name": "tiny", "cpu_cores": 0.2, "memory_mb": 64, "network_mbps": 10, "usd_per_hour": 0.1}
    rows = expand(parse({**SMALL, "instance_types": [own, "em-wide-16"]}, "g"), 2)
    assert {row.instance.name for row in rows} == {"tiny", "em-wide-16"}
    tiny = next(row.instance for row in rows if row.instance.name == "tiny")
    assert tiny.memory_bytes == 64_000_000
    assert tiny.network_bits_per_s == 10_000_000
    assert tiny.threads == 1


def test_the_same_name_with_other_limits_is_another_run():
    own = {"name": "tiny", "cpu_cores": 0.2, "memory_mb": 64, "network_mbps": 10}
    ours = expand(parse({**SMALL, "instance_types": [own]}, "g"), 2)
    others = expand(parse({**SMALL, "instance_types": [{**own, "memory_mb": 65}]}, "g"), 2)
    assert not set(keys(ours)) & set(keys(others))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ["text-dnm"]}, "no such task: text-dnm; there are audio-conv"),
        ({"instance_types": ["n1"]}, "instance_types: Value error, no such instance type: n1"),
        ({"workers": []}, "workers: "),
        ({"workers": [0]}, "workers.0: "),
        ({"workers": [1, 1]}, "workers: something stands there twice"),
        ({"batch_sizes": ["many"]}, "batch_sizes.0: "),
        ({"share": 0}, "share: "),
        ({"timeout_s": float("nan")}, "timeout_s: "),
        ({"timeout_s": -1}, "timeout_s: "),
        ({"worker": [1]}, "worker: Extra inputs"),
        ({"instance_types": [{"name": "x", "cpu_cores": 0, "memory_mb": 64, "network_mbps": 1}]}, "cpu_cores"),
        ({"dataset": "Our Data"}, "dataset: "),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change, message):
    with pytest.raises(BadGridError) as caught:
        parse({**SMALL, **change}, "grid.yaml")
    assert str(caught.value).startswith("grid.yaml: ")
    assert message in str(caught.value)


def test_files_that_are_no_grids(tmp_path):
    path = tmp_path / "grid.yaml"
    with pytest.raises(BadGridError, match="cannot be read: No such file"):
        read(path)
    for text, reason in ((":\n-", "not valid YAML"), ("- 1", "expected fields"), ("", "expected fields")):
        path.write_text(text)
        with pytest.raises(BadGridError, match=reason):
            read(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadGridError, match="not valid YAML"):
        read(path)


def test_the_shipped_grid_is_what_the_datasheet_says():
    grid = read(SHIPPED)
    rows = expand(grid, 2)
    assert len(grid.tasks) == len(TASKS) >= 7
    assert len(grid.instance_types) >= 7
    assert len(rows) >= 450
    assert sum(row.contended for row in rows) < 0.1 * len(rows)
    assert any(row.repeat == 2 for row in rows)
    assert grid.local_run is not None
    assert grid.local_run.workers == 3
    for task in grid.tasks:  # thesis: 56 to 126 configurations a task
        assert len({(r.instance.name, r.workers, r.batch_size) for r in rows if r.task == task}) >= 40


def test_the_example_is_a_grid():
    assert expand(read(EXAMPLE), 2)


def test_the_catalogue_keeps_the_ratios_that_it_says():
    by_name = {kind.name: kind for kind in CATALOGUE}
    assert by_name["em-highcpu-32"].usd_per_hour == pytest.approx(2 * by_name["em-highcpu-16"].usd_per_hour)
    assert by_name["em-standard-8"].usd_per_hour == pytest.approx(2 * by_name["em-standard-4"].usd_per_hour)
    for kind, vcpu in product(("em-standard-4", "em-standard-8", "em-highcpu-16", "em-highcpu-32"), (32,)):
        assert by_name[kind].cpu_cores * vcpu == int(kind.rsplit("-", 1)[1])
    assert snapshot(CATALOGUE) == snapshot(reversed(CATALOGUE))
    assert snapshot(CATALOGUE) != snapshot(CATALOGUE[1:])


def test_a_directory_belongs_to_one_grid():
    grid = parse(SMALL, "g")
    rows = expand(grid, 2)
    assert grid_digest(rows, grid) == grid_digest(tuple(reversed(rows)), grid)
    assert grid_digest(rows[1:], grid) != grid_digest(rows, grid)
