"""The training loop of one rank: a plan, a model, steps, checkpoints."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from schemas.layers import Dtype
from schemas.plans import Engine as EngineName
from schemas.plans import Plan
from services._runtime.command.tool_events import emit, say
from services.trainer.worker import checkpoint
from services.trainer.worker.batches import Microbatches, microbatches
from services.trainer.worker.blocks import blocks_of, digest_text
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.checkpoint import CheckpointError, Progress
from services.trainer.worker.division import Division, evenly, of_plan
from services.trainer.worker.engine import Engine
from services.trainer.worker.flat import Placement
from services.trainer.worker.fsdp2 import Fsdp2Engine
from services.trainer.worker.host_memory import HostMemory
from services.trainer.worker.layered import LayeredEngine
from services.trainer.worker.ministage import MinistageEngine
from services.trainer.worker.options import Options
from services.trainer.worker.plan_file import RefusedError, read_plan
from services.trainer.worker.process_group import Ranks, agreed, check_same, joined
from services.trainer.worker.refusals import check_model, layered_chain
from services.trainer.worker.report import StepReports, open_sink
from services.trainer.worker.resident_memory import peak_resident_bytes
from services.trainer.worker.sampler import PlanSampler
from services.trainer.worker.step_clock import StepClock, StepTimes
from services.trainer.worker.stop_request import StopRequest
from services.trainer.worker.user_code import UserCode, load_model, load_user_code

_PROGRESS_EVERY_S: Final = 1.0


def run(options: Options, stop: StopRequest) -> None:
    """Train to the last step, or to the boundary after a request to stop.

    Raises:
        RefusedError, UserCodeError, CheckpointError: something of the user's cannot be used.
        RankFailedError: another rank has failed.
    """
    plan = read_plan(options.plan) if options.plan is not None else None
    with joined(options) as ranks:
        training = _prepare(options, division_of(options, plan, ranks), ranks)
        training.start()
        training.go_on(stop)


def division_of(options: Options, plan: Plan | None, ranks: Ranks) -> Division:
    """The plan's, or an even one.

    Raises:
        RefusedError: the plan is for another number of ranks, or no engine can follow it.
    """
    if plan is not None:
        return of_plan(plan, ranks.world)
    assert options.batch is not None
    division = evenly(options.batch, ranks.world)
    if ranks.rank == 0:
        engine, most = division.engine, division.samples[0]
        say(f"without a plan: {division.batch} samples divided evenly, up to {most} for each rank (engine {engine})")
    return division


def _prepare(options: Options, division: Division, ranks: Ranks) -> Training:
    built = load_model(options)
    check_model(built.model)
    agreement = f"{division} {options.seed} {options.steps} {options.checkpoint_every} "
    check_same(ranks, agreement + digest_text([("", built.model)]))
    if built.whole_because and ranks.rank == 0:
        say(f"each rank builds the whole model before it keeps its part: {built.whole_because}")
    engine = build_engine(division, built, ranks, is_offloaded=options.offload)
    user = load_user_code(options)
    return Training(
        options, division, ranks, user, engine, user.optimizer(engine.parameters), Progress(0, 0, options.seed)
    )


def build_engine(division: Division, built: BuiltModel, ranks: Ranks, *, is_offloaded: bool = False) -> Engine:
    """The engine that the division is for, with this rank's part of the model.

    Args:
        division: what is carried out.
        built: the model.
        ranks: of the job.
        is_offloaded: a GPU's parts of parameters and optimizer state are kept in the host's memory.

    Raises:
        RefusedError: the model cannot be used with it, or offloading cannot.
    """
    if is_offloaded and division.pipeline is None:
        raise RefusedError(f"--offload is of pipelines (engine ministage), and this plan's engine is {division.engine}")
    low = torch.bfloat16 if division.gather_dtype is Dtype.BFLOAT16 else None
    host = HostMemory.of(ranks.device) if is_offloaded else None
    placement = Placement(ranks.rank, division.state_shares, ranks.device, low, host=host)
    if division.engine is EngineName.FSDP2:
        return Fsdp2Engine(built, blocks_of(built.model), placement)
    layers = layered_chain(built.model, division.engine)
    if division.pipeline is not None:
        return MinistageEngine(layers, division.pipeline, placement, built, ranks.timeout)
    return LayeredEngine(layers, placement, built)


@dataclass
class Training:
    """One rank's part of a training."""

    options: Options
    division: Division
    ranks: Ranks
    user: UserCode
    engine: Engine
    optimizer: torch.optim.Optimizer
    done: Progress
    saved_step: int = 0
    _emitted_s: float = 0.0

    def start(self) -> None:
        """Continue at the newest checkpoint, if there is any."""
        if self.options.checkpoint is None:
            return
        found = checkpoint.load(self.options.checkpoint, self.engine, self.optimizer)
        if found is None:
            return
        if found.seed != self.options.seed:
            raise CheckpointError(f"the checkpoint is of a training with --seed {found.seed}: give that one")
        self.done, self.saved_step = found, found.step
        self._say(f"goes on after step {found.step}", "resumed")

    def go_on(self, stop: StopRequest) -> None:
        """Train and save."""
        reports = StepReports(self.ranks.rank, open_sink(self.options.report)) if self.options.report else None
        loss: float | None = None
        _, is_stopped = agreed(self.ranks, 0.0, stop=stop.is_made)
        batches = self.batches()
        while not is_stopped and self.done.step < self.options.steps:
            loss, is_stopped = self._step(batches, stop, reports)
            self.emit_progress(loss)
            if is_stopped or self.done.step % self.options.checkpoint_every == 0:
                self.save()
        self.save()
        if reports is not None:
            reports.close()
        if self.ranks.rank == 0:
            emit("result", step=self.done.step, loss=finite(loss), stopped=is_stopped)

    def batches(self, steps: int | None = None) -> Any:
        """This rank's samples of the next steps, by default of all that are left."""
        left = self.options.steps - self.done.step if steps is None else steps
        sampler = PlanSampler(
            self.user.dataset_samples,
            self.division.batch,
            self.division.sample_positions(self.ranks.rank),
            self.options.seed,
            self.done.samples,
            max(left, 0),
        )
        mine = self.division.microbatch_samples[self.ranks.rank]
        return microbatches(self.user, sampler, mine, self.ranks.device)

    def _step(self, batches: Any, stop: StopRequest, reports: StepReports | None) -> tuple[float, bool]:
        """One step; the global batch's loss, and whether to stop."""
        value, clock = self.updated(batches)
        times = clock.end()
        loss, is_stopped = agreed(self.ranks, float(value), stop=stop.is_made)
        self.count(times, loss, reports)
        return loss, is_stopped

    def updated(self, batches: Any) -> tuple[Tensor, StepClock]:
        """Parameters after the next step; returns as `gradients`."""
        return self.gradients(batches, self.optimizer)

    def gradients(self, batches: Any, optimizer: torch.optim.Optimizer | None = None) -> tuple[Tensor, StepClock]:
        """Of the next step, into the parameters; returns this rank's part of the loss, and the step's clock.

        Args:
            batches: `batches()`.
            optimizer: steps with them; None: the caller does that.
        """
        # A rank's dropout depends on the step alone, so a training that was stopped and goes on draws the same.
        torch.manual_seed(_drawing_seed(self.options.seed, self.done.step, self.ranks.rank))
        batch: Microbatches = next(batches)
        clock = StepClock(self.ranks.device)

        def loss_of(output: Tensor, number: int) -> Tensor:
            return self.user.loss(output, batch.targets[number]) / self.division.batch

        return self.engine.step(batch.inputs, loss_of, clock, optimizer), clock

    def count(self, times: StepTimes, loss: float, reports: StepReports | None) -> None:
        """The step is done by all ranks."""
        if reports is not None:
            samples = self.division.samples[self.ranks.rank]
            memory_bytes = _peak_memory_bytes(self.ranks.device)
            reports.add(self.done.step, times, samples, memory_bytes, finite(loss))
        self.done = Progress(self.done.step + 1, self.done.samples + self.division.batch, self.options.seed)

    def save(self) -> None:
        """Write a checkpoint, unless this step has one. A collective."""
        if self.saved_step == self.done.step:
            return
        self.saved_step = self.done.step
        if self.options.checkpoint is None:
            self._say("nothing is saved: no --checkpoint was given")
            return
        checkpoint.save(self.options.checkpoint, self.engine, self.optimizer, self.done)
        self._say(f"saved after step {self.done.step}", "saved")

    def emit_progress(self, loss: float) -> None:
        """Once a second, by rank 0."""
        now_s = time.monotonic()
        if self.ranks.rank == 0 and now_s >= self._emitted_s + _PROGRESS_EVERY_S:
            self._emitted_s = now_s
            emit("progress", done=self.done.step, total=self.options.steps, loss=finite(loss))

    def _say(self, text: str, event: str = "") -> None:
        """A sentence of rank 0, and for programs the event that it is about."""
        if self.ranks.rank == 0:
            say(text)
            if event:
                emit(event, step=self.done.step)


def finite(loss: float | None) -> float | None:
    """JSON has no other numbers: None where a training has diverged, or done no step."""
    return loss if loss is not None and math.isfinite(loss) else None


def _drawing_seed(seed: int, step: int, rank: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest())


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()
