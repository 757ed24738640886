"""Options of an elastic training that make no sense are refused with what is wrong."""

from __future__ import annotations

import pytest
import typer

from services.trainer.commands.elastic_options import (
    PlaceOptions,
    bounds_of,
    check_elastic,
    check_not_elastic,
    checked,
    place_of,
    schedule_of,
)
from services.trainer.core.elastic import Goal, Policy
from services.trainer.core.worker_place import Form, Place, WorkerLimits
from tests.support.trainer_plans import pipeline_plan, plan_of

PLAN = plan_of([6, 2], [2, 1], [3, 1])


def test_bounds_are_two_numbers_of_workers() -> None:
    assert bounds_of("1:4") == (1, 4)
    for text in ("4", "0:4", "4:1", "1:", "a:b", "1:99999"):
        with pytest.raises(typer.BadParameter, match="is no LEAST:MOST"):
            bounds_of(text)


def test_a_policy_needs_its_figure() -> None:
    with pytest.raises(typer.BadParameter, match="needs --deadline-s"):
        checked(Goal(Policy.DEADLINE, 1, 2))
    with pytest.raises(typer.BadParameter, match="needs --budget-usd and --usd-per-hour"):
        checked(Goal(Policy.BUDGET, 1, 2, budget_usd=3.0))
    goal = Goal(Policy.BUDGET, 1, 2, usd_per_hour=1.0, budget_usd=3.0)
    assert checked(goal) is goal


def test_without_a_schedule_each_step_has_the_plans_batch() -> None:
    assert schedule_of(None, PLAN).batch(1_000) == 8
    assert schedule_of("4,10:6", PLAN).batch(10) == 6
    with pytest.raises(typer.BadParameter, match="no STEP:SAMPLES"):
        schedule_of("many", PLAN)


def test_unequal_devices_pipelines_several_machines_and_a_dry_run_are_refused() -> None:
    check_elastic(PLAN, dry_run=False)
    unequal = tuple(device.model_copy(update={"kind": f"k{device.rank}"}) for device in PLAN.devices)
    with pytest.raises(typer.BadParameter, match="kinds k0, k1"):
        check_elastic(PLAN.model_copy(update={"devices": unequal}), dry_run=False)
    with pytest.raises(typer.BadParameter, match="for several"):
        check_elastic(PLAN.model_copy(update={"launch": ("a", "b")}), dry_run=False)
    with pytest.raises(typer.BadParameter, match="the plan is a pipeline"):
        check_elastic(pipeline_plan([[0], [1]], [(0, 1), (1, 1)], [2, 2], [1, 1]), dry_run=False)
    with pytest.raises(typer.BadParameter, match="no line to print"):
        check_elastic(PLAN, dry_run=True)


def options(form: Form = Form.PROCESS, image: str = "", *mounts: str) -> PlaceOptions:
    return PlaceOptions(form, None, None, image, mounts)


def test_limits_are_those_of_the_plans_devices_unless_the_user_says_others() -> None:
    devices = tuple(
        device.model_copy(update={"kind": "sandbox:0.5", "allowed_bytes": 1 << 30, "planned_bytes": 1 << 28})
        for device in PLAN.devices
    )
    plan = PLAN.model_copy(update={"devices": devices})

    assert place_of(options(Form.SANDBOX), plan) == Place(Form.SANDBOX, WorkerLimits(0.5, 1 << 30))
    said = PlaceOptions(Form.DOCKER, 2.0, "512MiB", "trainer:1", ("/data:/data:ro",))
    assert place_of(said, plan) == Place(Form.DOCKER, WorkerLimits(2.0, 512 << 20), "trainer:1", ("/data:/data:ro",))
    assert place_of(options(), plan) == Place(), "processes share this machine, whatever was planned"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (options(Form.SANDBOX), "does not name its devices' kind.*--worker-cpus"),
        (PlaceOptions(Form.SANDBOX, 1.0, None, "", ()), "how much memory.*--worker-memory"),
        (PlaceOptions(Form.SANDBOX, 1.0, "1MiB", "", ()), "less than a worker needs"),
        (PlaceOptions(Form.SANDBOX, 1.0, "much", "", ()), "is no size"),
        (PlaceOptions(Form.PROCESS, 1.0, None, "", ()), "processes have no limits"),
        (options(Form.DOCKER), "needs --image"),
        (options(Form.SANDBOX, "trainer:1"), "needs --image, and no other"),
        (options(Form.SANDBOX, "", "/a:/a"), "only --workers docker"),
        (options(Form.DOCKER, "trainer:1", "a:b"), "no SOURCE:TARGET"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused_with_the_option_that_helps(given: PlaceOptions, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        place_of(given, PLAN)


def test_a_kind_without_cores_is_named() -> None:
    devices = tuple(device.model_copy(update={"kind": "l4"}) for device in PLAN.devices)
    with pytest.raises(typer.BadParameter, match=r"of kind 'l4'.*--worker-cpus"):
        place_of(options(Form.SANDBOX), PLAN.model_copy(update={"devices": devices}))


def test_where_torchrun_starts_ranks_there_is_no_place_to_choose() -> None:
    check_not_elastic(options())
    with pytest.raises(typer.BadParameter, match="are of --elastic"):
        check_not_elastic(options(Form.SANDBOX))
