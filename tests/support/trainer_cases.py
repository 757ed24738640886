"""Trainings on 2 to 4 ranks, one after another in one process tree: ``trainer_cases.py DIRECTORY``.

Behind it may stand names of cases, or ``pipelines`` for those of pipelines alone, which are left out otherwise.

Each case is a function that returns figures; they are printed as a JSON object a line, with the case's name, and the
tests assert on them. A case that fails prints its traceback instead.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from schemas.layers import Dtype
from schemas.plans import Engine, Plan
from services.trainer.worker import checkpoint
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.checkpoint import newest
from services.trainer.worker.division import of_plan
from services.trainer.worker.flat import FlatLayer
from services.trainer.worker.gather import Begun
from services.trainer.worker.layered import LayeredEngine
from services.trainer.worker.ministage import MinistageEngine
from services.trainer.worker.options import parse
from services.trainer.worker.process_group import joined
from services.trainer.worker.run import build_engine
from services.trainer.worker.sampler import epoch_order
from tests.support.forked_ranks import Ranks, computed
from tests.support.trainer_job import small_data, small_model
from tests.support.trainer_plans import pipeline_plan, plan_of

USER = Path(small_model.__file__).parent
MODEL, DATA = str(USER / "small_model.py"), str(USER / "small_data.py")
STEPS, FEW_STEPS = 50, 15
State = dict[str, Tensor]


PLANS = {
    "0:100": plan_of([1, 7], [1, 7], [0, 100]),
    "90:10": plan_of([6, 4], [3, 2], [90, 10]),
    "even": plan_of([5, 3], [1, 1], [1, 1]),
    "fsdp2": plan_of([5, 3], [1, 1], [1, 1], Engine.FSDP2),
    "50:20:30": plan_of([4, 6, 2], [2, 3, 1], [50, 20, 30]),
    "idle": plan_of([4, 0, 4], [2, 0, 1], [1, 0, 2]),
}

_TWO, _THREE = [[0, 1], [2]], [[1], [0, 3], [2]]
PIPELINES = {
    "2 groups, 1 turn": pipeline_plan(_TWO, [(0, 6), (1, 5)], [4, 2, 6], [80, 20, 100], microbatch=2),
    "2 groups, 2 turns": pipeline_plan(_TWO, [(0, 4), (1, 2), (0, 2), (1, 3)], [1, 5, 6], [80, 20, 100], microbatch=2),
    "2 groups, 3 turns": pipeline_plan(
        _TWO, [(0, 1), (1, 2), (0, 3), (1, 1), (0, 2), (1, 2)], [7, 5, 12], [0, 20, 100], microbatch=1
    ),
    "3 groups, 1 turn": pipeline_plan(_THREE, [(0, 3), (1, 5), (2, 3)], [4, 6, 6, 2], [1, 7, 5, 2], microbatch=2),
    "3 groups, 2 turns": pipeline_plan(
        _THREE, [(0, 1), (1, 3), (2, 2), (0, 2), (1, 1), (2, 2)], [0, 4, 4, 4], [3, 7, 5, 2], microbatch=3
    ),
    "3 groups, 3 turns": pipeline_plan(
        _THREE,
        [(0, 1), (1, 1), (2, 2), (0, 1), (1, 1), (2, 1), (0, 1), (1, 2), (2, 1)],
        [9, 12, 12, 3],
        [3, 7, 5, 0],
    ),
    "1 group, 2 turns": pipeline_plan([[0, 1]], [(0, 6), (0, 5)], [2, 4], [1, 3], microbatch=2),
    "a group without layers": pipeline_plan([[2], [0], [1]], [(0, 5), (2, 6)], [0, 3, 3], [0, 1, 2], microbatch=4),
    "many micro-batches": pipeline_plan(_TWO, [(0, 4), (1, 2), (0, 2), (1, 3)], [0, 12, 12], [80, 20, 100]),
}
"""Of `build_deep`, all with 12 samples: groups of other ranks than their places, ranks without samples or state."""
PIPELINE_STEPS = 20

PIPELINE = pipeline_plan([[1], [0, 2]], [(0, 1), (1, 1), (0, 1), (1, 2)], [3, 6, 3], [60, 10, 0], microbatch=2)
"""Of the small model."""

LONG = {"0:100", "90:10", "50:20:30"}
"""Trained for 50 steps; the others for 15."""


class Job:
    """A directory with a plan's file and checkpoints."""

    def __init__(self, directory: Path, plan: Plan, model: str = "build", **environment: str) -> None:
        self.directory, self.plan, self.model = directory, plan, model
        directory.mkdir(exist_ok=True)
        self.ranks = Ranks(directory, len(plan.devices), environment)

    def arguments(self, steps: int, *more: object) -> list[object]:
        """The command line."""
        (self.directory / "plan.json").write_text(self.plan.model_dump_json())
        given = ["plan.json", f"{MODEL}:{self.model}", "--data", f"{DATA}:lines", "--steps", steps]
        return [*given, "--checkpoint", "saved", "--device", "cpu", *more]

    def train(self, steps: int, *more: object) -> list[int]:
        """Exit codes by rank."""
        return self.ranks.train(*self.arguments(steps, *more))

    def state(self) -> State:
        """The newest checkpoint, read with torch alone."""
        path = newest(self.directory / "saved")
        assert path is not None, self.ranks.logs()
        return plain(path)

    @property
    def saved_step(self) -> int:
        """Of the newest checkpoint."""
        path = newest(self.directory / "saved")
        return -1 if path is None else int(json.loads((path / "progress.json").read_text())["step"])


