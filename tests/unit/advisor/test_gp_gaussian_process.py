"""The process: its likelihood's slopes, its closed forms and what it contains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from schemas.predictions import Objective
from services.advisor.core.table import Table, build
from services.advisor.models.gp.algorithm import select_jointly
from services.advisor.models.gp.calibration import Calibration
from services.advisor.models.gp.gaussian_process import (
    GaussianProcess,
    KnownRows,
    MarginalLikelihood,
    Posterior,
    fit_process,
    left_out,
)
from services.advisor.models.gp.kernel import Kernel
from services.advisor.models.gp.observations import Level, design_of, subsampled
from services.advisor.models.gp.space import Space, configuration_space, task_space
from tests.support.gp_tables import World


def table_of(world: World) -> Table:
    return build(world.records(), world.profiles())[0]


def prepared(table: Table) -> tuple[Kernel, Level, np.ndarray]:
    kernel, level = Kernel(configuration_space(table), task_space(table)), Level.of(table)
    return kernel, level, np.log(table.time_s) - level.logarithms(table)


def processed(table: Table, rows: np.ndarray) -> tuple[GaussianProcess, np.ndarray]:
    """A process after some rows, at the prior's hyperparameters."""
    kernel, level, targets = prepared(table)
    return fit_process(design_of(kernel, table.select(rows), level), targets[rows], kernel.prior()[0]), targets


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_likelihood_slopes_are_those_of_finite_differences(seed):
    table = table_of(World(tasks=3, seed=seed, workers=(1, 4)))
    kernel, level, targets = prepared(table)
    likelihood = MarginalLikelihood(design_of(kernel, table, level), targets)
    at = kernel.prior()[0] + 0.3 * np.random.default_rng(seed).standard_normal(len(kernel.names))
    numeric = approx_fprime(at, lambda logarithms: likelihood(logarithms)[0], 1e-6)
    assert likelihood(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_leaving_out_in_closed_form_is_learning_without_the_rows():
    table = table_of(World(tasks=4, workers=(1, 4)))
    everything = np.arange(len(table))
    out = np.flatnonzero(table.task == "beta")
    whole, targets = processed(table, everything)
    errors = left_out(whole, targets, out)
    kernel, level, _ = prepared(table)
    rest = np.setdiff1d(everything, out)
    without = fit_process(design_of(kernel, table.select(rest), level), targets[rest], kernel.prior()[0])
    posterior = without.posterior(design_of(kernel, table.select(out), level))
    assert targets[out] - errors.mean == pytest.approx(posterior.mean, abs=1e-5)
    assert errors.covariance == pytest.approx(posterior.covariance, abs=1e-5)


def test_a_row_that_is_known_is_believed_and_its_neighbours_get_surer():
    table = table_of(World(tasks=4))
    process, targets = processed(table, np.flatnonzero(table.task != "beta"))
    kernel, level, _ = prepared(table)
    asked = table.select(table.task == "beta")
    before = process.posterior(design_of(kernel, asked, level))
    row = np.array([5])
    after = before.conditioned_on(row, targets[table.task == "beta"][row], 1e-6)
    assert after.mean[5] == pytest.approx(targets[table.task == "beta"][5], abs=1e-3)
    assert (after.standard_deviation() <= before.standard_deviation() + 1e-9).all()
    assert after.standard_deviation()[5] < 0.01 < before.standard_deviation()[5]


def test_marginals_are_those_of_the_joint_beliefs():
    table = table_of(World(tasks=4))
    process, _ = processed(table, np.flatnonzero(table.task != "beta"))
    kernel, level, _ = prepared(table)
    design = design_of(kernel, table.select(table.task == "beta"), level)
    for known in (np.zeros(0, dtype=np.int64), np.array([7]), np.array([2, 9])):
        level = np.full(len(design), 0.5)
        level[known[1:]] = 0.0
        given = KnownRows(known, 0.1 * known, np.full(len(known), 0.02), level)
        joint = process.posterior(design, given)
        mean, deviation = process.marginals(design, given)
        assert mean == pytest.approx(joint.mean, abs=1e-6)
        assert deviation == pytest.approx(joint.standard_deviation(), abs=1e-4)


def test_the_mean_ranking_is_the_special_case_without_features():
    """Only keys are known: configurations are then ordered by their mean logarithmic ratio over tasks."""
    table = table_of(World(tasks=5, noise=0.3))
    _, level, targets = prepared(table)
    bare = Kernel(Space(()), Space(()))
    process = fit_process(design_of(bare, table, level), targets, bare.prior()[0])
    asked = table.select(table.task == "alpha")
    stranger = asked.select(np.arange(len(asked)))
    object.__setattr__(stranger, "task", np.full(len(stranger), "stranger"))
    believed = process.posterior(design_of(bare, stranger, level)).mean
    means = [targets[table.configuration_key == key].mean() for key in stranger.configuration_key]
    assert np.argsort(believed).tolist() == np.argsort(means).tolist()


@given(st.integers(1, 6), st.integers(0, 1000))
def test_runs_that_are_best_together_are_new_and_each_brings_the_best_nearer(count, seed):
    random = np.random.default_rng(seed)
    root = random.standard_normal((count, count))
    posterior = Posterior(random.standard_normal(count), root @ root.T + 0.01 * np.eye(count))
    chosen = select_jointly(posterior, 4, seed)
    expected = [one for _, one in chosen]
    assert len({row for row, _ in chosen}) == len(chosen) == min(4, count)
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] >= 1.0 - 1e-12
    if count <= 4:
        assert expected[-1] == pytest.approx(1.0)


