"""A rank of a replicated training whose steps are made by aggregators: gradients out, updated parameters back.

    begin     the ranges are placed; rank 0 gives parameters, and the moments of the last checkpoint
    step      each rank pushes its gradient, and pulls the parameters after it
    lost      the ranges are gone with their aggregator: placed anew, they begin with the parameters of the last step
              that any rank has finished, and with the moments of the last checkpoint
    saved     rank 0 asks for the moments, and writes a checkpoint as of any other training

Ranks agree on what they do next by their process group: each step, whether all have finished it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from schemas.aggregations import AggregationOptimizer
from schemas.layers import Dtype
from services._jobs.aggregation_frames import RangePlace
from services._runtime.command.tool_events import say
from services.trainer.core.placement import PLACED_WITHIN_S
from services.trainer.worker import checkpoint
from services.trainer.worker.blocks import digest_text
from services.trainer.worker.checkpoint import Progress
from services.trainer.worker.division import Division
from services.trainer.worker.gather import RankFailedError, rank_failures
from services.trainer.worker.options import Options
from services.trainer.worker.placements import Placements
from services.trainer.worker.plan_file import RefusedError, read_plan
from services.trainer.worker.process_group import Ranks, check_same, joined
from services.trainer.worker.push_pull import AggregationLostError, Moments, PushPull
from services.trainer.worker.refusals import check_model
from services.trainer.worker.replicated import ReplicatedEngine, aggregated, vector_names
from services.trainer.worker.run import Training, division_of
from services.trainer.worker.step_clock import Part, StepClock
from services.trainer.worker.stop_request import StopRequest
from services.trainer.worker.user_code import load_model, load_user_code

MOST_LOSSES: Final = 5
"""In a row, without a step in between: then something is wrong with the aggregators."""


def run_aggregated(options: Options, stop: StopRequest) -> None:
    """Train to the last step, or to the boundary after a request to stop.

    Raises:
        RefusedError, UserCodeError, CheckpointError: something of the user's cannot be used.
        PlacementRefusedError: the aggregator service does not take the job.
        RankFailedError: another rank has failed.
    """
    plan = read_plan(options.plan) if options.plan is not None else None
    with joined(options) as ranks:
        training = _prepare(options, division_of(options, plan, ranks), ranks)
        training.start()
        training.go_on(stop)
        training.aggregation.close()


def _prepare(options: Options, division: Division, ranks: Ranks) -> AggregatedTraining:
    if division.pipeline is not None:
        raise RefusedError(
            "every rank computes the whole model, but the plan is a pipeline: plan with another strategy"
        )
    if division.gather_dtype is not Dtype.FLOAT32:
        raise RefusedError(
            f"the plan gathers in {division.gather_dtype}, but aggregators answer float32: plan with that"
        )
    built = load_model(options)
    check_model(built.model)
    agreement = f"aggregated {division} {options.seed} {options.steps} {options.checkpoint_every} "
    check_same(ranks, agreement + digest_text([("", built.model)]))
    engine = ReplicatedEngine(built, ranks.device)
    user = load_user_code(options)
    optimizer = user.optimizer(engine.parameters)
    aggregation = Aggregation(ranks, engine, options, aggregated(optimizer))
    done = Progress(0, 0, options.seed)
    return AggregatedTraining(options, division, ranks, user, engine, optimizer, done, aggregation=aggregation)


class Aggregation:
    """One rank's part of its job's aggregation, through all attempts."""

    def __init__(
        self, ranks: Ranks, engine: ReplicatedEngine, options: Options, optimizer: AggregationOptimizer
    ) -> None:
        assert options.aggregate is not None
        self._ranks, self.engine, self._timeout_s = ranks, engine, float(options.timeout_s)
        self.names = vector_names(optimizer)
        within_s = PLACED_WITHIN_S + self._timeout_s
        self._placements = Placements(options.aggregate, within_s, engine.flat.numel(), optimizer)
        self._attempt = 0
        self._workers: PushPull | None = None
        self._has_moments = False

    def begin(self, moments: Callable[[], Moments]) -> None:
        """Have the ranges placed, with the parameters that are here. A collective.

        Args:
            moments: to go on with; rank 0's count.

        Raises:
            PlacementRefusedError: they are not placed.
            RankFailedError: another rank fails meanwhile, or ranges are lost again and again.
        """
        for _ in range(MOST_LOSSES):
            self._attempt += 1
            given, cause = moments(), ""
            try:
                started = self._start(given)
            except AggregationLostError as error:
                started, cause = None, str(error)
            if all(self._agree(is_done=started is not None)):
                assert started is not None
                self._put(started)
                self._has_moments = bool(given.vectors)
                return
            self._say(f"the ranges were lost before they began: {cause}")
        raise RankFailedError(f"ranges were lost {MOST_LOSSES} times before a step was made")

    def _start(self, moments: Moments) -> Tensor:
        self.close()
        placement = self._placements.ask(self._attempt)
        if placement is None:
            raise RankFailedError("turnbuckle train does not say where ranges are")
        identity = placement.job, self._ranks.rank, placement.key
        self._workers = PushPull(identity, placement.places, self._timeout_s, self._where)
        return self._workers.start(self.engine.flat.cpu(), moments)

    def _where(self) -> tuple[RangePlace, ...]:
        placement = self._placements.ask(self._attempt)
        return placement.places if placement is not None else ()

    def step(self, moments: Callable[[], Moments]) -> None:
        """Sum all ranks' gradients, and take the parameters after the step. A collective.

        Args:
            moments: of the last checkpoint, where the ranges are lost.

        Raises:
            PlacementRefusedError: they were lost, and are not placed anew.
            RankFailedError: another rank fails meanwhile.
        """
        for _ in range(MOST_LOSSES):
            assert self._workers is not None
            result, cause = None, ""
            try:
                result = self._workers.reduce(self.engine.gradient.cpu())
            except AggregationLostError as error:
                cause = str(error)
            finished = self._agree(is_done=result is not None)
            if any(finished):
                self._put(self._of_first(finished, result))
                self._has_moments = bool(self.names)
            if all(finished):
                return
            self._lost(cause, moments)
            if any(finished):
                return
        raise RankFailedError(f"ranges were lost {MOST_LOSSES} times in one step")

    def _lost(self, cause: str, moments: Callable[[], Moments]) -> None:
        self._say(f"the ranges are lost ({cause or 'other ranks say so'}): they begin anew with the parameters here")
        self.begin(moments)

    def moments(self, of_checkpoint: Callable[[], Moments]) -> Moments:
        """The optimizer's, on rank 0; on the others nothing. A collective.

        Args:
            of_checkpoint: of the last checkpoint, where the ranges are lost.

        Raises:
            PlacementRefusedError: they were lost, and are not placed anew.
            RankFailedError: another rank fails meanwhile.
        """
        for _ in range(MOST_LOSSES):
            assert self._workers is not None
            held, cause, is_lost = Moments(), "", False
            if self._ranks.rank == 0 and self._has_moments:
                try:
                    held = self._workers.moments(self.names)
                except AggregationLostError as error:
                    cause, is_lost = str(error), True
            if all(self._agree(is_done=not is_lost)):
                return held
            self._lost(cause, of_checkpoint)
        raise RankFailedError(f"ranges were lost {MOST_LOSSES} times while a checkpoint was written")

    def close(self) -> None:
        """Close the connections."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _agree(self, *, is_done: bool) -> list[bool]:
        """Of each rank."""
        held = torch.zeros(self._ranks.world, dtype=torch.int64)
        held[self._ranks.rank] = int(is_done)
        if self._ranks.world > 1:
            with rank_failures():
                dist.all_reduce(held)
        return [bool(each) for each in held]

    def _of_first(self, finished: list[bool], result: Tensor | None) -> Tensor:
        """The parameters after the step, which all ranks have, or those of one that has them. A collective."""
        if all(finished):
            assert result is not None
            return result
        held = torch.empty(self.engine.flat.shape) if result is None else result
        with rank_failures():
            dist.broadcast(held, finished.index(True))
        return held

    def _put(self, parameters: Tensor) -> None:
        with torch.no_grad():
            self.engine.flat.copy_(parameters)

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0:
            say(text)


