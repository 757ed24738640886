"""A worker of an elastic training: it lives through generations of the process group, its part of the state with it.

    ready      imported, built, connected to the store; waits for its first generation
    generation a new group on the store, under a prefix of its own; who joins gets its part of the state
    boundary   after a step all members know a newer generation: who leaves gives its part away, the group ends

Where a member dies, the others' collectives fail. They end the group, wait for the next generation, and go on where
they are if nothing is missing (`core/generations.py`), else at the last checkpoint, or from the start without one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from schemas.layers import Dtype
from services._runtime.command.tool_events import emit
from services.trainer.core.batch_schedule import BatchSchedule
from services.trainer.core.generations import Generation, Held, Layout, common, even_layout
from services.trainer.worker import checkpoint
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.checkpoint import CheckpointError, Progress
from services.trainer.worker.division import Division, among_workers
from services.trainer.worker.flat import Placement
from services.trainer.worker.gather import RankFailedError, rank_failures
from services.trainer.worker.layered import LayeredEngine
from services.trainer.worker.options import Options
from services.trainer.worker.orders import Orders
from services.trainer.worker.plan_file import read_plan
from services.trainer.worker.process_group import Ranks, check_same, device_of
from services.trainer.worker.refusals import check_model, layered_chain
from services.trainer.worker.report import Sink, StepReports, open_sink
from services.trainer.worker.reshard import reshard
from services.trainer.worker.run import Training, finite
from services.trainer.worker.stop_request import StopRequest
from services.trainer.worker.user_code import UserCode, load_model, load_user_code

FORMED_WITHIN: Final = timedelta(seconds=60)
"""Once all members are there. One that dies in this moment costs the others that time."""
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Setting:
    """What does not change."""

    options: Options
    schedule: BatchSchedule
    microbatch: int
    gather_dtype: Dtype
    device: torch.device
    sink: Sink | None

    def division(self, step: int, world: int) -> Division:
        return among_workers(self.schedule.batch(step), world, self.microbatch, self.gather_dtype)

    def placement(self, rank: int, shares: tuple[float, ...]) -> Placement:
        low = torch.bfloat16 if self.gather_dtype is Dtype.BFLOAT16 else None
        return Placement(rank, shares, self.device, low)


def run_elastic(options: Options, stop: StopRequest) -> None:
    """Take part in generations until the training is done or stopped, or until this worker is to leave.

    Raises:
        RefusedError, UserCodeError, CheckpointError: something of the user's cannot be used.
        RankFailedError: the coordinator is gone.
    """
    orders = Orders()
    assert options.plan is not None
    plan = read_plan(options.plan)
    schedule = options.batch_schedule or BatchSchedule(((0, plan.batch),))
    sink = open_sink(options.report) if options.report else None
    setting = _Setting(
        options, schedule, max(plan.devices[0].microbatch, 1), plan.gather_dtype, device_of(options.device), sink
    )
    host, _, port = options.store.rpartition(":")
    orders.newest()
    if orders.is_closed:  # its store is gone, too: connecting would be tried for five minutes
        raise RankFailedError("turnbuckle train, which orders generations, is gone")
    with rank_failures():
        store = TCPStore(host, int(port), None, is_master=False, wait_for_workers=False)
    worker = Worker(setting, stop, orders, store)
    emit("ready", worker=options.name)
    worker.follow()


@dataclass(slots=True)
class _ChangeClock:
    """What the parts of a change of workers take, on this worker."""

    took_us: dict[str, int] = field(default_factory=dict)
    _since_ns: int = 0

    def begin(self) -> None:
        self._since_ns = time.monotonic_ns()

    def end(self, part: str) -> None:
        """The next one begins."""
        now_ns = time.monotonic_ns()
        self.took_us[part], self._since_ns = (now_ns - self._since_ns) // 1_000, now_ns


class Worker:
    """From ready to its end."""

    def __init__(self, setting: _Setting, stop: StopRequest, orders: Orders, store: TCPStore) -> None:
        self._setting, self._stop, self._orders, self._store = setting, stop, orders, store
        self._built, self._user = _load(setting.options)
        load_optimizers()
        check_model(self._built.model)
        layered_chain(self._built.model)
        self._is_new = True
        """The user's model has not been cut yet."""
        self._training: Training | None = None
        self._held: Held | None = None
        self._clock = _ChangeClock()

    def follow(self) -> None:
        """All generations, one after another."""
        name, order = self._setting.options.name, self._orders.after(0)
        while name in order.members:
            try:
                self._clock.begin()
                if not self._form(order):
                    order = self._orders.after(order.number)
                    continue
                training = self._settle(order)
                following = self._train(training, order)
                if following is None:
                    dist.destroy_process_group()
                    return
                self._clock.begin()
                self._part(training, order, following)
                self._clock.end("parted_us")
                order = following
            except RankFailedError as error:
                self._clock.took_us.clear()
                _abort()
                emit("broken", number=order.number, cause=str(error))
                order = self._orders.after(order.number)
        emit("left", worker=name)

    def _form(self, order: Generation) -> bool:
        """The generation's group; False: a newer one was ordered before all members came.

        Raises:
            RankFailedError: it could not be formed.
        """
        rank, world = order.members.index(self._setting.options.name), len(order.members)
        store = PrefixStore(f"generation-{order.number}", self._store)
        here = [f"here-{each}" for each in range(world)]
        emit("forming", number=order.number, workers=world)
        with rank_failures():
            store.set(here[rank], "1")
            while not store.check(here):
                if self._orders.newest(_POLL_S) > order.number:
                    return False
                if self._orders.is_closed:
                    raise RankFailedError("turnbuckle train, which orders generations, is gone")
            self._clock.end("met_us")
            backend = "cpu:gloo,cuda:nccl" if self._setting.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=FORMED_WITHIN)
            dist.barrier()
        self._clock.end("connected_us")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self._setting.options.timeout_s))  # noqa: SLF001 - see _abort
        return True

    def _settle(self, order: Generation) -> Training:
        """The state that the members bring along, or the last checkpoint's, cut evenly. A collective."""
        rank, world = order.members.index(self._setting.options.name), len(order.members)
        ranks = Ranks(rank, world, self._setting.device)
        brought: list[Held | None] = [None] * world
        with rank_failures():
            dist.all_gather_object(brought, self._held)
        held, even = common(brought, order.members), even_layout(order.members)
        training = self._restore(ranks, even) if held is None else self._take_over(ranks, held, even)
        self._training = training
        self._hold(even, training)
        with rank_failures():
            dist.barrier()
        self._clock.end("moved_us")
        if rank == 0:
            took_us, kept = self._clock.took_us, held is not None
            emit("generation", number=order.number, workers=world, step=training.done.step, kept=kept, took_us=took_us)
        self._clock.took_us = {}
        return training

    def _take_over(self, ranks: Ranks, held: Held, even: Layout) -> Training:
        shares = held.layout.among(even.members)
        assert shares is not None
        before = self._setting.placement(ranks.rank, shares)
        training = self._training if self._held == held else None
        # Until all have what they need, no member's state can be used where another one dies.
        self._held = replace(held, is_whole=False)
        if training is None:
            training = self._cut(ranks, before)
        engine = _layered(training)
        for layer in engine.blocks:
            layer.renumber(before)
        done = Progress(held.step, held.samples, self._setting.options.seed)
        reshard(engine, training.optimizer, self._setting.placement(ranks.rank, even.shares))
        training.saved_step = held.saved_step  # saving is a collective: all do it, or none does
        return self._resume(training, ranks, done)

    def _restore(self, ranks: Ranks, even: Layout) -> Training:
        """The last checkpoint's, or that of the start."""
        self._held = None
        training = self._cut(ranks, self._setting.placement(ranks.rank, even.shares))
        done = Progress(0, 0, self._setting.options.seed)
        directory = self._setting.options.checkpoint
        found = None if directory is None else checkpoint.load(directory, training.engine, training.optimizer)
        if found is not None and found.seed != done.seed:
            raise CheckpointError(f"the checkpoint is of a training with --seed {found.seed}: give that one")
        training = self._resume(training, ranks, found or done)
        training.saved_step = training.done.step
        return training

    def _cut(self, ranks: Ranks, placement: Placement) -> Training:
        """The model as the user builds it, of which this worker keeps its part."""
        if not self._is_new:
            self._built, self._user = _load(self._setting.options)
        self._is_new = False
        options, user = self._setting.options, self._user
        engine = LayeredEngine(layered_chain(self._built.model), placement, self._built)
        optimizer = user.optimizer(engine.parameters)
        done = Progress(0, 0, options.seed)
        return Training(options, self._setting.division(0, ranks.world), ranks, user, engine, optimizer, done)

    def _resume(self, training: Training, ranks: Ranks, done: Progress) -> Training:
        training.ranks, training.done = ranks, done
        training.division = self._setting.division(min(done.step, self._setting.options.steps - 1), ranks.world)
        check_same(ranks, f"{training.division} {training.options.seed} {training.options.steps} {done}")
        return training

    def _train(self, training: Training, order: Generation) -> Generation | None:
        """Until all members know a newer generation; None: the training is done, or was asked to stop."""
        options = training.options
        reports: StepReports | None = None
        loss: float | None = None
        is_stopped, number = self._agree(training, 0.0)[1:]
        with ExitStack() as at_end:
            if self._setting.sink is not None:
                reports = StepReports(training.ranks.rank, self._setting.sink, order.number)
                at_end.callback(reports.flush)  # also where the group fails: what its steps took is known then
            for _, steps in self._setting.schedule.runs(training.done.step, options.steps):
                if is_stopped or number > order.number:
                    break
                training.division = self._setting.division(training.done.step, training.ranks.world)
                batches = training.batches(steps)
                for _ in range(steps):
                    if is_stopped or number > order.number:
                        break
                    loss, is_stopped, number = self._step(training, batches, reports)
                    training.emit_progress(loss)
                    if training.done.step % options.checkpoint_every == 0:
                        training.save()
                        self._hold(even_layout(order.members), training)
        if not is_stopped and training.done.step < options.steps:
            return self._orders.next(number)
        training.save()
        if training.ranks.rank == 0:
            emit("result", step=training.done.step, loss=finite(loss), stopped=is_stopped)
        return None

    def _step(self, training: Training, batches: Any, reports: StepReports | None) -> tuple[float, bool, int]:
        assert self._held is not None
        value, clock = training.gradients(batches)
        self._held = replace(self._held, is_whole=False)
        training.optimizer.step()
        times = clock.end()
        found = self._agree(training, float(value))
        training.count(times, found[0], reports)
        self._hold(self._held.layout, training)
        return found

    def _agree(self, training: Training, loss: float) -> tuple[float, bool, int]:
        """The global batch's loss, whether any member was asked to stop, and the newest generation that all know."""
        ranks = training.ranks
        known = self._orders.newest()
        stop = self._stop.is_made or self._orders.is_closed
        if ranks.world == 1:
            return loss, stop, known
        held = torch.zeros(2 + ranks.world, dtype=torch.float64)
        held[0], held[1], held[2 + ranks.rank] = loss, stop, known
        with rank_failures():
            dist.all_reduce(held)
        return float(held[0]), bool(held[1]), int(held[2:].min())

    def _part(self, training: Training, order: Generation, following: Generation) -> None:
        """End the group; before that, who leaves gives its part to those that stay. A collective."""
        staying = [name for name in order.members if name in following.members]
        if staying and len(staying) < len(order.members):
            assert self._held is not None
            even = even_layout(staying)
            shares = dict(zip(even.members, even.shares, strict=True))
            after = tuple(shares.get(name, 0.0) for name in order.members)
            self._held = replace(self._held, is_whole=False)
            reshard(_layered(training), training.optimizer, self._setting.placement(training.ranks.rank, after))
            self._hold(even, training)
        with rank_failures():
            dist.barrier()
        dist.destroy_process_group()

    def _hold(self, layout: Layout, training: Training) -> None:
        done = training.done
        self._held = Held(layout, done.step, done.samples, training.saved_step, is_whole=True)


def _load(options: Options) -> tuple[BuiltModel, UserCode]:
    """The whole model: which part a worker keeps is known with its generation, which is not to wait for the values."""
    built = load_model(options)
    built.parts({})
    return built, load_user_code(options)


def load_optimizers() -> None:
    """Import what torch imports with the first optimizer that is made and steps: not while the others wait for it.

    That is `torch._dynamo`, which takes 0.7 s of a processor.
    """
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter]).step()


def _layered(training: Training) -> LayeredEngine:
    engine = training.engine
    assert isinstance(engine, LayeredEngine)
    return engine


def _abort() -> None:
    """End a group that has failed: its connections break, and with them what the other members wait for."""
    if not dist.is_initialized():
        return
    with suppress(RuntimeError):  # NCCL's has ended by itself
        dist.distributed_c10d._get_default_group().abort()  # noqa: SLF001 - torch has no public name for it
    with suppress(RuntimeError):
        dist.destroy_process_group()
