"""app.yaml: what is accepted, and what a person reads when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from services._runtime.command.errors import BadFileError
from services.cli.apps.app_file import AppFile, load_app_file, parse_app_file

LIMITS = "name: shop\ncpu_limit: 2\nmemory_limit: 1GiB\n"


def wrong(text: str) -> list[str]:
    with pytest.raises(BadFileError) as caught:
        parse_app_file(text)
    return str(caught.value).splitlines()


def test_limits_alone_are_an_application() -> None:
    app = parse_app_file(LIMITS)

    assert (app.name, app.cpu_limit, int(app.memory_limit), app.containers) == ("shop", 2.0, 1 << 30, ())
    assert app.spec.announced_containers == 0


def test_a_container_with_every_field() -> None:
    app = parse_app_file(
        LIMITS
        + """
containers:
  - name: web
    image: nginx:1.27
    command: nginx -g 'daemon off;'
    environment: {PORT: 80, DEBUG: false, NAME: no}
    volumes: ["/srv:/srv:ro", "cache:/cache"]
    ports: [80, "8080:8080/udp", "127.0.0.1:22:22"]
    network: shop
    labels: [tier=front]
    restart: no
"""
    )
    web = app.containers[0]

    assert web.command == ("nginx", "-g", "daemon off;")
    assert web.environment == {"PORT": "80", "DEBUG": "false", "NAME": "no"}
    assert web.ports == ("80", "8080:8080/udp", "127.0.0.1:22:22")
    assert web.labels == {"tier": "front"}
    assert web.restart == "no"


def test_replicas_are_numbered_and_announced() -> None:
    app = parse_app_file(LIMITS + "containers:\n  - {name: web, image: x, replicas: 3}\n  - {name: db, image: y}\n")

    assert [instance.name for instance in app.instances] == ["web-1", "web-2", "web-3", "db"]
    assert app.spec.announced_containers == 4
    assert not hasattr(app.spec, "containers")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LIMITS + "cpu_limt: 3\n", "app.yaml:4: unknown field 'cpu_limt': did you mean 'cpu_limit'?"),
        (
            LIMITS + "containers:\n  - name: web\n    image: x\n    replica: 2\n",
            "app.yaml:7: unknown field 'containers[0].replica': did you mean 'replicas'?",
        ),
        ("name: shop\ncpu_limit: 0\nmemory_limit: 1GiB\n", "app.yaml:2: cpu_limit: should be greater than 0, not 0"),
        ("name: shop\ncpu_limit: 2\n", "app.yaml:1: 'memory_limit' is missing"),
        ("name: shop\ncpu_limit: lots\nmemory_limit: 1GiB\n", "app.yaml:2: cpu_limit: should be a number, not 'lots'"),
        (
            "name: shop\ncpu_limit: true\nmemory_limit: 1GiB\n",
            "app.yaml:2: cpu_limit: should be a number, not true or false",
        ),
        (
            "name: shop\ncpu_limit: 2\nmemory_limit: much\n",
            "app.yaml:3: memory_limit: should be bytes, or such as 512MiB, 512m or 2g (units of 1024), not 'much'",
        ),
        (LIMITS + "mode: off\n", "app.yaml:4: mode: 'off' must be one of observe, enforce"),
        (
            LIMITS + "policy: waterfal\n",
            "app.yaml:4: policy: 'waterfal' must be one of waterfill, escra: did you mean waterfill?",
        ),
        (
            "name: my shop\ncpu_limit: 2\nmemory_limit: 1GiB\n",
            (
                "app.yaml:1: name: should be letters, digits, '_', '.' and '-', at most 63, a letter or digit first,"
                " not 'my shop'"
            ),
        ),
        (LIMITS + "name: again\n", "app.yaml:4: 'name' stands here a second time"),
        (
            LIMITS + "containers:\n  - {name: web, image: x, replicas: 300}\n",
            "app.yaml:4: 300 containers need at least 3 cores, cpu_limit is 2",
        ),
        (
            LIMITS + "containers:\n  - {name: a, image: x}\n  - {name: a, image: y}\n",
            "app.yaml:6: two containers are named 'a': names must differ",
        ),
        (
            LIMITS + "containers:\n  - {name: a, image: x, replicas: 2}\n  - {name: a-2, image: y}\n",
            "app.yaml:6: two containers are named 'a-2': names must differ",
        ),
        (LIMITS + "containers: {name: web}\n", "app.yaml:4: containers: should be a list, not {'name': 'web'}"),
        (
            LIMITS + "containers:\n  -\n",
            "app.yaml:5: containers[0]: should be a map of fields such as 'name' and 'image', not None",
        ),
        (
            LIMITS + "containers:\n  - {name: a, image: x, ports: ['22:22'], replicas: 2}\n",
            "app.yaml:5: containers[0]: 2 replicas cannot share the host's port in '22:22': name only the container's",
        ),
        (
            LIMITS + "containers:\n  - {name: a, image: x, labels: {turnbuckle.app: b}}\n",
            (
                "app.yaml:5: containers[0].labels: turnbuckle.app is set by `turnbuckle apply` itself: labels must not"
                " start with 'turnbuckle.'"
            ),
        ),
        ("name: [\n", "app.yaml:2: not valid YAML: expected the node content, but found '<stream end>'"),
        (
            "\tname: shop\n",
            (
                "app.yaml:1: not valid YAML: found character '\\t' that cannot start any token"
                " (YAML is indented with spaces, not tabs)"
            ),
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, line: str) -> None:
    assert wrong(text) == [line]


def test_every_mistake_is_told_at_once() -> None:
    assert len(wrong("name: shop\ncpu_limit: -1\nmemory_limit: 1\nnonsense: 1\n")) == 3


@pytest.mark.parametrize(
    "text", ["", "- name: shop\n", "just text\n", "a: &a [*a]\n", "--- 1\n--- 2\n", "? [a]\n: b\n"]
)
def test_what_is_no_application_file_is_refused(text: str) -> None:
    assert wrong(text)


def test_a_cpu_limit_that_is_no_number_to_compute_with_is_refused() -> None:
    assert wrong("name: shop\ncpu_limit: .nan\nmemory_limit: 1GiB\n")[0].startswith("app.yaml:2: cpu_limit: ")
    assert wrong("name: shop\ncpu_limit: .inf\nmemory_limit: 1GiB\n")[0].startswith("app.yaml:2: cpu_limit: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    large = tmp_path / "large.yaml"
    large.write_text("#" * ((1 << 20) + 1))

    for file, said in (
        (tmp_path / "no.yaml", "No such file"),
        (binary, "UTF-8"),
        (large, "larger than"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(BadFileError, match=said) as caught:
            load_app_file(file)
        assert str(file) in str(caught.value)


def test_yaml_aliases_and_merge_keys_work() -> None:
    app: AppFile = parse_app_file(
        LIMITS + "containers:\n  - &base {name: a, image: x, environment: {A: 1}}\n  - {<<: *base, name: b}\n"
    )

    assert [(item.name, item.environment) for item in app.containers] == [("a", {"A": "1"}), ("b", {"A": "1"})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "app.yaml:2: this is a Kubernetes manifest (kind: Pod), and"),
        ("apiVersion: apps/v1\n", "app.yaml:1: this is a Kubernetes manifest (apiVersion: apps/v1), and no app.yaml"),
        ("services:\n  web: {image: nginx}\n", "app.yaml:1: this is a Compose file, and no app.yaml: give the"),
    ],
)
def test_another_tools_file_is_named(text: str, said: str) -> None:
    with pytest.raises(BadFileError) as caught:
        parse_app_file(text)

    assert str(caught.value).startswith(said)
    assert "turnbuckle.app" in str(caught.value)
