"""A plan's file, and what the trainer cannot carry out of it. Needs no torch: `turnbuckle train` reads it, too."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from schemas.layers import Dtype
from schemas.plans import Engine, Plan
from services.trainer.worker.routes import pipeline_of


class RefusedError(Exception):
    """The model, the optimizer or the plan cannot be used; the message says why and what would help."""


def read_plan(file: Path) -> Plan:
    """The plan in a file.

    Raises:
        RefusedError: it cannot be read, or is no plan.
    """
    try:
        return Plan.model_validate_json(file.read_bytes())
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(map(str, detail["loc"]))
        raise RefusedError(f"{file} is no plan: {f'{place}: ' if place else ''}{detail['msg']}") from error


def check_world(plan: Plan, world: int) -> None:
    """Refuse a plan for another number of devices.

    Raises:
        RefusedError: names both numbers.
    """
    if len(plan.devices) != world:
        raise RefusedError(
            f"the plan is for {len(plan.devices)} devices, but torchrun started {world} processes: "
            f"give it --nproc-per-node and --nnodes for {len(plan.devices)}"
        )


def check_plan(plan: Plan) -> None:
    """Refuse a plan that the trainer's engines cannot follow.

    Raises:
        RefusedError: says what to plan instead.
    """
    if plan.engine is Engine.MINISTAGE:
        try:
            pipeline_of(plan)
        except ValueError as error:
            raise RefusedError(f"the plan's pipeline does not fit together: {error}; plan anew") from error
    if plan.gather_dtype is Dtype.FLOAT16:
        raise RefusedError("gather_dtype float16 needs a scaled loss, which the trainer has not: plan with bfloat16")
    if plan.engine is not Engine.FSDP2:
        return
    if any(device.samples == 0 for device in plan.devices):
        raise RefusedError("engine fsdp2 needs a sample for every rank in each step: take engine layered")
    if any(device.microbatches > 1 for device in plan.devices):
        raise RefusedError("engine fsdp2 takes one micro-batch per rank and step: take engine layered")
