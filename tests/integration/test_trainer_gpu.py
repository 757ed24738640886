"""The trainer and the tools of plans on one GPU, as a user types them. Skipped where there is none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.layers import Dtype, LayerProfile
from schemas.plans import Engine, Plan, Strategy
from services.planner.cluster_file import read_cluster
from tests.support.trainer_plans import plan_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TEXT = ROOT / "docs" / "examples" / "trainer" / "text.py"
FUSED = ROOT / "tests" / "bench" / "trainer_model.py"
SMALL = {"WIDTH": "128", "BLOCKS": "2", "LENGTH": "64", "VOCABULARY": "256"}
"""Of the model of `FUSED`, whose optimizer is one kernel that keeps its count of steps on the device."""
ENDLESS = 1_000_000
DEADLINE_S = 120
PLANS = {
    Engine.LAYERED: plan_of([8], [2], [1]),  # two micro-batches
    Engine.FSDP2: plan_of([8], [1], [1], Engine.FSDP2),
}


def turnbuckle(directory: Path, *words: object, **environment: str) -> str:
    """Its output, once it has ended well."""
    done = subprocess.run(
        [BIN / "turnbuckle", *map(str, words)],
        cwd=directory,
        env=clean_environment(directory) | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
    return kept | {"XDG_STATE_HOME": str(directory), "COLUMNS": "200", "NO_COLOR": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def trained(
    directory: Path, plan: Plan, device: str, steps: int, *words: object, job: Path = TEXT
) -> dict[str, list[float]]:
    """By step of one rank that torchrun would have started: ``loss``, ``step_us`` and so on, until it has ended."""
    directory.mkdir(exist_ok=True)
    (directory / "plan.json").write_text(plan.model_dump_json())
    (directory / "report").unlink(missing_ok=True)
    build = "gpt" if job is FUSED else "build"
    given = ["plan.json", f"{job}:{build}", "--data", f"{job}:batches", "--steps", steps, "--report", "report"]
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    turnbuckle(directory, "run", "trainer-worker", *given, "--device", device, *words, **alone, **SMALL)
    lines = [json.loads(line) for line in (directory / "report").read_text().splitlines()]
    return {
        name: [value for line in lines for value in line[name]] for name in ("step", "loss", "step_us", "memory_bytes")
    }


@pytest.mark.parametrize("engine", list(PLANS))
def test_a_training_on_a_gpu_has_the_losses_of_one_on_a_processor(engine: Engine, tmp_path: Path) -> None:
    on_gpu = trained(tmp_path / "gpu", PLANS[engine], "cuda", 10)
    on_processor = trained(tmp_path / "cpu", PLANS[engine], "cpu", 10)

    assert on_gpu["step"] == list(range(10))
    # float32 has 2^-24 of an element; sums in another order, over ten steps of AdamW
    assert on_gpu["loss"] == pytest.approx(on_processor["loss"], rel=1e-4)
    assert on_gpu["loss"][-1] < on_gpu["loss"][0], "a training that changes nothing would agree, too"


@pytest.mark.parametrize("engine", list(PLANS))
def test_bfloat16_differs_by_rounding_alone(engine: Engine, tmp_path: Path) -> None:
    plan = PLANS[engine].model_copy(update={"gather_dtype": Dtype.BFLOAT16})
    short = trained(tmp_path / "short", plan, "cuda", 10)["loss"]
    long = trained(tmp_path / "long", PLANS[engine], "cuda", 10)["loss"]

    # bfloat16 has 2^-9 of an element
    assert short == pytest.approx(long, rel=0.02)
    assert short != pytest.approx(long, rel=1e-5), "nothing was computed in bfloat16"


@pytest.mark.parametrize("job", [TEXT, FUSED], ids=["foreach", "fused"])
@pytest.mark.parametrize("engine", list(PLANS))
def test_a_checkpoint_of_a_gpu_goes_on_there_and_on_a_processor(engine: Engine, job: Path, tmp_path: Path) -> None:
    plan = PLANS[engine]
    whole = trained(tmp_path / "whole", plan, "cuda", 8, job=job)["loss"]
    trained(tmp_path / "cut", plan, "cuda", 5, "--checkpoint", "saved", job=job)
    shutil.copytree(tmp_path / "cut", tmp_path / "elsewhere")
    there = trained(tmp_path / "cut", plan, "cuda", 8, "--checkpoint", "saved", job=job)
    elsewhere = trained(tmp_path / "elsewhere", plan, "cpu", 8, "--checkpoint", "saved", job=job)

    assert there["step"] == elsewhere["step"] == [5, 6, 7]
    assert there["loss"] == pytest.approx(whole[5:], rel=1e-4)
    assert elsewhere["loss"] == pytest.approx(whole[5:], rel=1e-3 if job is FUSED else 1e-4)


def test_sigterm_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PLANS[Engine.LAYERED].model_dump_json())
    given = ["plan.json", f"{TEXT}:build", "--data", f"{TEXT}:batches", "--checkpoint", "saved", "--device", "cuda"]
    line = [BIN / "turnbuckle", "train", *given, "--steps", str(ENDLESS)]
    pipe = subprocess.PIPE
    environment = clean_environment(tmp_path)
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("step ")
            process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    done = int(out.splitlines()[-1].removeprefix("stopped after step ").split()[0])
    assert f"saved after step {done}\n" in said

    again = turnbuckle(tmp_path, "train", *given, "--steps", done + 3, "--json")

    events = [json.loads(line) for line in again.splitlines()]
    assert f"goes on after step {done}" in [event["text"] for event in events if event["event"] == "output"]
    assert events[-1]["step"] == done + 3


def test_more_ranks_than_gpus_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_of([4, 4], [1, 1], [1, 1]).model_dump_json())
    done = subprocess.run(
        [BIN / "turnbuckle", "train", "plan.json", f"{TEXT}:build", "--data", f"{TEXT}:batches", "--steps", "3"],
        cwd=tmp_path,
        env=clean_environment(tmp_path) | {"CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 65, done.stderr
    assert "torch sees 1 GPU on this machine, too few for process 2" in done.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with cluster.yaml and layers.json of this machine's first GPU."""
    directory = tmp_path_factory.mktemp("measured")
    turnbuckle(directory, "devices", "--measure", "--out", "cluster.yaml")
    model = [f"{TEXT}:build", "--data", f"{TEXT}:batches", "--batch-up-to", 8]
    turnbuckle(directory, "layers", *model, "--device", "cuda:0", "--out", "layers.json", OMP_NUM_THREADS="1")
    return directory