def plain(path: Path) -> State:
    """A checkpoint as torch's own converter reads it: one file per layer."""
    state: State = {}
    for layer in sorted(path.glob("layer-*")):
        dcp_to_torch_save(layer, path.parent / "converted.pt")
        state |= torch.load(path.parent / "converted.pt")
    return state


def parameters(state: State, kind: str = "model", ending: str = "") -> State:
    """By name."""
    ahead = f"{kind}."
    return {
        k.removeprefix(ahead).removesuffix(ending): v
        for k, v in state.items()
        if k.startswith(ahead) and k.endswith(ending)
    }


def alone(
    batch: int, steps: int, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = small_model.optimizer,
    build: Callable[[], nn.Module] = small_model.build, *, begin: State | None = None, first_step: int = 0,
) -> State:  # fmt: skip
    """What one process with torch alone has after so many steps on the same samples."""
    model, data = build(), small_data.lines()
    optimizer = make(list(model.parameters()))
    if begin is not None:
        resume(model, optimizer, begin)
    for step in range(first_step, steps):
        indices = [
            int(epoch_order(len(data), 0, position // len(data))[position % len(data)])
            for position in range(step * batch, (step + 1) * batch)
        ]
        inputs, targets = data[indices]
        optimizer.zero_grad()
        (small_model.loss(model(inputs), targets) / batch).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, begin: State) -> None:
    """What the documentation says for plain torch."""
    model.load_state_dict(parameters(begin))
    moments = {
        place: {m: begin[f"optimizer.{name}.{m}"] for m in ("step", "exp_avg", "exp_avg_sq")}
        for place, (name, parameter) in enumerate(model.named_parameters())
        if parameter.requires_grad
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def distance(one: State, other: State) -> float:
    """Largest difference; both have to have the same names."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def same_bits(one: State, other: State) -> bool:
    """Whether all tensors are equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def numerics(
    directory: Path, plan: Plan, make: str = "optimizer", steps: int = FEW_STEPS, model: str = "build"
) -> dict[str, Any]:
    """Steps beside those of one process; collectives of the steps, by their names in c10d."""
    job = Job(directory, plan, model)
    job.ranks.prepare = lambda rank: count_collectives(directory / f"counts-{rank}.json") if rank == 0 else None
    codes = job.train(steps, "--optimizer", f"{MODEL}:{make}", "--report", "steps.jsonl")
    state = job.state()
    initial, single = of_one_process((plan.batch, make, steps, model), directory)
    counted = json.loads((directory / "counts-0.json").read_text()) if plan.engine is Engine.LAYERED else {}
    reports = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return {
        "codes": codes,
        "said": job.ranks.logs()[0],
        "distance": distance(parameters(state), single),
        "moved": distance(initial, single),
        "per_step": {name: count / steps for name, count in counted.items()},
        "reported": [
            [step for row in reports if row["rank"] == rank for step in row["step"]] for rank in range(len(codes))
        ],
        "columns": sorted(reports[0]),
    }


_of_one_process: dict[tuple[int, str, int, str], list[State]] = {}


def of_one_process(key: tuple[int, str, int, str], directory: Path) -> list[State]:
    """Parameters before and after all steps; computed once for all plans with the same batch."""
    if key not in _of_one_process:
        batch, make, steps, model = key
        optimizer, build = getattr(small_model, make), getattr(small_model, model)
        found = computed(lambda: [alone(batch, count, optimizer, build) for count in (0, steps)], directory)
        _of_one_process[key] = found
    return _of_one_process[key]


def count_collectives(path: Path) -> None:
    """Count c10d's collectives within steps of the layered engine; written after each step."""
    counts: Counter[str] = Counter()
    counting = False

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += counting
            return function(*arguments, **named)

        return call

    for name in ("broadcast", "all_gather_into_tensor", "reduce_scatter"):
        setattr(dist, name, counted(name, getattr(dist, name)))
    step = LayeredEngine.step

    def counted_step(*arguments: Any, **named: Any) -> Tensor:
        nonlocal counting
        counting = True
        value = step(*arguments, **named)
        counting = False
        path.write_text(json.dumps(counts))
        return value

    LayeredEngine.step = counted_step  # type: ignore[method-assign]


def pipeline_numerics(directory: Path, plan: Plan) -> dict[str, Any]:
    """Steps of a pipeline beside those of one process; what each rank gathered, and had whole at once."""
    job = Job(directory, plan, "build_deep")
    job.ranks.prepare = lambda rank: watch_ministages(directory / f"watched-{rank}.json")
    codes = job.train(PIPELINE_STEPS, "--report", "steps.jsonl", "--offload")  # which moves nothing on processors
    state = job.state()
    initial, single = of_one_process((plan.batch, "optimizer", PIPELINE_STEPS, "build_deep"), directory)
    watched = [json.loads((directory / f"watched-{rank}.json").read_text()) for rank in range(len(codes))]
    reports = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return {
        "codes": codes,
        "said": job.ranks.logs()[0],
        "distance": distance(parameters(state), single),
        "moved": distance(initial, single),
        "watched": watched,
        "expected": [expected_gathers(plan, rank) for rank in range(len(codes))],
        "losses": [{row["rank"]: row["loss"][-1] for row in reports}[rank] for rank in range(len(codes))],
    }


def expected_gathers(plan: Plan, rank: int) -> dict[str, int]:
    """Of each layer and step: twice, and once those of a group's last ministage, whose passes follow each other."""
    own = [stage for stage in plan.stages if rank in stage.ranks]
    return {
        str(layer): 1 if stage is own[-1] else 2
        for stage in own
        for layer in range(stage.first_layer, stage.last_layer + 1)
    }


def watch_ministages(path: Path) -> None:
    """Gathers and scatters of a rank within steps of a pipeline, and the most that its ledger had; per step."""
    gathers: Counter[str] = Counter()
    scatters: Counter[str] = Counter()
    steps = 0
    gather, scatter, step = FlatLayer.begin_gather, FlatLayer.begin_scatter, MinistageEngine.step

    def counted_gather(layer: FlatLayer) -> Begun:
        gathers[layer._name] += 1
        return gather(layer)

    def counted_scatter(layer: FlatLayer, gradient: Tensor | None) -> Begun:
        scatters[layer._name] += 1
        return scatter(layer, gradient)

    def counted_step(engine: MinistageEngine, *arguments: Any, **named: Any) -> Tensor:
        nonlocal steps
        value = step(engine, *arguments, **named)
        steps += 1
        found = {
            "gathers": {name: count / steps for name, count in gathers.items()},
            "scatters": {name: count / steps for name, count in scatters.items()},
            "peak_bytes": engine.residency.peak_bytes,
            "limit_bytes": engine.residency.limit_bytes,
            "left_bytes": engine.residency.held_bytes,
        }
        path.write_text(json.dumps(found))
        return value

    path.write_text(json.dumps({"gathers": {}}))
    FlatLayer.begin_gather = counted_gather  # type: ignore[method-assign]
    FlatLayer.begin_scatter = counted_scatter  # type: ignore[method-assign]
    MinistageEngine.step = counted_step  # type: ignore[method-assign]


def without_a_plan(directory: Path) -> dict[str, Any]:
    """Three ranks that are told the batch only, beside one process."""
    job = Job(directory, plan_of([1, 1, 1], [1, 1, 1], [1, 1, 1]), TURNBUCKLE_BATCH="8")
    _plan_file, *arguments = job.arguments(FEW_STEPS)
    codes = job.ranks.train("", *arguments)
    _initial, single = of_one_process((8, "optimizer", FEW_STEPS, "build"), directory)
    return {"codes": codes, "said": job.ranks.logs()[0], "distance": distance(parameters(job.state()), single)}


def plans_change(directory: Path) -> dict[str, Any]:
    """A checkpoint of three ranks, written anew by two under other plans, and continued in three ways."""
    first = Job(directory, PLANS["50:20:30"])
    codes = first.train(10)
    begun = first.state()
    equal = {
        name: same_bits(begun, rewritten(directory, name, plan))
        for name, plan in {"0:100": PLANS["0:100"], "fsdp2": PLANS["fsdp2"], "pipeline": PIPELINE}.items()
    }
    other = plan_of([7, 5], [7, 1], [5, 95])
    second = Job(directory, other)
    codes += second.train(20)
    continued = parameters(second.state())
    third = Job(directory, PIPELINE)
    codes += third.train(30)
    in_torch, never_stopped, longer = computed(
        lambda: [alone(12, 20, begin=begun, first_step=10), alone(12, 20), alone(12, 30)], directory
    )
    return {
        "as_a_pipeline": distance(parameters(third.state()), longer),
        "codes": codes,
        "equal": equal,
        "to_torch": distance(continued, in_torch),
        "to_never_stopped": distance(continued, never_stopped),
        "moments": len(parameters(begun, "optimizer", ".exp_avg_sq")),
    }


def frozen_and_shared(directory: Path) -> dict[str, Any]:
    """Two ranks of fsdp2, stopped and continued, beside two that were not stopped, and beside plain torch."""
    plan = PLANS["fsdp2"]
    job = Job(directory, plan, "build_tied")
    codes = job.train(7)
    begun = job.state()
    codes += job.train(FEW_STEPS)
    undisturbed = Job(directory / "undisturbed", plan, "build_tied")
    codes += undisturbed.train(FEW_STEPS)
    built, in_torch, single = computed(
        lambda: [
            alone(plan.batch, 0, build=small_model.build_tied),
            alone(plan.batch, FEW_STEPS, build=small_model.build_tied, begin=begun, first_step=7),
            alone(plan.batch, FEW_STEPS, build=small_model.build_tied),
        ],
        directory,
    )
    end = parameters(job.state())
    changed = [name for name, value in built.items() if not torch.equal(value, end[name])]
    return {
        "codes": codes,
        "said": job.ranks.logs(),
        "same": same_bits(job.state(), undisturbed.state()),
        "to_torch": distance(in_torch, end),
        "distance": distance(single, end),
        "moved": distance(built, end),
        "changed": sorted({name.partition(".")[0] if "blocks" not in name else name[:8] for name in changed}),
        "moments": len(parameters(begun, "optimizer", ".exp_avg_sq")),
    }


def rewritten(directory: Path, name: str, plan: Plan) -> State:
    """The same checkpoint, loaded under a plan and saved again."""
    target = directory / f"again-{name.replace(':', '-')}"
    options = parse([str(argument) for argument in Job(directory, plan).arguments(10)])

    def again(_rank: int) -> int:
        with joined(options) as ranks:
            engine = build_engine(of_plan(plan, ranks.world), BuiltModel(small_model.build()), ranks)
            optimizer = small_model.optimizer(engine.parameters)
            progress = checkpoint.load(directory / "saved", engine, optimizer)
            assert progress is not None
            for parameter in engine.parameters:  # what was loaded counts, not what was built
                assert optimizer.state[parameter]
            checkpoint.save(target, engine, optimizer, progress)
        return 0

    ranks = Ranks(directory, len(plan.devices))
    assert ranks.run(again) == [0] * len(plan.devices), ranks.logs()
    path = newest(target)
    assert path is not None
    return plain(path)


def stopped(directory: Path) -> dict[str, Any]:
    """SIGTERM to one rank in its 7th call of the loss, then the rest; beside a training that was not stopped."""
    return _signalled(directory, "SIGTERM", "1", UNEVEN, checkpoint_every=1_000)


def killed(directory: Path) -> dict[str, Any]:
    """Kill -9 of one rank of three, likewise; then the same command again."""
    return _signalled(directory, "SIGKILL", "1", UNEVEN, checkpoint_every=3)


def stopped_pipeline(directory: Path) -> dict[str, Any]:
    """SIGTERM to the rank with the last layer, in its 7th call of the loss: in the 4th step."""
    return _signalled(directory, "SIGTERM", "0", BY_LAYERS, checkpoint_every=1_000)


def killed_pipeline(directory: Path) -> dict[str, Any]:
    """Kill -9 of that rank, likewise."""
    return _signalled(directory, "SIGKILL", "0", BY_LAYERS, checkpoint_every=3)


UNEVEN = plan_of([2, 1, 3], [1, 1, 1], [1, 2, 3])
BY_LAYERS = pipeline_plan([[1, 2], [0]], [(0, 1), (1, 1), (0, 1), (1, 2)], [2, 1, 1], [3, 2, 1], microbatch=3)


def _signalled(directory: Path, signal: str, rank: str, plan: Plan, checkpoint_every: int) -> dict[str, Any]:
    every = ("--checkpoint-every", checkpoint_every)
    signals = ("--loss", f"{MODEL}:loss_that_signals")
    job = Job(directory, plan, "build_with_dropout", SIGNAL=signal, SIGNALLED_RANK=rank)
    codes = job.train(10, *every, *signals)
    saved, logs = job.saved_step, job.ranks.logs()
    job.ranks.environment["SIGNALLED_RANK"] = "none"
    again = job.train(10, *every, *signals)
    undisturbed = Job(directory.parent / f"undisturbed {plan.engine}", plan, "build_with_dropout")
    if undisturbed.saved_step < 10:
        again += undisturbed.train(10)
    return {
        "codes": codes,
        "saved": saved,
        "said": logs,
        "again": again,
        "same": same_bits(job.state(), undisturbed.state()),
        "kept": sorted(path.name for path in (directory / "saved").iterdir()),
    }


def refused(directory: Path) -> dict[str, Any]:
    """Models, plans and checkpoints that cannot be used: exit codes, and what is written."""
    found: dict[str, Any] = {}

    def refusal(name: str, plan: Plan, *arguments: object, model: str = "build", ranks: int = 0) -> None:
        place = directory / name
        job = Job(place, plan, model)
        job.ranks.world = ranks or len(plan.devices)
        found[name] = {"codes": job.train(3, *arguments), "said": job.ranks.logs()[-1]}

    refusal("batch norm", plan_of([3], [1], [1]), model="build_with_batch_norm")
    refusal("ranks differ", PLANS["even"], model="build_of_rank")
    refusal("offload", plan_of([3], [1], [1]), "--offload")
    refusal("scalar", PLANS["fsdp2"], model="build_with_gain")
    refusal("other layers", pipeline_plan([[0], [1]], [(0, 2), (1, 2)], [3, 3], [1, 1]))
    refusal("other world", PLANS["even"], ranks=1)
    refusal("optimizer", plan_of([3], [1], [1]), "--optimizer", f"{MODEL}:lbfgs")
    shutil.copytree(directory.parent / "stopped" / "saved", directory / "other seed" / "saved")
    refusal("other seed", plan_of([3], [1], [1]), "--seed", 4)
    return found


def main() -> None:
    """Run all cases."""
    directory = Path(sys.argv[1]).resolve()
    gc.freeze()  # a collection in a rank would copy every page that holds an object of torch
    cases: dict[str, Callable[[Path], dict[str, Any]]] = {
        name: partial(numerics, plan=plan, steps=STEPS if name in LONG else FEW_STEPS) for name, plan in PLANS.items()
    }
    cases["sgd"] = partial(numerics, plan=PLANS["90:10"], make="momentum")
    single = {"make": "momentum", "model": "build_single"}
    cases["fsdp2 in float32"] = partial(numerics, plan=PLANS["fsdp2"], **single)
    for name in ("90:10", "fsdp2"):
        low = PLANS[name].model_copy(update={"gather_dtype": Dtype.BFLOAT16})
        cases[f"{name} in bfloat16"] = partial(numerics, plan=low, **single)
    low = PIPELINE.model_copy(update={"gather_dtype": Dtype.BFLOAT16})
    cases["pipeline in bfloat16"] = partial(numerics, plan=low, **single)
    # Gradients are summed in float64, which is four times as long.
    cases["pipeline of float64 in bfloat16"] = partial(numerics, plan=low, make="momentum")
    cases["a scalar"] = partial(numerics, plan=PLANS["even"], model="build_with_gain")
    cases["90:10, built as a whole"] = partial(numerics, plan=PLANS["90:10"], model="build_as_a_whole")
    cases |= {
        "without a plan": without_a_plan,
        "plans change": plans_change,
        "frozen and shared": frozen_and_shared,
        "stopped": stopped,
        "killed": killed,
        "refused": refused,
    }
    pipelines: dict[str, Callable[[Path], dict[str, Any]]] = {
        **{name: partial(pipeline_numerics, plan=plan) for name, plan in PIPELINES.items()},
        "stopped pipeline": stopped_pipeline,
        "killed pipeline": killed_pipeline,
    }
    chosen = sys.argv[2:] or list(cases)
    if chosen == ["pipelines"]:
        chosen = list(pipelines)
    cases |= pipelines
    for name in chosen:
        path = directory / name.replace(":", "-")
        path.mkdir()
        try:
            found = cases[name](path)
        except Exception:  # noqa: BLE001 - told to the test, which fails by it
            logs = {str(log): log.read_text()[-3_000:] for log in path.rglob("*.log")}
            found = {"failed": traceback.format_exc(), "logs": logs}
        sys.stdout.write(json.dumps({"case": name, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore"
    main()
