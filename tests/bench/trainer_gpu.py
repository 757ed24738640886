"""The trainer on one GPU: its layered engine beside FSDP2, and what plans predict. ``make bench-gpu``.

**Engines**, in one process of one rank, in bfloat16 with parameters and optimizer in float32: each kind has the same
model, batch and fused AdamW, and the kinds take turns at every step. A step begins and ends with a synchronised GPU.
FSDP2 recomputes activations, as the layered engine always does, and once without: with more memory it need not.

**Predictions**, by the commands that a user types: `turnbuckle devices --measure`, `layers`, `plan` and the rank that
`turnbuckle train` starts; the plan's step and memory beside what the rank reports.

Nothing is asserted; a ratio that was asked for says met or MISSED. ``--device cpu --quick`` rehearses it without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from schemas.layers import LayerProfile
from schemas.plans import Plan
from services._jobs.layer_chain import chain_of
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.engine import Engine
from services.trainer.worker.flat import Placement
from services.trainer.worker.fsdp2 import Fsdp2Engine
from services.trainer.worker.layered import LayeredEngine
from tests.bench.figures import Expectation, Spread, expectation_lines
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.pictures import panels, save
from tests.bench.trainer_model import Shape, build
from tests.bench.trainer_steps import recomputing, stepper

ROOT: Final = Path(__file__).resolve().parents[2]
GIB: Final = 1 << 30
BASE: Final = "fsdp2, recomputing"
OURS: Final = "layered"
KINDS: Final = (BASE, OURS, "layered, two micro-batches", "fsdp2, keeping activations")
ASKED_RATIO: Final = 1 / 0.9
"""Of the layered engine's step to that of FSDP2, which recomputes as well: 0.9 of its samples per second."""
WARM_UP: Final = 3
PLANNED_SAMPLES: Final = 8
VOCABULARY: Final = 32_768
SIZES: Final = (Shape(1024, 12, 8, 1024, VOCABULARY), Shape(2048, 12, 16, 1024, VOCABULARY))
QUICK_SIZES: Final = (Shape(64, 2, 2, 32, 128),)


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is measured, and where."""

    device: torch.device
    samples: int
    steps: int
    sizes: tuple[Shape, ...]


@dataclass(slots=True)
class Measured:
    """Of one kind of training."""

    took_s: list[float] = field(default_factory=list)
    """Of each step."""
    losses: list[float] = field(default_factory=list)
    """Of each step."""
    working_bytes: int = 0
    """The most that a step allocates beside parameters, gradients and moments; 0 on a processor: not known."""

    def add(self, took_s: float, working_bytes: int, loss: float) -> None:
        """One step."""
        self.took_s.append(took_s)
        self.losses.append(loss)
        self.working_bytes = max(self.working_bytes, working_bytes)


@dataclass(frozen=True, slots=True)
class Predicted:
    """One plan, and what the rank that followed it took."""

    strategy: str
    engine: str
    batch: int
    microbatch: int
    step_us: float
    step_low_us: float
    step_high_us: float
    planned_bytes: int
    """Without what a process uses before it has a model: the allocator, which measures, does not count that."""
    took_us: list[int]
    between_us: list[int]
    """From the end of a step to the beginning of the next: loading, reporting, agreeing on the end."""
    peak_bytes: int
    """The most that its allocator had given out."""


@contextmanager
def one_rank(device: torch.device) -> Iterator[None]:
    """A process group of this process alone, as a rank's."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def trainings(shape: Shape, setting: Setting) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """One of each kind."""
    placement = Placement(0, (1.0,), setting.device, torch.bfloat16)

    def training(engine: Engine, microbatches: int = 1) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = torch.optim.AdamW(engine.parameters, lr=1e-4, fused=True)
        gc.collect()  # the module's parameters that the engine has copied
        return stepper(engine, optimizer, microbatches, setting.samples)

    for name in KINDS:
        with setting.device:  # drawn there: a processor takes half a minute for it
            model = recomputing(shape) if name == BASE else build(shape)
        if name.startswith(OURS):
            engine: Engine = LayeredEngine(chain_of(model), placement)
        else:
            engine = Fsdp2Engine(BuiltModel(model), chain_of(model), placement)
        yield name, training(engine, 2 if "two" in name else 1)


