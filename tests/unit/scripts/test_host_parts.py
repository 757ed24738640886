"""Each host test stands in one part of ``make test-host``, and parts are chosen by rooms and by what differs."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import host_parts
from scripts.host_parts import LEFT_OUT, PARTS, ROOT, differing, of_rooms

HOST_FOLDERS = {"kernel", "lab", "system", "compose"}
"""As tests/conftest.py has them, and the marks below as well."""
HOST_MARKS = {"host", "root", "docker", "netns", "vm", "gpu"}


def marks_of(file: Path) -> set[str]:
    """What stands after `pytest.mark.` in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
            found.add(node.attr)
    return found


def files_of_tests() -> Iterator[Path]:
    return (ROOT / "tests").rglob("test_*.py")


def names(parts: list[host_parts.Part]) -> list[str]:
    return [part.name for part in parts]


def test_each_file_of_host_tests_stands_in_one_part() -> None:
    listed = Counter(name for part in PARTS for name in part.files)
    host = {
        str(file.relative_to(ROOT))
        for file in files_of_tests()
        if file.relative_to(ROOT / "tests").parts[0] in HOST_FOLDERS or marks_of(file) & HOST_MARKS
    }
    assert not [name for name, times in listed.items() if times > 1], "in two parts"
    assert sorted(host - set(listed)) == sorted(LEFT_OUT), "in no part"
    assert not set(listed) - host, "no host tests, or no file"


def test_a_test_that_depends_on_the_machines_speed_is_one_of_the_hosts() -> None:
    listed = {name for part in PARTS for name in part.files}
    assert not [
        str(file)
        for file in files_of_tests()
        if "machine" in marks_of(file) and str(file.relative_to(ROOT)) not in listed
    ]


def test_code_of_parts_is_there_and_names_are_different() -> None:
    code = {name for part in PARTS for name in part.code} | set(host_parts.EVERYWHERE)
    assert not [name for name in sorted(code) if not (ROOT / name).exists()]
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_what_stands_only_where_all_cores_are_taken_asserts_nothing_of_the_machines_speed() -> None:
    spread = [ROOT / name for part in PARTS if part.spread for name in part.files]
    assert not [str(file) for file in spread if "machine" in marks_of(file)]


def test_a_room_is_all_its_parts_and_no_room_is_everything() -> None:
    assert names(of_rooms(["vm"])) == ["vm-groups", "vm-rules", "vm-memory"]
    assert names(of_rooms(["memory", "host"])) == ["host", "vm-memory"]
    assert names(of_rooms(["agent-memory"])) == ["agent-memory"]
    assert of_rooms([]) == list(PARTS)


def test_an_unknown_room_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no such room: agents\. Rooms: advisor, agent, .*, vm; --list"):
        of_rooms(["agents", "vm"])


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        (["services/memory/core/placement.py"], ["vm-memory"]),
        (["services/memory_of_others/x.py", "docs/compose.md"], ["docs"]),
        (["services/memory_of_others/x.py"], []),
        (["tests/system/test_console_many.py"], ["console"]),
        (["scripts/load_images.sh"], ["compose"]),
        (["tests/lab/vm/rdma_lab.py"], ["vm-groups", "vm-rules", "vm-memory"]),
        (["pyproject.toml"], names(list(PARTS))),
        (["services/_runtime/bus/outbox.py"], names(list(PARTS))),
    ],
)
def test_what_differs_chooses_the_parts_that_test_it(changed: list[str], chosen: list[str]) -> None:
    assert names(differing(PARTS, changed)) == chosen


def test_shared_code_of_tests_chooses_the_parts_whose_tests_import_it_also_through_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "tests/system/test_a.py": "from tests.support.lab import Lab\n",
        "tests/system/conftest.py": "from tests.support import cluster\n",
        "tests/support/lab.py": "import tests.support.deep\n",
        "tests/support/deep.py": "",
        "tests/support/cluster.py": "",
        "tests/support/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host_parts, "ROOT", tmp_path)
    part = host_parts.Part("a", ("a",), ("system/a",), ())

    for name in ("lab", "deep", "cluster"):
        assert differing([part], [f"tests/support/{name}.py"]) == [part]
    assert differing([part], ["tests/system/conftest.py"]) == [part]
    assert differing([part], ["tests/support/other.py"]) == []


def test_the_table_names_every_file() -> None:
    text = host_parts.table(PARTS)
    assert all(name in text for part in PARTS for name in (*part.files, *part.code, *LEFT_OUT))
