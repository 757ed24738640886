"""What the thesis' networks see, and that nothing of left-out rows is in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.advisor.core.encoder import SERIES_CHANNELS, SERIES_STEPS
from services.advisor.core.table import Table
from services.advisor.models.thesis_bilstm.inputs import (
    LAYER_SEGMENTS,
    TABLE_4_1,
    Inputs,
    Rows,
    SeriesScale,
    groups,
    ordered_layers,
)
from tests.support.thesis_jobs import table_of


@pytest.fixture(scope="module")
def table() -> Table:
    return table_of(("a", "b", "c"), each=6)


def _same(left: Inputs, right: Inputs) -> None:
    for name in ("kept", "logarithmic", "middle", "scale"):
        np.testing.assert_array_equal(getattr(left.preprocessing, name), getattr(right.preprocessing, name))
    np.testing.assert_array_equal(left.series_scale.middle, right.series_scale.middle)
    np.testing.assert_array_equal(left.series_scale.deviation, right.series_scale.deviation)
    assert left.layer_types == right.layer_types


def _used(inputs: Inputs, table: Table) -> set[str]:
    return {table.feature_names[at] for at in inputs.preprocessing.kept}


def test_statics_are_those_of_table_4_1(table: Table) -> None:
    used = _used(Inputs.fit(table, TABLE_4_1), table)
    assert {"task.parameter_count", "config.workers", "config.batch_size", "config.vcpu", "config.memory_gb"} <= used
    assert any(name.startswith("config.instance_type=") for name in used)
    assert any(name.startswith("task.layers.") for name in used)
    beyond = ("local.", "series.", "config.price", "task.samples_per_epoch", "task.forward_flops")
    assert not [name for name in used if name.startswith(beyond)]


def test_the_local_run_can_be_among_the_statics(table: Table) -> None:
    used = _used(Inputs.fit(table, ("task.", "config.", "local.")), table)
    assert "task.samples_per_epoch" in used
    assert not [name for name in used if name.startswith("series.")]


def test_static_numbers_are_standardised_on_the_training_rows(table: Table) -> None:
    inputs = Inputs.fit(table, TABLE_4_1)
    prepared = inputs.apply(table).static.numpy()[:, : len(inputs.preprocessing.kept)]
    np.testing.assert_allclose(prepared.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(prepared.std(axis=0), 1.0, atol=1e-5)


def test_series_are_standardised_and_stand_there_once_per_task(table: Table) -> None:
    rows = Inputs.fit(table, TABLE_4_1).apply(table)
    assert rows.series.shape == (3, SERIES_STEPS, len(SERIES_CHANNELS))
    np.testing.assert_allclose(rows.series.mean(dim=(0, 1)).numpy(), 0.0, atol=1e-4)
    np.testing.assert_allclose(rows.series.std(dim=(0, 1), correction=0).numpy(), 1.0, atol=1e-4)
    assert rows.task.tolist() == [sorted(set(table.task.tolist())).index(one) for one in table.task.tolist()]


def test_nothing_of_a_left_out_task_is_learned(table: Table) -> None:
    """Its rows, series and layers may be anything: what is learned of the others stays the same."""
    left_out = table.task == "c"
    features = table.features.copy()
    features[left_out] = 1e9
    other = replace(
        table,
        features=features,
        task_series=table.task_series | {"c": table.task_series["c"] * 1e6 + 3.0},
        task_layers=table.task_layers | {"c": ("Unheard", "Of")},
    )
    _same(
        Inputs.fit(table.select(~left_out), TABLE_4_1),
        Inputs.fit(other.select(~left_out), TABLE_4_1),
    )
    # the check can fail: with the rows themselves, they do tell
    with pytest.raises(AssertionError):
        _same(Inputs.fit(table, TABLE_4_1), Inputs.fit(other, TABLE_4_1))


def test_each_task_counts_once_in_the_series_scale(table: Table) -> None:
    more_of_a = np.concatenate((np.arange(len(table)), np.flatnonzero(table.task == "a")))
    once, often = SeriesScale.fit(table), SeriesScale.fit(table.select(more_of_a))
    np.testing.assert_array_equal(once.middle, often.middle)
    np.testing.assert_array_equal(once.deviation, often.deviation)


def test_a_task_without_series_is_marked(table: Table) -> None:
    inputs = Inputs.fit(table, TABLE_4_1)
    without = {name: series for name, series in table.task_series.items() if name != "b"}
    rows = inputs.apply(replace(table, task_series=without))
    missing = table.task == "b"
    assert rows.static.shape == (len(table), inputs.static_width)
    np.testing.assert_array_equal(rows.static[:, -1].numpy(), np.where(missing, 0.0, 1.0))
    assert (rows.task.numpy()[missing] == -1).all()
    assert (rows.task.numpy()[~missing] >= 0).all()
    assert len(rows.series) == 2


def test_a_table_without_any_series_has_none(table: Table) -> None:
    bare = replace(table, task_series={})
    rows = Inputs.fit(bare, TABLE_4_1).apply(bare)
    assert rows.series.shape == (0, SERIES_STEPS, len(SERIES_CHANNELS))
    assert (rows.task == -1).all()


def test_taken_rows_keep_their_series(table: Table) -> None:
    rows = Inputs.fit(table, TABLE_4_1).apply(table)
    some: Rows = rows.take(rows.task.new_tensor([5, 17]))
    assert len(some) == 2
    assert some.task.tolist() == [rows.task[5].item(), rows.task[17].item()]
    assert some.series is rows.series


def test_layers_are_told_in_their_order() -> None:
    # 8 parts of 4 layers: each layer fills two parts
    told = ordered_layers(("Conv", "ReLU", "Linear", "Linear"), ("Conv", "Linear", "ReLU")).reshape(LAYER_SEGMENTS, 3)
    conv, linear, relu = [1, 0, 0], [0, 1, 0], [0, 0, 1]
    np.testing.assert_allclose(told, [conv, conv, relu, relu, linear, linear, linear, linear], atol=1e-12)
    reverse = ordered_layers(("Linear", "Linear", "ReLU", "Conv"), ("Conv", "Linear", "ReLU")).reshape(-1, 3)
    np.testing.assert_allclose(reverse, told[::-1], atol=1e-12)


def test_long_networks_are_averaged_and_unknown_layers_are_nothing() -> None:
    # 16 layers in 8 parts: each part is one Conv and one that was never seen
    told = ordered_layers(("Conv", "New") * 8, ("Conv",))
    np.testing.assert_allclose(told, np.full(8, 0.5))
    assert ordered_layers((), ("Conv",)).tolist() == [0.0] * 8


def test_groups_are_cpu_memory_and_both_directions_of_the_network() -> None:
    names = {group: [SERIES_CHANNELS[at] for at in channels] for group, channels in groups().items()}
    assert names == {
        "cpu_usage": ["master.cpu_cores", "workers.cpu_cores"],
        "memory_usage": ["master.memory_bytes", "workers.memory_bytes"],
        "network_usage": [
            "master.network_in_bytes_per_s",
            "master.network_out_bytes_per_s",
            "workers.network_in_bytes_per_s",
            "workers.network_out_bytes_per_s",
        ],
    }