def measure_engines(shape: Shape, setting: Setting) -> dict[str, Measured]:
    """By kind; the kinds take turns at every step."""
    kinds = dict(trainings(shape, setting))
    found = {kind: Measured() for kind in kinds}
    draw = torch.Generator().manual_seed(1)
    for number in range(WARM_UP + setting.steps):
        drawn = torch.randint(0, shape.vocabulary, (setting.samples, shape.length + 1), generator=draw)
        drawn = drawn.to(setting.device)
        for kind, step in kinds.items():
            took_s, working_bytes, loss = timed_step(partial(step, drawn[:, :-1], drawn[:, 1:]), setting.device)
            if number >= WARM_UP:
                found[kind].add(took_s, working_bytes, loss)
    return found


def timed_step(step: Callable[[], Tensor], device: torch.device) -> tuple[float, int, float]:
    """Seconds, bytes allocated beside what was there before, and the loss."""
    before_bytes = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before_bytes = torch.cuda.memory_allocated(device)
    begin_s = time.perf_counter()
    value = step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    took_s = time.perf_counter() - begin_s
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return took_s, peak_bytes - before_bytes, float(value)


def turnbuckle(directory: Path, *words: object, **environment: str) -> None:
    """The command, in a directory."""
    run_command(["services.cli", *map(str, words)], directory, environment)


def predictions(shape: Shape, setting: Setting, directory: Path) -> list[Predicted]:
    """Profile, plan by each strategy, train; the directory has cluster.yaml."""
    place = "cuda:0" if setting.device.type == "cuda" else "cpu"
    model, data = (f"{ROOT}/tests/bench/trainer_model.py:{name}" for name in ("gpt", "batches"))
    sizes = {"WIDTH": shape.width, "BLOCKS": shape.blocks, "LENGTH": shape.length, "VOCABULARY": shape.vocabulary}
    environment = {key: str(value) for key, value in sizes.items()}
    batch = PLANNED_SAMPLES
    given = ["--data", data, "--batch-up-to", batch, "--device", place, "--dtype", "bfloat16", "--out", "layers.json"]
    turnbuckle(directory, "layers", model, *given, **environment)
    profile = LayerProfile.model_validate_json((directory / "layers.json").read_bytes())
    found = []
    # Of one device: several micro-batches are engine layered's, the same for each is fsdp2's.
    for asked_for in (["uneven", "--max-microbatch", batch // 2], ["even"]):
        plan_file, report = f"{asked_for[0]}.json", f"{asked_for[0]}.jsonl"
        given = ["--batch", batch, "--gather", "bfloat16", "--out", plan_file, "--strategy", *asked_for]
        turnbuckle(directory, "plan", "layers.json", "--devices", "cluster.yaml", *given)
        plan = Plan.model_validate_json((directory / plan_file).read_bytes())
        steps = WARM_UP + setting.steps
        rank = ["services.trainer.worker", plan_file, model, "--data", data, "--steps", str(steps), "--report", report]
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
        (directory / report).unlink(missing_ok=True)  # of the size before: a rank appends
        run_command([*rank, "--device", setting.device.type], directory, environment | alone)
        found.append(predicted(plan, profile, (directory / report).read_text(encoding="utf-8")))
    return found


def predicted(plan: Plan, profile: LayerProfile, report: str) -> Predicted:
    """A plan beside a rank's report."""
    lines = [json.loads(line) for line in report.splitlines()]
    took_us, end_us = ([one for line in lines for one in line[name]] for name in ("step_us", "end_us"))
    between_us = [end - before - took for before, end, took in zip(end_us, end_us[1:], took_us[1:], strict=False)]
    (device,) = plan.devices
    return Predicted(
        plan.strategy,
        plan.engine,
        plan.batch,
        device.microbatch,
        plan.step_us,
        plan.step_low_us,
        plan.step_high_us,
        device.planned_bytes - profile.reserved_bytes,
        took_us[WARM_UP:],
        between_us[WARM_UP:],
        max(most for line in lines for most in line["memory_bytes"]),
    )


def run_command(module: Sequence[str], directory: Path, environment: dict[str, str]) -> str:
    """Of this project, as a process; its output.

    Raises:
        RuntimeError: it fails; with what it has said.
    """
    say(" ".join(module))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TURNBUCKLE_", "NATS_"))}
    own = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(directory), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=directory,
        env=kept | own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(module)} ends with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def device_line(device: torch.device) -> str:
    """What a figure cannot be read without."""
    if device.type != "cuda":
        return f"a processor (a rehearsal), torch {torch.__version__}"
    properties = torch.cuda.get_device_properties(device)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{properties.name}, {properties.total_memory / GIB:.0f} GiB, torch {torch.__version__}, NCCL {nccl}"


def engine_rows(shape: Shape, samples: int, found: dict[str, Measured]) -> list[list[str]]:
    """A row for each kind: its step, samples per second beside FSDP2's within a turn, and memory."""
    rows = []
    for kind, measured in found.items():
        ratios = [base / own for base, own in zip(found[BASE].took_s, measured.took_s, strict=True)]
        rows.append([
            _millions(shape),
            kind,
            Spread.of([1e3 * took for took in measured.took_s]).text(1) + " ms",
            f"{samples / statistics.median(measured.took_s):.1f}",
            Spread.of(ratios).text(2),
            f"{(measured.working_bytes + 4 * shape.parameters) / GIB:.1f} GiB",
        ])  # fmt: skip
    return rows


def prediction_rows(shape: Shape, found: Sequence[Predicted]) -> list[list[str]]:
    """A row for each plan."""
    return [
        [
            _millions(shape),
            f"{one.engine}, {one.batch} samples in micro-batches of {one.microbatch}",
            f"{one.step_us / 1e3:.1f} ({one.step_low_us / 1e3:.1f}-{one.step_high_us / 1e3:.1f}) ms",
            f"{Spread.of([took / 1e3 for took in one.took_us]).text(1)} ms",
            f"{one.step_us / statistics.median(one.took_us):.2f}",
            f"{Spread.of([between / 1e3 for between in one.between_us]).text(2)} ms",
            f"{one.planned_bytes / GIB:.1f} GiB",
            f"{one.peak_bytes / GIB:.1f} GiB",
        ]
        for one in found
    ]


ENGINE_COLUMNS: Final = [
    "parameters",
    "engine",
    "step",
    "samples per second",
    f"of {BASE}, by turn",
    "gradients and activations",
]
PREDICTION_COLUMNS: Final = [
    "parameters",
    "plan",
    "step planned",
    "measured",
    "ratio",
    "between steps",
    "memory planned",
    "allocated",
]


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """For a terminal."""
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in (columns, *rows))
    return "\n".join(line.rstrip() for line in lines)