def test_a_gpu_is_found_and_measured(measured: Path) -> None:
    import torch  # noqa: PLC0415 - there is a GPU: the module is collected without

    properties = torch.cuda.get_device_properties(0)
    text = (measured / "cluster.yaml").read_text()
    devices = read_cluster(measured / "cluster.yaml").devices

    assert len(devices) == torch.cuda.device_count()
    assert devices[0].kind == properties.name.lower().removeprefix("nvidia ").replace(" ", "-")
    assert properties.total_memory - (1 << 20) < devices[0].memory_bytes <= properties.total_memory
    assert "reference layer" in text
    assert "the processors are left out" in text


def test_layers_are_measured_on_a_gpu(measured: Path) -> None:
    profile = LayerProfile.model_validate_json((measured / "layers.json").read_bytes())

    assert profile.kind == read_cluster(measured / "cluster.yaml").devices[0].kind
    assert profile.dtype is Dtype.FLOAT32
    assert profile.order == (0, 1, 1, 1, 1, 2)
    assert profile.microbatches == 8
    block = profile.classes[1]
    # the linear layers alone keep their input of 256 positions: 256 + 256 + 256 + 1024 numbers of 4 bytes in each
    assert block.saved_bytes[0] > 256 * (3 * 256 + 1024) * 4
    assert block.saved_bytes[7] > 4 * block.saved_bytes[0]
    assert min(block.forward_us) > 1
    # a context of CUDA alone takes hundreds of MiB
    assert 100 << 20 < profile.reserved_bytes < 4 << 30


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (Engine.LAYERED, ["--strategy", Strategy.UNEVEN, "--max-microbatch", 4]),
        (Engine.FSDP2, ["--strategy", Strategy.EVEN]),
    ],
)
def test_a_plan_of_a_gpus_profile_is_carried_out_as_predicted(
    measured: Path, engine: Engine, options: list[object], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    given = ["layers.json", "--devices", "cluster.yaml", "--batch", 8, *options, "--out", out]
    turnbuckle(measured, "plan", *given)
    plan = Plan.model_validate_json(out.read_bytes())
    assert plan.engine is engine

    found = trained(tmp_path, plan, "cuda", 40)

    # what a step of a small model takes is a matter of the processor that starts its kernels, too
    took_us = statistics.median(found["step_us"][5:])
    assert plan.step_us / 4 < took_us < plan.step_us * 4
    assert max(found["memory_bytes"]) < plan.devices[0].planned_bytes
