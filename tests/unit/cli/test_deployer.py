"""The deployment plan: idempotent, and careful with what others made."""

from __future__ import annotations

import pytest

from services._runtime.command.errors import BadFileError
from services.cli.apps.app_file import parse_app_file
from services.cli.apps.deployer import Action, ExistingContainer, hash_template, plan_deployment
from services.cli.apps.docker_deployment import container_options, docker_ports

FILE = parse_app_file(
    "name: shop\ncpu_limit: 2\nmemory_limit: 1GiB\n"
    "containers:\n  - {name: web, image: nginx, replicas: 2}\n  - {name: db, image: postgres, ports: [5432]}\n"
)
WEB_HASH = hash_template(FILE.containers[0])
DB_HASH = hash_template(FILE.containers[1])


def actions(existing: list[ExistingContainer], *, prune: bool = False) -> dict[str, Action]:
    return {step.name: step.action for step in plan_deployment(FILE, existing, prune=prune).steps}


def test_nothing_there_creates_everything_with_equations_2_1_and_2_2() -> None:
    plan = plan_deployment(FILE, [], prune=False)

    assert actions([]) == dict.fromkeys(("web-1", "web-2", "db"), Action.CREATE)
    # 2.1: 200,000 us / 3; 2.2: 1 GiB x (1 - 0.2) / 3, in whole pages
    assert plan.limits.quota_us == 66_666
    assert plan.limits.memory_bytes == int((1 << 30) * 0.8) // 3 // 4096 * 4096
    assert plan.spec.announced_containers == 3


def test_applying_twice_keeps_everything() -> None:
    existing = [
        ExistingContainer("1", "web-1", WEB_HASH, running=True),
        ExistingContainer("2", "web-2", WEB_HASH, running=True),
        ExistingContainer("3", "db", DB_HASH, running=True),
    ]

    assert set(actions(existing).values()) == {Action.KEEP}


def test_changed_stopped_and_surplus_containers() -> None:
    existing = [
        ExistingContainer("1", "web-1", "another", running=True),
        ExistingContainer("2", "web-2", WEB_HASH, running=False),
        ExistingContainer("9", "old", "any", running=True),
    ]

    assert actions(existing) == {
        "web-1": Action.REPLACE,
        "web-2": Action.START,
        "db": Action.CREATE,
        "old": Action.LEAVE,
    }
    assert actions(existing, prune=True)["old"] is Action.REMOVE


def test_limits_are_no_part_of_a_containers_specification() -> None:
    richer = parse_app_file(
        "name: shop\ncpu_limit: 4\nmemory_limit: 2GiB\ncontainers:\n  - {name: web, image: nginx, replicas: 5}\n"
    )

    assert hash_template(richer.containers[0]) == WEB_HASH
    assert hash_template(FILE.containers[0].model_copy(update={"image": "nginx:2"})) != WEB_HASH


def test_less_memory_than_docker_accepts_is_refused_before_anything_is_created() -> None:
    tiny = parse_app_file(
        "name: a\ncpu_limit: 1\nmemory_limit: 12MiB\ncontainers:\n  - {name: b, image: c, replicas: 2}\n"
    )

    with pytest.raises(BadFileError, match="Docker needs at least"):
        plan_deployment(tiny, [], prune=False)


def test_docker_is_asked_for_limits_and_labels() -> None:
    plan = plan_deployment(FILE, [], prune=False)
    options = container_options("shop", "db", FILE.containers[1], plan.limits)

    assert options["labels"] == {
        "turnbuckle.app": "shop",
        "turnbuckle.name": "db",
        "turnbuckle.spec-hash": DB_HASH,
    }
    assert (options["cpu_period"], options["cpu_quota"]) == (100_000, 66_666)
    assert options["mem_limit"] == options["memswap_limit"] == plan.limits.memory_bytes
    assert "command" not in options


def test_ports_as_the_sdk_wants_them() -> None:
    assert docker_ports(("80", "8080:81", "127.0.0.1:22:22", "53:53/udp", "[::1]:82:82", "127.0.0.1::83")) == {
        "80/tcp": None,
        "81/tcp": 8080,
        "22/tcp": ("127.0.0.1", 22),
        "53/udp": 53,
        "82/tcp": ("::1", 82),
        "83/tcp": ("127.0.0.1",),
    }
    assert docker_ports(("8080:80", "9090:80")) == {"80/tcp": [8080, 9090]}