def loss_difference(found: dict[str, Measured]) -> float:
    """The largest relative one between a kind and FSDP2, over all steps: what computes something else stands out."""
    base = found[BASE].losses
    return max(
        abs(own / one - 1) for measured in found.values() for own, one in zip(measured.losses, base, strict=True)
    )


def picture(engines: dict[Shape, dict[str, Measured]], plans: dict[Shape, list[Predicted]], caption: str) -> Path:
    """Steps by engine; planned steps beside measured ones."""
    figure, (left, right) = panels(2, (12, 4))
    for shape, found in engines.items():
        for kind, measured in found.items():
            spread = Spread.of([1e3 * took for took in measured.took_s])
            ends = [[spread.median - spread.least], [spread.most - spread.median]]
            left.errorbar(spread.median, f"{kind}, {_millions(shape)}", xerr=ends, marker="o", color="black")
    left.invert_yaxis()
    left.set_xlim(left=0)
    left.set_xlabel("ms of a step: median and range")
    left.tick_params(axis="y", labelsize=7)
    longest = 0.0
    for shape, made in plans.items():
        for one in made:
            measured_ms, planned_ms = statistics.median(one.took_us) / 1e3, one.step_us / 1e3
            ends = [[planned_ms - one.step_low_us / 1e3], [one.step_high_us / 1e3 - planned_ms]]
            right.errorbar(measured_ms, planned_ms, yerr=ends, marker="o", label=f"{one.engine}, {_millions(shape)}")
            longest = max(longest, measured_ms, planned_ms)
    right.plot([0, longest], [0, longest], color="grey", linewidth=0.8)
    right.set_xlabel("ms of a step, measured (median)")
    right.set_ylabel("ms, planned, with the plan's interval")
    right.legend(fontsize=7)
    return save(figure, caption, OUTPUT / "gpu.png")


