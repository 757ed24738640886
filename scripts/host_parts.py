"""The parts of ``make test-host``: which test files make up a part, which rooms it belongs to, and what it tests.

Each file with a test of the mark ``host`` stands in one part (`tests/unit/scripts/test_host_parts.py` asserts that),
but for `LEFT_OUT`. A part is chosen by its room, by its own name, or by what differs from a revision: its test files,
its code folders, a file below tests/ that its tests import, or `EVERYWHERE`. `scripts/run_host_parts.py` runs them.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LEFT_OUT: Final = ("tests/system/test_soak.py",)
"""What random faults find is rare by nature: `make soak`, or pytest on this file."""
EVERYWHERE: Final = ("services/_runtime", "schemas", "tests/conftest.py", "pyproject.toml", "constraints.txt")
"""A change here chooses every part."""
_HOST: Final = "services/_host"
_JOBS: Final = "services/_jobs"
_EDGE: Final = "services/_edge"
_AGENT_AND_ALLOCATOR: Final = ("services/agent", "services/allocator", _HOST)


@dataclass(frozen=True, slots=True)
class Part:
    """Test files that run in one pytest."""

    name: str
    rooms: tuple[str, ...]
    tests: tuple[str, ...]
    """Files below tests/, without `test_` and `.py`: kernel/sandbox is tests/kernel/test_sandbox.py."""
    code: tuple[str, ...]
    """Folders and files that these test, from the repository's root, but for `EVERYWHERE`."""
    spread: bool = False
    """Over all cores: nothing of it asserts what a busy machine breaks, and nothing of it is shared."""

    @property
    def files(self) -> tuple[str, ...]:
        """The test files, from the repository's root."""
        return tuple(f"tests/{folder}/test_{name}.py" for folder, _, name in (at.rpartition("/") for at in self.tests))


def _tests(folder: str, names: str) -> tuple[str, ...]:
    """Files of one folder."""
    return tuple(f"{folder}/{name}" for name in names.split())