def test_the_second_run_is_another_kind_than_the_first():
    """Rows 0 and 1 are the same but for little; row 2 is worse in the middle, but might be anything."""
    covariance = np.array([[0.04, 0.039, 0.0], [0.039, 0.04, 0.0], [0.0, 0.0, 0.25]])
    posterior = Posterior(np.array([0.0, 0.02, 0.15]), covariance)
    assert [row for row, _ in select_jointly(posterior, 2, 0)] == [0, 2]


def test_calibration_counts_each_task_the_same_and_imagines_one_more():
    # 1 task with 1000 errors of 1, 8 tasks with one error of 3: of 10 tasks (one imagined), those of 3 have 80 %.
    task = np.array(["big"] * 1000 + [f"small{at}" for at in range(8)])
    errors = np.array([1.0] * 1000 + [-3.0] * 8)
    calibration = Calibration.of(task, errors)
    assert calibration.factor(0.5) == pytest.approx(3.0)
    assert calibration.weights.sum() == pytest.approx(1.0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50))
def test_calibration_factors_grow_with_the_level(errors):
    calibration = Calibration.of(np.array(["one"] * len(errors)), np.array(errors))
    factors = [calibration.factor(level) for level in (0.1, 0.5, 0.8, 0.9, 0.99)]
    assert factors == sorted(factors)


def test_thinning_keeps_every_task_and_is_the_same_under_the_same_seed():
    table = table_of(World(tasks=6))
    rows = subsampled(table, 60, 3)
    assert set(table.task[rows]) == set(table.task)
    assert len(rows) == 60
    assert rows.tolist() == subsampled(table, 60, 3).tolist()
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert subsampled(table, 10_000, 3).tolist() == list(range(len(table)))


def test_level_counts_each_task_once():
    table = table_of(World(tasks=4))
    references = {task: float(np.log(table.reference_time_s[table.task == task][0])) for task in np.unique(table.task)}
    level = Level.of(table.select(np.flatnonzero((table.task != "alpha") | (np.arange(len(table)) < 3))))
    assert level.mean == pytest.approx(np.mean(list(references.values())))
    assert table.completed(Objective.TIME).all()
