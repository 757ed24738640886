"""How the ranks of a job divide each step and the state: as a plan says, or evenly where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.layers import Dtype
from schemas.plans import Engine, Plan
from services.trainer.worker.cuts import sample_range
from services.trainer.worker.plan_file import check_plan, check_world
from services.trainer.worker.routes import Pipeline, pipeline_of


@dataclass(frozen=True, slots=True)
class Division:
    """What is carried out; fields without a unit are by rank."""

    engine: Engine
    batch: int
    """Samples of a step, of all ranks."""
    samples: tuple[int, ...]
    microbatch_samples: tuple[int, ...]
    """Of one micro-batch; 0: the rank has none."""
    state_shares: tuple[float, ...]
    gather_dtype: Dtype = Dtype.FLOAT32
    pipeline: Pipeline | None = None
    """Of engine ministage."""

    def sample_positions(self, rank: int) -> Sequence[int]:
        """In the global batch, of the samples that a rank loads."""
        if self.pipeline is not None:
            return self.pipeline.sample_positions(rank)
        return sample_range(self.samples, rank)


def of_plan(plan: Plan, world: int) -> Division:
    """A plan's.

    Raises:
        RefusedError: it is for another number of ranks, or no engine here can follow it.
    """
    check_world(plan, world)
    check_plan(plan)
    return Division(
        plan.engine,
        plan.batch,
        tuple(device.samples for device in plan.devices),
        tuple(device.microbatch for device in plan.devices),
        tuple(device.state_share for device in plan.devices),
        plan.gather_dtype,
        pipeline_of(plan) if plan.engine is Engine.MINISTAGE else None,
    )


def evenly(batch: int, world: int) -> Division:
    """The same for each rank; samples that are left over go to the first ones.

    Engine fsdp2 takes any model, but needs a sample for every rank.
    """
    each, left = divmod(batch, world)
    samples = tuple(each + (rank < left) for rank in range(world))
    engine = Engine.FSDP2 if each else Engine.LAYERED
    return Division(engine, batch, samples, samples, (1 / world,) * world)


def among_workers(batch: int, world: int, most_microbatch: int, gather_dtype: Dtype = Dtype.FLOAT32) -> Division:
    """The same for each of some workers that are all alike, in micro-batches of at most so many samples.

    Engine layered: workers may have different numbers of micro-batches, or none, and the state can be cut anew.
    """
    each, left = divmod(batch, world)
    samples = tuple(each + (rank < left) for rank in range(world))
    microbatch = tuple(min(own, most_microbatch) for own in samples)
    return Division(Engine.LAYERED, batch, samples, microbatch, (1 / world,) * world, gather_dtype)
