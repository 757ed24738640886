"""A plan as text: what each device does and holds, how the other strategies compare, what to run."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from schemas.devices import Cluster
from schemas.launch import with_worker
from schemas.plans import DevicePlan, Plan, Strategy
from services._runtime.command.output import format_duration

_GIB = 1 << 30
_HEADINGS = {
    Strategy.EVEN: "the same for each",
    Strategy.BY_SPEED: "samples by speed, even state",
    Strategy.WHOLE: "one micro-batch each, state where there is room",
    Strategy.UNEVEN: "uneven batches and uneven state",
    Strategy.PIPELINE: "a pipeline of groups",
}


def plan_lines(plan: Plan, cluster: Cluster, *, why: bool, file: str = "", model: str = "") -> Iterator[RenderableType]:
    """What `turnbuckle plan` prints.

    Args:
        plan: what it is about.
        cluster: its devices.
        why: with all reasons, not the first two.
        file: that it was written to; empty: none.
        model: ``module:function`` or ``file.py:function``, as `turnbuckle train` takes it; empty: not known.
    """
    low, step, high = (format_duration(us) for us in (plan.step_low_us, plan.step_us, plan.step_high_us))
    price = f", ${plan.usd_per_step:.4g} a step" if plan.usd_per_step else ""
    yield (
        f"[bold]{plan.batch} samples over {len(plan.devices)} devices: {_HEADINGS[plan.strategy]}[/bold] "
        f"(engine {plan.engine.value}), step {step} ({low} to {high}){price}"
    )
    yield _devices(plan, cluster)
    if plan.stages:
        yield _stages(plan)
    if any(device.extrapolated for device in plan.devices):
        yield "~ larger than any micro-batch that was measured: its time and memory are extrapolated"
    yield _rests_on(plan)
    for reason in plan.reasons if why else plan.reasons[:2]:
        yield f"- {escape(reason.sentence)}"
    worker = (file or "plan.json", model or "model.py:build", "--data", "data.py:batches")
    for line in plan.launch:
        yield f"run: {escape(with_worker(line, ('turnbuckle', 'run', 'trainer-worker', *worker)))}"
    unknown = [name for name, known in zip(worker, (file, model), strict=False) if not known]
    yield f"(put your own names for {', '.join([*unknown, worker[-1]])})"


def _rests_on(plan: Plan) -> str:
    if not plan.measured_runs:
        return "step and interval by the layer profiles alone: no earlier run on such devices by this engine is known"
    runs = "1 measured run" if plan.measured_runs == 1 else f"{plan.measured_runs} measured runs"
    return f"step and interval rest on {runs}; by the layer profiles alone: {format_duration(plan.profiled_step_us)}"


def _devices(plan: Plan, cluster: Cluster) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("rank", "device", "machine"):
        table.add_column(name, justify="right" if name == "rank" else "left")
    for name in ("samples", "micro-batches", "state", "memory planned / may use", "busy"):
        table.add_column(name, justify="right")
    for row in plan.devices:
        device = cluster.devices[row.rank]
        table.add_row(
            str(row.rank),
            escape(device.kind),
            escape(device.machine),
            str(row.samples),
            _microbatches(row),
            f"{row.state_share:.1%}",
            f"{row.planned_bytes / _GIB:.1f} / {row.allowed_bytes / _GIB:.1f} GiB",
            f"{row.busy_share:.0%}",
        )
    return table


def _microbatches(row: DevicePlan) -> str:
    return f"{row.microbatches} x {row.microbatch}{' ~' if row.extrapolated else ''}"


def _stages(plan: Plan) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("group", "turn", "layers", "ranks"):
        table.add_column(name, justify="right" if name in {"group", "turn"} else "left")
    for stage in plan.stages:
        ranks = ", ".join(str(rank) for rank in stage.ranks)
        table.add_row(str(stage.stage), str(stage.turn), f"{stage.first_layer}-{stage.last_layer}", ranks)
    return table