@dataclass
class AggregatedTraining(Training):
    """One rank's part of a training whose optimizer is the aggregators'; the user's has moments for a checkpoint."""

    aggregation: Aggregation = field(kw_only=True)

    def start(self) -> None:
        """Continue at the newest checkpoint, if there is any, and have the ranges placed."""
        super().start()
        self.optimizer.state.clear()
        self.aggregation.begin(self._of_checkpoint)

    def updated(self, batches: Any) -> tuple[Tensor, StepClock]:
        """Parameters after the next step, out of all ranks' gradients; returns as `gradients`."""
        value, clock = self.gradients(batches)
        with clock.during(Part.SCATTER):
            self.aggregation.step(self._of_checkpoint)
        return value, clock

    def save(self) -> None:
        """Write a checkpoint, unless this step has one. A collective."""
        if self.options.checkpoint is not None and self.saved_step != self.done.step:
            self.aggregation.engine.keep_moments(self.optimizer, self.aggregation.moments(self._of_checkpoint))
        super().save()
        self.optimizer.state.clear()

    def _of_checkpoint(self) -> Moments:
        """Moments of the newest checkpoint, which may be older than the parameters here; rank 0's count."""
        directory, engine = self.options.checkpoint, self.aggregation.engine
        if directory is None or self.ranks.rank:
            return Moments()
        return engine.moments_of(checkpoint.read_moments(directory, engine.shapes), self.aggregation.names)