def _millions(shape: Shape) -> str:
    return f"{shape.parameters / 1e6:,.0f} M"


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal, with --quick")
    parser.add_argument("--quick", action="store_true", help="a model of no use, in seconds")
    parser.add_argument("--samples", type=int, default=32, help="of a step; an even number (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="that count, of each kind (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the record")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        say(f"torch {torch.__version__} sees no GPU here: --device cpu --quick rehearses the benchmark")
        raise SystemExit(UNAVAILABLE)
    device = torch.device(given.device, *([0] if given.device == "cuda" else []))
    setting = Setting(device, given.samples, given.steps, QUICK_SIZES if given.quick else SIZES)
    machine = this_machine()
    engines: dict[Shape, dict[str, Measured]] = {}
    plans: dict[Shape, list[Predicted]] = {}
    with TemporaryDirectory(prefix="turnbuckle-bench-gpu-") as made:
        directory = Path(made)
        turnbuckle(directory, "devices", "--measure", "--out", "cluster.yaml")
        say((directory / "cluster.yaml").read_text(encoding="utf-8"))
        for shape in setting.sizes:
            say(f"{_millions(shape)} parameters")
            with one_rank(device):
                engines[shape] = measure_engines(shape, setting)
            say("\n" + table_text(ENGINE_COLUMNS, engine_rows(shape, setting.samples, engines[shape])))
            gc.collect()
            torch.cuda.empty_cache()
            plans[shape] = predictions(shape, setting, directory)
            say("\n" + table_text(PREDICTION_COLUMNS, prediction_rows(shape, plans[shape])))
    report(engines, plans, setting, machine, as_json=given.json)


def report(
    engines: dict[Shape, dict[str, Measured]],
    plans: dict[Shape, list[Predicted]],
    setting: Setting,
    machine: Machine,
    *,
    as_json: bool,
) -> None:
    """Tables, record and picture."""
    where = f"{device_line(setting.device)}; {machine.line}"
    first = [row for shape, found in engines.items() for row in engine_rows(shape, setting.samples, found)]
    second = [row for shape, found in plans.items() for row in prediction_rows(shape, found)]
    expected = [asked(shape, found) for shape, found in engines.items()]
    differences = {_millions(shape): loss_difference(found) for shape, found in engines.items()}
    record = {
        "machine": machine.as_dict(),
        "device": device_line(setting.device),
        "samples": setting.samples,
        "engines": [
            {**asdict(shape), "kinds": {kind: asdict(one) for kind, one in found.items()}}
            for shape, found in engines.items()
        ],
        "plans": [{**asdict(shape), "plans": [asdict(one) for one in made]} for shape, made in plans.items()],
        "expected": [row.as_dict() for row in expected],
        "largest_relative_difference_of_losses": differences,
        "tables": {
            "engines": {"machine": where, "columns": ENGINE_COLUMNS, "rows": first},
            "plans": {"machine": where, "columns": PREDICTION_COLUMNS, "rows": second},
        },
    }  # fmt: skip
    text = "\n\n".join([
        where,
        table_text(ENGINE_COLUMNS, first),
        "\n".join(f"losses of all kinds within {most:.1e} of fsdp2's ({name})" for name, most in differences.items()),
        table_text(PREDICTION_COLUMNS, second),
        "\n".join(expectation_lines(expected, 40, 2)),
    ])  # fmt: skip
    written = [write_record(record, OUTPUT / "gpu.json"), picture(engines, plans, where)]
    tell(text, record, written, as_json=as_json)


def asked(shape: Shape, found: dict[str, Measured]) -> Expectation:
    """At least 0.9 of FSDP2's samples per second, where that recomputes as well."""
    ratios = [own / base for base, own in zip(found[BASE].took_s, found[OURS].took_s, strict=True)]
    return Expectation(f"{OURS} / {BASE}, {_millions(shape)}", ASKED_RATIO, "of its step", Spread.of(ratios))


if __name__ == "__main__":
    main()