PARTS: Final = (
    Part(
        "host",
        ("host",),
        _tests("kernel", "cgroup_handle ci_clean docker_containers load_in_a_group racks sandbox"),
        (_HOST, _JOBS, "scripts/ci_clean.sh"),
    ),
    Part(
        "agent-kernel",
        ("agent",),
        _tests("kernel", "kernel_table managed_groups memory_guard watchdog"),
        ("services/agent", _HOST, "kernel"),
    ),
    Part(
        "agent-containers",
        ("agent",),
        (
            *_tests("kernel", "docker_discovery pod_discovery"),
            *_tests("system", "containers_without_room docker foreign_quota late_pods late_sources"),
        ),
        _AGENT_AND_ALLOCATOR,
    ),
    Part(
        "agent-system",
        ("agent",),
        _tests("system", "applied_limits bad_input faults_bus faults_host savings tracking transitions"),
        _AGENT_AND_ALLOCATOR,
    ),
    Part(
        "agent-memory",
        ("agent",),
        _tests("system", "memory_deadline memory_exhausted memory_growth"),
        _AGENT_AND_ALLOCATOR,
    ),
    Part(
        "agent-processes",
        ("agent",),
        _tests("integration", "prometheus traces_memory"),
        (*_AGENT_AND_ALLOCATOR, "services/reconciler", "compose/observability"),
    ),
    Part(
        "allocator",
        ("allocator",),
        _tests(
            "system", "cluster cpu_overcommit node_budget peer_allocator refused_limits replicas shared_limit takeover"
        ),
        _AGENT_AND_ALLOCATOR,
    ),
    Part(
        "reconciler",
        ("reconciler",),
        (*_tests("kernel", "reconciler_process"), *_tests("lab", "path_auditor thorn_faults")),
        ("services/reconciler", "services/fabric", _EDGE, _HOST),
    ),
    Part(
        "reconciler-processes",
        ("reconciler",),
        (*_tests("unit/reconciler/adapters", "kernel_adapter netlink_kernel"), "integration/reconciler_bus"),
        ("services/reconciler", _EDGE, _HOST),
        spread=True,
    ),
    Part(
        "fastpath",
        ("fastpath",),
        (
            *_tests("kernel", "fast_path_flood fast_path_guard fast_path_process"),
            *_tests("lab", "fast_path fast_path_storm thorn_storm"),
        ),
        ("services/fastpath", "services/reconciler", "services/fabric", _EDGE, _HOST),
    ),
    Part(
        "fabric",
        ("fabric",),
        _tests("lab", "bfdd_access drain dumbbell fabric fabric_refusals lab training_job"),
        ("services/fabric", "services/reconciler", "services/fastpath", _EDGE, _JOBS, _HOST),
    ),
    Part(
        "collector",
        ("collector",),
        _tests("kernel", "emulate local_run"),
        ("services/collector", _JOBS, _HOST),
    ),
    Part(
        "collector-processes",
        ("collector",),
        _tests("integration", "collector collector_tools journal local_run_bus scheduled_records"),
        ("services/collector", "services/scheduler", _JOBS, _HOST),
        spread=True,
    ),
    Part(
        "advisor",
        ("advisor",),
        _tests("integration", "advisor traces"),
        ("services/advisor", "services/collector", _JOBS),
        spread=True,
    ),
    Part(
        "scheduler",
        ("scheduler",),
        (*_tests("system", "preempted_training slurm"), "integration/scheduler"),
        ("services/scheduler", "services/runner", _JOBS, "docs/examples"),
    ),
    Part(
        "runner",
        ("runner",),
        (*_tests("kernel", "pacing runner_groups traffic_times"), "system/runner_process"),
        ("services/runner", _HOST),
    ),
    Part(
        "runner-congestion",
        ("runner",),
        (
            *_tests("kernel", "iteration mltcp mltcp_closed_loop mltcp_routes"),
            "bench/tests/kernel_threads",
        ),
        ("services/runner", _JOBS, _HOST, "kernel"),
    ),
    Part(
        "planner",
        ("planner",),
        ("kernel/layers", *_tests("integration", "devices_command layers_command")),
        ("services/planner", _JOBS, _HOST),
    ),
    Part(
        "trainer",
        ("trainer",),
        (*_tests("kernel", "train_in_containers train_in_sandboxes"), "system/scheduled_trainer"),
        ("services/trainer", "services/planner", "services/scheduler", "services/runner", _JOBS, _HOST),
    ),
    Part(
        "trainer-processes",
        ("trainer",),
        (
            *_tests("integration", "train_command train_elastic_command train_registered"),
            *_tests("integration", "trainer_elastic trainer_gpu trainer_pipelines trainer_torchrun trainer_worker"),
        ),
        ("services/trainer", "services/planner", _JOBS),
        spread=True,
    ),
    Part(
        "aggregator",
        ("aggregator",),
        ("system/aggregator_limits",),
        ("services/aggregator", _JOBS, *_AGENT_AND_ALLOCATOR),
    ),
    Part(
        "aggregator-processes",
        ("aggregator",),
        _tests("integration", "aggregation aggregator_service train_aggregated_command"),
        ("services/aggregator", "services/trainer", _JOBS, _HOST),
        spread=True,
    ),
    Part(
        "console",
        ("console",),
        (*_tests("system", "console console_cost console_jobs console_many console_trainings"), "lab/console_network"),
        ("services/console",),
    ),
    Part(
        "cli",
        ("cli",),
        (*_tests("system", "up_cluster up_demo"), *_tests("integration", "cli_apply cli_exec")),
        ("services/cli", "services/scheduler", "services/runner", _JOBS, *_AGENT_AND_ALLOCATOR),
    ),
    Part(
        "install",
        ("install",),
        _tests("integration", "base_installation new_service wheel"),
        ("scripts/new_service.py", "scripts/service_template", "services/cli"),
        spread=True,
    ),
    Part(
        "compose",
        ("compose",),
        (
            *_tests("system", "compose compose_images compose_jobs"),
            *_tests("compose", "agent_memory large_images secured_stack whole_stack"),
            "kernel/loaded_images",
        ),
        ("compose", "scripts/list_images.sh", "scripts/load_images.sh", "scripts/make_images_offline.sh"),
    ),
    Part(
        "compose-files",
        ("compose",),
        _tests("integration", "compose_files helm_chart kubernetes_manifests systemd_units"),
        ("compose",),
        spread=True,
    ),
    Part(
        "docs",
        ("docs",),
        ("integration/client_packages", "unit/asyncapi_page"),
        ("docs", "scripts/asyncapi"),
    ),
    Part(
        "vm-groups",
        ("vm", "agent"),
        _tests("lab", "cgroup_v2 guest kernel_telemetry node_memory_vm"),
        ("tests/lab/vm", *_AGENT_AND_ALLOCATOR, "kernel", "tests/kernel"),
    ),
    Part(
        "vm-rules",
        ("vm", "reconciler"),
        _tests("lab", "lab_vm soft_roce thorn_vm"),
        ("tests/lab/vm", "services/reconciler", "services/fabric", _EDGE, _HOST),
    ),
    Part(
        "vm-memory",
        ("vm", "memory"),
        ("lab/remote_memory_vm",),
        ("tests/lab/vm", "services/memory", _HOST),
    ),
)
ROOMS: Final = tuple(sorted({room for part in PARTS for room in part.rooms}))


