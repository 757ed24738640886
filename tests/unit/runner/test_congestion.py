"""Whatever of congestion control cannot be had, workers have the host's default, and it is said why."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services._host.bpf.congestion import DEFAULT, CongestionCounters
from services._host.bpf.records import VERSION
from services._runtime.telemetry.logging import get_logger
from services.runner.congestion import CongestionControl, load_congestion_control
from services.runner.settings import RunnerSettings
from services.runner.worker import WorkerKey
from services.runner.worker_network import WorkerNetwork
from services.runner.worker_routes import MARKER, WorkerRoutes
from tests.support.cgroup_lab import wait_until
from tests.support.fake_cgroupfs import fake_layout
from tests.support.flow_records import packed, record

WORKER = WorkerKey("train", 2, 1)
HOST_DEFAULT = DEFAULT.read_text(encoding="ascii").strip()
LOG = get_logger("runner")
ROUTES = WorkerRoutes(Path("/nowhere"), None, LOG)
SOCKOPS = "send(10, b'{0} {0}_2', [os.open('/dev/null', os.O_RDONLY)])"
READY = "send(3)"
STAYS = "runner.recv(1)"
Load = Callable[..., CongestionControl]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """What a runner loads by a loader that runs these lines; ``send(kind, payload, descriptors)`` sends a packet."""
    loaded: list[CongestionControl] = []

    def begin(*lines: str, mltcp: str = "restricted") -> CongestionControl:
        prelude = f"""\
            #!{sys.executable} -S
            import os, socket, struct, sys
            runner = socket.socket(fileno=int(sys.argv[sys.argv.index("--socket") + 1]))
            def send(kind, payload=b"", descriptors=()):
                socket.send_fds(runner, [struct.pack("=II", {VERSION}, kind) + payload], list(descriptors))
            """
        loader = tmp_path / "turnbuckle-congestion"
        if lines:
            loader.write_text(textwrap.dedent(prelude) + "\n".join(lines) + "\n")
            loader.chmod(0o755)
        settings = RunnerSettings.load({}, node="n1", kernel_directory=tmp_path, mltcp=mltcp)
        control, _ = load_congestion_control(settings, fake_layout(tmp_path, 2), ROUTES, get_logger("runner"))
        loaded.append(control)
        return control

    yield begin
    for control in loaded:
        control.close()


def test_the_hosts_own_come_first(load: Load) -> None:
    control = load(SOCKOPS.format("zeta"), SOCKOPS.format("mltcp"), "send(2, b'mltcp ok')", READY, STAYS)
    assert control.names == (HOST_DEFAULT, "mltcp", "zeta")
    assert (control.loaded, control.why_not) == (True, "")


def test_without_a_loader_it_is_said_how_to_get_one(load: Load) -> None:
    control = load()
    assert control.names == (HOST_DEFAULT,)
    assert control.why_not.endswith("turnbuckle-congestion is not there; build it with: make kernel")


def test_what_the_kernel_refuses_is_told(load: Load) -> None:
    control = load(SOCKOPS.format("reno"), "send(2, b'mltcp failed: no struct_ops')", READY, STAYS)
    assert (control.loaded, control.why_not) == (False, "no struct_ops")
    assert "reno" in control.names


def test_switched_off_the_hosts_others_can_still_be_had(load: Load) -> None:
    control = load(SOCKOPS.format("reno"), "assert 'off' in sys.argv", READY, STAYS, mltcp="off")
    assert control.why_not == "TURNBUCKLE_RUNNER__MLTCP is off"
    assert "reno" in control.names


def test_workers_without_control_groups_have_the_hosts_default() -> None:
    settings = RunnerSettings.load({}, node="n1")
    control, layout = load_congestion_control(settings, None, ROUTES, get_logger("runner"))
    assert (control.names, layout) == ((HOST_DEFAULT,), None)
    assert control.why_not == "workers have no control groups"


@pytest.mark.parametrize(
    ("wanted", "event"),
    [
        ("", None),
        ("cubist", "congestion_control_not_here"),
        ("mltcp", "congestion_control_not_given"),  # /dev/null is no program
        ("auto", "congestion_control_not_given"),
    ],
)
def test_a_job_runs_whatever_it_asks_for(load: Load, tmp_path: Path, wanted: str, event: str | None) -> None:
    control = load(SOCKOPS.format("mltcp"), "send(2, b'mltcp ok')", READY, STAYS)
    with capture_logs() as logs:
        assert control.choose(WORKER, str(tmp_path), wanted) == ""
    assert [entry["event"] for entry in logs] == ([] if event is None else [event])


def test_without_control_groups_a_request_for_another_one_is_logged(load: Load) -> None:
    control = load(SOCKOPS.format("cubic"), READY, STAYS)
    with capture_logs() as logs:
        assert [control.choose(WORKER, None, wanted) for wanted in ("", "auto", "cubic")] == ["", "", ""]
    assert [(entry["event"], entry["wanted"]) for entry in logs] == [("congestion_control_not_here", "cubic")]


def test_a_namespace_that_is_gone_is_why_there_is_no_mltcp(load: Load, tmp_path: Path) -> None:
    load(SOCKOPS.format("mltcp"), READY, STAYS)
    gone = WorkerNetwork(str(tmp_path / "gone"), "eth0")
    settings = RunnerSettings.load({}, node="n1", kernel_directory=tmp_path)
    control, _ = load_congestion_control(settings, None, WorkerRoutes(tmp_path, gone, LOG), LOG)
    assert (control.names, control.loaded) == ((HOST_DEFAULT,), False)
    assert control.why_not.startswith(f"the routes of {gone.namespace} cannot be changed: ")


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"boot": 1}'])
def test_a_marker_that_is_not_legible_is_told_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / MARKER).write_text(content)
    with capture_logs() as logs:
        WorkerRoutes(tmp_path, None, LOG).put_back()
    assert [entry["event"] for entry in logs] == ["routes_not_put_back"]
    assert (tmp_path / MARKER).exists()


def test_a_group_that_is_gone_is_no_error(load: Load, tmp_path: Path) -> None:
    control = load(SOCKOPS.format("mltcp"), READY, STAYS)
    assert control.choose(WORKER, str(tmp_path / "gone"), "auto") == ""
    control.release(WORKER)


def test_iterations_are_those_of_workers(load: Load, tmp_path: Path) -> None:
    """1,000 bytes in 300 of 1,000 ms, with a retransmission; another group's are left out."""
    ours = packed(record(group=tmp_path.stat().st_ino))
    control = load(
        READY, f"send(9, {ours + packed(record(group=1))!r})", "send(11, struct.pack('=4Q', 1, 2, 3, 4))", STAYS
    )
    control.choose(WORKER, str(tmp_path), "")
    wait_until(lambda: control.poll() or control.counters != CongestionCounters(), what="counters")
    assert control.counters == CongestionCounters(flows=1, iterations=2, scaled_acks=3, lost=4)
    (found,) = control.iterations()
    assert (found.job, found.attempt, found.rank) == WORKER
    assert (found.period_us, found.sending_us, found.sent_bytes, found.drops) == (1_000_000, 300_000, 1_000, 1)
    assert found.congestion_control == "mltcp"
    booted_ns = time.time_ns() - time.monotonic_ns()
    assert abs(found.time_ns - booted_ns) < 60 * 10**9, "0 by CLOCK_MONOTONIC, as time since the epoch"
    assert control.iterations() == []


def test_a_loader_that_ends_takes_mltcp_with_it(load: Load) -> None:
    control = load(SOCKOPS.format("mltcp"), READY)
    with capture_logs() as logs:
        wait_until(lambda: control.poll() or not control.loaded, what="its end")
    assert control.why_not == "turnbuckle-congestion has ended"
    assert control.names == (HOST_DEFAULT,)
    assert [entry["event"] for entry in logs] == ["congestion_loader_ended"]
