"""The skeleton of a service, made in a copy of the tree: it passes the checks of every service, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.new_service import SkeletonError, skeleton

ROOT = Path(__file__).parents[2]
MYPY_CACHE = ".mypy_cache"
CHECKS = (
    "tests/unit/sketch",
    "tests/unit/test_docs_fresh.py",
    "tests/integration/test_compose_files.py",
    "tests/integration/test_kubernetes_manifests.py",
    "tests/integration/test_helm_chart.py::test_helm_finds_no_fault",
    "tests/integration/test_helm_chart.py::test_with_autoscalers_it_renders_what_kubectl_makes_of_the_base",
    "tests/integration/test_load_images.py::test_without_names_it_is_the_images_of_the_chart",
    "tests/integration/test_load_images.py::test_make_images_builds_the_images_of_the_chart",
    "tests/integration/test_systemd_units.py",
    "tests/unit/test_dashboards.py",
    "tests/unit/test_links.py",
    "tests/unit/test_words.py",
    "tests/unit/schemas/test_permissions.py",
    "tests/unit/schemas/test_schema_snapshots.py::test_no_message_breaks_its_snapshot",
    "tests/unit/schemas/test_schema_snapshots.py::test_snapshots_are_fresh",
    "tests/unit/schemas/test_subject_discipline.py::test_no_service_builds_a_subject",
    "tests/integration/test_interpreter.py::test_services_are_found_with_a_line_each",
)
"""Tests that read what a service consists of; those of the same files that read nothing of it stand in this tree."""
OF_EACH_FILE = ("test_words", "test_panels", "test_what_all_units_keep", "refuses_what_is_wrong", "mistakes")
OF_ITS_OWN = f"sketch or not ({' or '.join(OF_EACH_FILE)})"
"""These look at one file each; the other files' stand in this tree, too."""


@pytest.mark.host  # half a minute of a processor
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_new_service_passes_every_check(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    if (ROOT / MYPY_CACHE).is_dir():  # `make check` was here: libraries are not checked again
        shutil.copytree(ROOT / MYPY_CACHE, tree / MYPY_CACHE)

    def run(*command: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    run("git", "init", "--quiet", ".")  # tests list the tree's files by git
    run("git", "add", "--all")
    python = (sys.executable, "-m")
    written = run(*python, "scripts.new_service", "sketch", "keeps links and jobs apart")
    assert "services/sketch/service.py" in written
    before = run("git", "write-tree")
    run("git", "add", "--all")
    run(*python, "ruff", "check", ".")
    run(*python, "ruff", "format", "--check", ".")
    run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    run(*python, "scripts.house")
    run(*python, "mypy", "services/sketch", "schemas", "tests/unit/sketch")
    run(*python, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", OF_ITS_OWN, *CHECKS)

    for line in written.splitlines():  # taken away as CONTRIBUTING.md says
        if "sketch" in line and " " not in line:
            (tree / line).unlink()
    shutil.rmtree(tree / "services/sketch")
    for module in ("roles", "services", "docs", "dashboards", "chart"):
        run(*python, f"scripts.generate_{module}")
    run(*python, "scripts.schema_snapshots", "--allow-breaking")
    run("git", "add", "--all")
    assert run("git", "write-tree") == before, run("git", "diff", "--cached", "--stat", before.strip())


@pytest.mark.parametrize(
    ("name", "summary", "complaint"),
    [
        ("allocator", "keeps links apart", "is there already"),
        ("New_One", "keeps links apart", "small letters"),
        ("sketch", "short", "10 to 80 characters"),
        ("sketch", "ends with a full stop.", "without a full stop"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(name: str, summary: str, complaint: str) -> None:
    with pytest.raises(SkeletonError, match=complaint):
        skeleton(name, summary)