def of_rooms(rooms: Iterable[str]) -> list[Part]:
    """Parts of these rooms, or of these names, in the order of the table; all of them where none is given.

    Raises:
        ValueError: A room is not known; the message lists those that are.
    """
    wanted = set(rooms)
    unknown = wanted - set(ROOMS) - {part.name for part in PARTS}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"no such room: {names}. Rooms: {', '.join(ROOMS)}; --list shows their parts, which do, too")
    return [part for part in PARTS if not wanted or wanted & {part.name, *part.rooms}]


def changed_files(revision: str) -> list[str]:
    """What this checkout changed since it left the revision: committed, not committed, and not even added.

    Raises:
        ValueError: git does not know the revision, or something else is wrong with it.
    """
    found: list[str] = []
    for command in (
        ["git", "diff", "--name-only", "--no-renames", "--merge-base", revision, "--"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603 - git
        if done.returncode:
            raise ValueError(f"{' '.join(command)}: {done.stderr.strip()}")
        found += done.stdout.splitlines()
    return found


def differing(parts: Iterable[Part], changed: Iterable[str]) -> list[Part]:
    """Those of the parts that changed files have to do with; a file that no part knows of chooses none."""
    names = set(changed)
    if any(_below(name, EVERYWHERE) for name in names):
        return list(parts)
    return [
        part
        for part in parts
        if any(_below(name, part.code) for name in names) or names & (set(part.files) | imported_tests(part.files))
    ]


def _below(name: str, folders: Iterable[str]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def imported_tests(files: Iterable[str]) -> set[str]:
    """Files below tests/ that these import, directly or through others of them, and the conftests beside them."""
    waiting = list(files)
    waiting += {str(Path(name).parent / "conftest.py") for name in waiting}
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found and (ROOT / name).is_file():
            found.add(name)
            waiting += _imports(ROOT / name)
    return found


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """What a file may import of tests/: `from tests.a import b` means tests/a.py or tests/a/b.py."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = [module for node in ast.walk(tree) for module in _modules(node) if module.startswith("tests.")]
    paths = [module.replace(".", "/") for module in modules]
    return tuple(f"{path}{ending}" for path in paths for ending in (".py", "/__init__.py"))


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def table(parts: Iterable[Part]) -> str:
    """The parts, their rooms, files and code, for people."""
    lines = []
    for part in parts:
        lines.append(f"{part.name}  (ROOM={' or '.join(part.rooms)}{', on all cores' if part.spread else ''})")
        lines += [f"    {name}" for name in part.files]
        lines.append(f"    for {', '.join(part.code)}")
    lines.append(f"left out: {', '.join(LEFT_OUT)}: make soak")
    lines.append(f"chosen all by CHANGED where one of these differs: {', '.join(EVERYWHERE)}")
    return "\n".join(lines)
