"""Trainings of one model on four ranks of two machines, each by another way; a rank's part of each.

All have the same parameters, samples, loss and AdamW, so their losses agree (`run.py` looks). FSDP2 and 1F1B keep what
the backward pass needs; engine ministage, and LoopedBFS beside it, recompute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import ScheduleLoopedBFS

from services._jobs.layer_chain import chain_of
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.flat import Placement
from services.trainer.worker.fsdp2 import Fsdp2Engine
from services.trainer.worker.ministage import MinistageEngine
from services.trainer.worker.routes import pipeline_of
from services.trainer.worker.step_clock import StepClock
from tests.bench.pipelines.cases import FSDP2, LOOPED, MACHINES, OURS, PLAIN, RANKS, Extent
from tests.bench.unequal.job import Block, loss
from tests.support.trainer_plans import pipeline_plan

CPU: Final = torch.device("cpu")
Step = Callable[[Tensor, Tensor], float]
"""Of a batch's inputs and targets, the same on all ranks; returns this rank's part of the loss."""


def ways(extent: Extent) -> dict[str, Step]:
    """One training of each way. A collective of all ranks."""
    return {
        OURS: _ministage(extent, turns=2),
        "ministage-1": _ministage(extent, turns=1),
        FSDP2: _fsdp2(extent),
        PLAIN: _one_f_one_b(extent),
        LOOPED: _looped(extent),
    }


def _blocks(extent: Extent) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Block(extent.width) for _ in range(extent.blocks)]


def _optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False)


def _ministage(extent: Extent, turns: int) -> Step:
    rank, stages = dist.get_rank(), turns * len(MACHINES)
    microbatches = extent.samples // extent.microbatch
    plan = pipeline_plan(
        MACHINES,
        [(place % len(MACHINES), extent.blocks // stages) for place in range(stages)],
        [microbatches // len(members) for members in MACHINES for _ in members],
        [1.0] * RANKS,
        extent.microbatch,
    )
    pipeline = pipeline_of(plan)
    engine = MinistageEngine(chain_of(nn.Sequential(*_blocks(extent))), pipeline, Placement(rank, (1.0,) * RANKS, CPU))
    optimizer = _optimizer(engine.parameters)
    positions = torch.tensor(pipeline.sample_positions(rank))

    def step(inputs: Tensor, targets: Tensor) -> float:
        wanted = targets[positions].split(extent.microbatch)
        given = inputs[positions].split(extent.microbatch)
        value = engine.step(
            given, lambda output, number: loss(output, wanted[number]) / extent.samples, StepClock(CPU), optimizer
        )
        return float(value)

    return step


def _fsdp2(extent: Extent) -> Step:
    model = nn.Sequential(*_blocks(extent))
    engine = Fsdp2Engine(BuiltModel(model), chain_of(model), Placement(dist.get_rank(), (1.0,) * RANKS, CPU))
    optimizer = _optimizer(engine.parameters)

    def step(inputs: Tensor, targets: Tensor) -> float:
        mine, wanted = inputs.chunk(RANKS)[dist.get_rank()], targets.chunk(RANKS)[dist.get_rank()]
        value = engine.step(
            [mine], lambda output, _number: loss(output, wanted) / extent.samples, StepClock(CPU), optimizer
        )
        return float(value)

    return step


def _one_f_one_b(extent: Extent) -> Step:
    rank, each = dist.get_rank(), extent.blocks // RANKS
    part = nn.Sequential(*_blocks(extent)[rank * each : (rank + 1) * each])
    schedule = Schedule1F1B(
        PipelineStage(part, rank, RANKS, CPU),
        extent.samples // extent.microbatch,
        loss_fn=lambda output, target: loss(output, target) / extent.samples,
        scale_grads=False,
    )
    optimizer = _optimizer(list(part.parameters()))

    def step(inputs: Tensor, targets: Tensor) -> float:
        return _scheduled(schedule, optimizer, inputs if rank == 0 else None, targets if rank == RANKS - 1 else None)

    return step


def _looped(extent: Extent) -> Step:
    turns = 2
    count = len(MACHINES) * turns
    mesh = init_device_mesh("cpu", (len(MACHINES), len(MACHINES[0])), mesh_dim_names=("machine", "rank"))
    machine, place = mesh.get_local_rank("machine"), mesh.get_local_rank("rank")
    blocks, each = _blocks(extent), extent.blocks // count
    stages, parameters = [], []
    for index in range(machine, count, len(MACHINES)):
        part = nn.Sequential(*(checkpoint_wrapper(block) for block in blocks[index * each : (index + 1) * each]))
        for module in (*part, part):
            fully_shard(module, mesh=mesh["rank"], reshard_after_forward=False)
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # as in the trainer: gloo cannot scale on the way
        stages.append(PipelineStage(part, index, count, CPU, group=mesh.get_group("machine")))
        parameters += part.parameters()
    schedule = ScheduleLoopedBFS(
        stages,
        extent.samples // len(MACHINES[0]) // extent.microbatch,
        loss_fn=lambda output, target: loss(output, target) / extent.samples,
        scale_grads=False,
    )
    optimizer = _optimizer(parameters)

    def step(inputs: Tensor, targets: Tensor) -> float:
        mine, wanted = inputs.chunk(len(MACHINES[0]))[place], targets.chunk(len(MACHINES[0]))[place]
        is_last = machine == len(MACHINES) - 1
        return _scheduled(schedule, optimizer, mine if machine == 0 else None, wanted if is_last else None)

    return step


def _scheduled(
    schedule: Schedule1F1B | ScheduleLoopedBFS,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor | None,
    targets: Tensor | None,
) -> float:
    losses: list[Tensor] = []
    optimizer.zero_grad()
    given = () if inputs is None else (inputs,)
    schedule.step(*given, target=targets, losses=None if targets is None else losses)
    optimizer.step()
    return sum(float(value) for value in losses)
