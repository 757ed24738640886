"""Aliases in every YAML file that we read: what they stand for is bounded, and refused before it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import MAX_VALUES, MOST_CHARACTERS, BoundedLoader
from services.cli.advise.job_yaml import load_job
from services.cli.apps.app_file import load_app_file
from services.collector.emulator.grid import BadGridError, read
from services.collector.transfer.importing import MappingError, read_mapping
from services.fabric.host_file import load_host_file
from services.planner.cluster_file import read_cluster

READERS: dict[str, Callable[[Path], Any]] = {
    "app.yaml": load_app_file,
    "host.yaml": load_host_file,
    "job.yaml": load_job,
    "mapping.yaml": read_mapping,
    "grid.yaml": read,
}
ERRORS = (BadFileError, BadGridError, MappingError)


def laughs(levels: int, width: int = 10) -> str:
    """A few hundred bytes that stand for ``width ** levels`` values."""
    lines = ["v0: &v0 [" + ", ".join("x" * width) + "]"]
    lines += [f"v{level}: &v{level} [" + ", ".join([f"*v{level - 1}"] * width) + "]" for level in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", READERS)
def test_a_billion_laughs_are_refused_at_their_line(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(laughs(9))

    with pytest.raises(ERRORS) as caught:
        READERS[name](file)

    assert str(caught.value) == (
        f"{file}:4: not valid YAML: with the alias *v2 the file stands for more than {MAX_VALUES} values"
    )


@pytest.mark.parametrize("name", READERS)
def test_a_character_that_no_yaml_has_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("name: a\0b\n")

    with pytest.raises(ERRORS) as caught:
        READERS[name](file)

    said = "unacceptable character #x0000: special characters are not allowed (character 8)"
    assert str(caught.value) == f"{file}: not valid YAML: {said}"


def test_a_mistake_is_told_without_the_middle_of_a_value_of_thousands_of_characters(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"machines: {{a: {{devices: [{{kind: cpu, memory: {'9' * 4_000}x}}]}}}}\n")

    with pytest.raises(BadFileError) as caught:
        read_cluster(file)

    begin, _, end = str(caught.value).partition(" ... ")
    assert begin.startswith(f"{file}:1: machines.a.devices[0].memory: should be bytes, or such as 512MiB")
    assert end.endswith("9x'")
    assert len(str(caught.value)) < MOST_CHARACTERS + 200


@pytest.mark.parametrize("name", READERS)
def test_an_alias_inside_of_itself_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("name: shop\nloop: &loop [1, *loop]\n")

    with pytest.raises(ERRORS, match=r":2: not valid YAML: the alias \*loop stands inside of the value"):
        READERS[name](file)


def test_ordinary_aliases_and_merges_stay() -> None:
    text = "base: &base {A: 1}\nweb: {<<: *base, B: 2}\napi: *base\n"

    assert yaml.load(text, Loader=BoundedLoader) == {"base": {"A": 1}, "web": {"A": 1, "B": 2}, "api": {"A": 1}}


@given(levels=st.integers(1, 6), width=st.integers(1, 12))
def test_what_is_read_is_never_larger_than_the_bound(levels: int, width: int) -> None:
    """And what is refused is larger: the file stands for so many values, keys included."""
    total = 1 + sum(1 + count(level, width) for level in range(levels))
    try:
        read_content = yaml.load(laughs(levels, width), Loader=BoundedLoader)
    except yaml.composer.ComposerError:
        assert total > MAX_VALUES
    else:
        assert total <= MAX_VALUES
        assert len(read_content) == levels


def count(level: int, width: int) -> int:
    """Values that v``level`` stands for: itself and all in it."""
    return 1 + width if level == 0 else 1 + width * count(level - 1, width)
