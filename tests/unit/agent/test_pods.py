"""Pods: whose a group is by its path, what the runtime's answers mean, and when it is asked. Only the wire is faked."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import pytest

from schemas.containers import ContainerSource
from schemas.kubeoperator import SELECTORS_KEY, PodSelector, PodSelectors
from schemas.streams import POD_SELECTORS
from services._host.cri import CriClient, CriError
from services._host.pod_cgroups import LIST_TURNS, PodGroups, find_tops, parse_group
from services._runtime.clock import SystemClock
from services.agent.discovery.pods import FIRST_RETRY_S, RELIST_S, PodDiscovery
from services.agent.discovery.selectors import follow_selectors
from services.agent.ports import Discovered, FoundContainer, GoneContainer, RejectedContainer, SourceAnswered
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.cri_lab import CREATED, EXITED, FakeRuntime, serving
from tests.support.deadline import until
from tests.support.fake_cgroupfs import fake_layout

UID = "0f1e2d3c-0000-4000-8000-123456789abc"
WEB, SIDECAR, PAUSE, LATER = "a" * 64, "b" * 64, "c" * 64, "d" * 64
SYSTEMD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
SHOP = {"turnbuckle.app": "shop"}


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        (f"pod{UID}", WEB, WEB),
        (f"kubepods-pod{UID.replace('-', '_')}.slice", f"cri-containerd-{WEB}.scope", WEB),
        (f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice", f"crio-{WEB}.scope", WEB),
        (f"kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice", f"docker-{WEB}.scope", WEB),
        ("pod" + "7" * 32, WEB, WEB),  # a static pod's uid is a digest of its file
        (f"pod{UID}", f"crio-conmon-{WEB}.scope", None),
        (f"pod{UID}", WEB[:12], None),
        ("system.slice", f"cri-containerd-{WEB}.scope", None),
    ],
)
def test_names_of_groups(pod: str, container: str, expected: str | None) -> None:
    assert parse_group(pod, container) == expected


@pytest.mark.parametrize(
    ("version", "directory"),
    [
        (2, f"{SYSTEMD}/cri-containerd-{WEB}.scope"),
        (2, f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{WEB}.scope"),
        (2, f"kubelet.slice/kubelet-{SYSTEMD.replace('/kubepods-', '/kubelet-kubepods-')}/cri-containerd-{WEB}.scope"),
        (1, f"kubepods/burstable/pod{UID}/{WEB}"),
        (1, f"kubepods/pod{UID}/{WEB}"),
    ],
)
def test_groups_of_both_drivers_and_versions(tmp_path: Path, version: int, directory: str) -> None:
    """Of every quality of service; conmon's group and the container's own children are not listed."""
    layout = fake_layout(tmp_path, version)
    mount = Path(layout.mounts["cpu"].directory)
    (mount / directory / "container").mkdir(parents=True)
    (mount / directory).with_name(f"crio-conmon-{WEB}.scope").mkdir()
    (mount / "system.slice" / f"cri-containerd-{SIDECAR}.scope").mkdir(parents=True)

    [group] = PodGroups(layout).scan(find_tops(layout))

    assert group == (WEB, directory)


def test_no_kubelet_no_groups(tmp_path: Path) -> None:
    layout = fake_layout(tmp_path, 2)

    assert find_tops(layout) == []
    assert PodGroups(layout).scan(["kubepods"]) == []


def test_who_was_replaced_between_two_looks_is_seen_in_turn(tmp_path: Path) -> None:
    """The pod holds as many directories as before; its end is seen at once."""
    layout = fake_layout(tmp_path, 1)
    pod = tmp_path / "cpu" / "kubepods" / f"pod{UID}"
    (pod / WEB).mkdir(parents=True)
    groups = PodGroups(layout)
    assert [group.container_id for group in groups.scan(["kubepods"])] == [WEB]

    (pod / WEB).rename(pod / LATER)

    looks = [[group.container_id for group in groups.scan(["kubepods"])] for _ in range(LIST_TURNS)]
    assert looks[-1] == [LATER]
    (pod / LATER).rmdir()
    pod.rmdir()
    assert groups.scan(["kubepods"]) == []


class Node:
    """A host with pods, its runtime at a socket, and a clock that stands still."""

    def __init__(self, base: Path, socket_path: Path, namespaces: tuple[str, ...] = ()) -> None:
        self.layout = fake_layout(base, 2)
        self.top = Path(self.layout.mounts["cpu"].directory)
        self.runtime = FakeRuntime()
        self.client = CriClient(str(socket_path), timeout_s=5.0)
        self.now_s = 0.0
        self.discovery = PodDiscovery(self.layout, self.client, namespaces, clock=lambda: self.now_s)

    def make(self, *container_ids: str) -> None:
        for container_id in container_ids:
            (self.top / SYSTEMD / f"cri-containerd-{container_id}.scope").mkdir(parents=True)

    def remove(self, container_id: str) -> None:
        shutil.rmtree(self.top / SYSTEMD / f"cri-containerd-{container_id}.scope")

    async def after(self, seconds: float) -> list[Discovered]:
        self.now_s += seconds
        return await self.discovery.scan()

    async def found(self) -> set[str]:
        """Names of whom one look reports, who are all found."""
        reports = await self.discovery.scan()
        assert all(isinstance(report, FoundContainer) for report in reports)
        return {report.name for report in reports if isinstance(report, FoundContainer)}


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "cri.sock"


@pytest.fixture
async def node(tmp_path: Path, socket_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path, socket_path)
    with serving(node.runtime, socket_path):
        yield node
        node.client.close()


@pytest.fixture
def shop(node: Node) -> Iterator[Node]:
    """A labelled pod with two containers."""
    node.runtime.add_pod(PAUSE, labels=SHOP)
    node.runtime.add_container(WEB, PAUSE, "web")
    node.runtime.add_container(SIDECAR, PAUSE, "sidecar")
    node.make(PAUSE, WEB, SIDECAR)
    return node


async def test_a_labelled_pod_joins_with_all_its_containers_and_without_its_sandbox(shop: Node) -> None:
    directory = f"{SYSTEMD}/cri-containerd-{WEB}.scope"

    reports = await shop.discovery.scan()

    assert reports == [
        FoundContainer(WEB, "shop", "web", ContainerSource.KUBERNETES, managed_directory=directory),
        FoundContainer(
            SIDECAR, "shop", "sidecar", ContainerSource.KUBERNETES, managed_directory=directory.replace(WEB, SIDECAR)
        ),
    ]
    assert shop.discovery.available


async def test_the_runtime_is_asked_about_newcomers_only(shop: Node) -> None:
    """Two questions make one listing; a container that ends is seen without any."""
    await shop.discovery.scan()
    assert shop.runtime.questions == 2

    assert await shop.after(1.0) == []
    shop.remove(WEB)
    assert await shop.after(1.0) == [GoneContainer(WEB)]
    assert shop.runtime.questions == 2

    shop.runtime.add_container(LATER, PAUSE, "web", state=CREATED)
    shop.make(LATER)
    assert await shop.found() == {"web"}
    assert shop.runtime.questions == 4
    await shop.after(RELIST_S)
    assert shop.runtime.questions == 6, "whether it still answers"


async def test_a_group_that_the_runtime_does_not_know_yet_is_asked_about_again(shop: Node) -> None:
    """At growing intervals: 0.5 s, 1 s, 2 s ..."""
    shop.make(LATER)
    assert await shop.found() == {"web", "sidecar"}

    assert await shop.after(FIRST_RETRY_S / 2) == []
    assert shop.runtime.questions == 2
    assert await shop.after(FIRST_RETRY_S / 2) == []
    assert shop.runtime.questions == 4
    assert await shop.after(FIRST_RETRY_S) == []
    assert shop.runtime.questions == 4

    shop.runtime.add_container(LATER, PAUSE, "late")
    shop.now_s += FIRST_RETRY_S
    assert await shop.found() == {"late"}


async def test_a_runtime_that_is_away_costs_newcomers_only(shop: Node) -> None:
    assert await shop.found() == {"web", "sidecar"}
    shop.runtime.fault = grpc.StatusCode.UNAVAILABLE
    shop.runtime.add_container(LATER, PAUSE, "late")
    shop.make(LATER)

    assert await shop.after(1.0) == []
    assert not shop.discovery.available
    shop.remove(WEB)
    assert await shop.after(0.0) == [GoneContainer(WEB)]

    shop.runtime.fault = None
    shop.now_s += FIRST_RETRY_S
    assert await shop.found() == {"late"}
    assert shop.discovery.available


async def test_a_silent_runtime_has_answered_once_its_containers_were_reported(shop: Node) -> None:
    reports: list[Discovered] = []
    shop.runtime.fault = grpc.StatusCode.UNAVAILABLE
    discovery = PodDiscovery(shop.layout, shop.client, interval_s=0.01)
    task = asyncio.create_task(discovery.run(reports.append))
    await until(lambda: shop.runtime.questions, what="a question to the runtime")
    assert reports == []

    shop.runtime.fault = None
    answered = SourceAnswered(ContainerSource.KUBERNETES)
    await until(lambda: answered in reports, what="an answer")
    before = reports[: reports.index(answered)]
    assert {report.name for report in before if isinstance(report, FoundContainer)} == {"web", "sidecar"}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_pods_of_others_are_left_alone(node: Node) -> None:
    node.runtime.add_pod(PAUSE, labels={"app": "shop"})
    node.runtime.add_container(WEB, PAUSE, "web")
    node.make(PAUSE, WEB)

    assert await node.discovery.scan() == []
    assert await node.after(1.0) == []
    assert node.runtime.questions == 2


async def test_names_and_the_choice_of_containers(node: Node) -> None:
    """The label names them; the annotation says which of them join."""
    node.runtime.add_pod(
        PAUSE, labels=SHOP | {"turnbuckle.name": "front"}, annotations={"turnbuckle.containers": "web, late"}
    )
    node.runtime.add_container(WEB, PAUSE, "web")
    node.runtime.add_container(SIDECAR, PAUSE, "istio-proxy")
    node.make(PAUSE, WEB, SIDECAR)

    assert await node.found() == {"front"}


async def test_an_unusable_label_is_told_once(node: Node) -> None:
    node.runtime.add_pod(PAUSE, labels={"turnbuckle.app": ""})
    node.runtime.add_container(WEB, PAUSE, "web")
    node.make(PAUSE, WEB)

    [report] = await node.discovery.scan()

    assert isinstance(report, RejectedContainer)
    assert "turnbuckle.app=''" in report.reason
    assert await node.after(RELIST_S) == []


async def test_other_namespaces_may_be_kept_out(tmp_path: Path, socket_path: Path) -> None:
    node = Node(tmp_path, socket_path, namespaces=("shop",))
    node.runtime.add_pod(PAUSE, namespace="shop", labels=SHOP)
    node.runtime.add_container(WEB, PAUSE, "web")
    node.runtime.add_pod(LATER, namespace="elsewhere", labels=SHOP)
    node.runtime.add_container(SIDECAR, LATER, "intruder")
    node.make(PAUSE, WEB, SIDECAR)
    with serving(node.runtime, socket_path):
        reports = {report.container_id: report for report in await node.discovery.scan()}
        node.client.close()

    assert isinstance(reports[WEB], FoundContainer)
    assert isinstance(reports[SIDECAR], RejectedContainer)
    assert "elsewhere" in reports[SIDECAR].reason


async def test_what_has_ended_is_not_listed(node: Node) -> None:
    node.runtime.add_pod(PAUSE, labels=SHOP)
    node.runtime.add_container(WEB, PAUSE, "web", state=EXITED)

    listing = await node.client.list()

    assert listing.containers == {}
    assert listing.sandboxes[PAUSE] == (PAUSE, "default", SHOP, {})


@pytest.mark.parametrize("answer", [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0b", b"\x08\x01", b"\x0a\x02\x08\x01"])
async def test_an_answer_of_something_else_is_an_error(node: Node, answer: bytes) -> None:
    node.runtime.fault = answer

    with pytest.raises(CriError, match="CRI v1"):
        await node.client.list()


async def test_nobody_at_the_socket_is_an_error(tmp_path: Path) -> None:
    client = CriClient(str(tmp_path / "nobody.sock"), timeout_s=0.5)
    with contextlib.closing(client), pytest.raises(CriError, match=r"unavailable|deadline"):
        await client.list()


def selector(app: str, **labels: str) -> PodSelectors:
    row = PodSelector(app=app, namespace="default", match_labels=labels, declared_by=f"Application default/{app}")
    return PodSelectors(selectors=(row,))


async def test_pods_that_run_already_join_and_leave_as_their_selector_says(node: Node) -> None:
    node.runtime.add_pod(PAUSE, labels={"tier": "web"}, namespace="default")
    node.runtime.add_container(WEB, PAUSE, "web")
    node.make(PAUSE, WEB)
    assert await node.discovery.scan() == []

    node.discovery.select(selector("shop", tier="web"))
    [found] = await node.after(1.0)
    assert isinstance(found, FoundContainer)
    assert (found.app, found.name) == ("shop", "web")
    node.discovery.select(selector("shop", tier="web"))
    assert await node.after(1.0) == []

    node.discovery.select(selector("pay", tier="web"))
    gone, again = await node.after(1.0)
    assert gone == GoneContainer(WEB)
    assert isinstance(again, FoundContainer)
    assert again.app == "pay"

    node.discovery.select(PodSelectors())
    assert await node.after(1.0) == [GoneContainer(WEB)]
    assert await node.after(1.0) == []


async def test_a_pod_with_the_label_keeps_its_application_whatever_selects_it(shop: Node) -> None:
    shop.discovery.select(selector("other"))
    assert await shop.found() == {"web", "sidecar"}

    shop.discovery.select(PodSelectors())

    assert await shop.after(1.0) == []


async def test_selectors_are_read_from_the_bus(node: Node) -> None:
    broker = MemoryBroker()
    bus, operator = MemoryBus(broker), MemoryBus(broker)
    await operator.bucket(POD_SELECTORS).put(SELECTORS_KEY, selector("shop"))
    node.runtime.add_pod(PAUSE, labels={}, namespace="default")
    node.runtime.add_container(WEB, PAUSE, "web")
    node.make(PAUSE, WEB)

    following = asyncio.ensure_future(follow_selectors(bus, SystemClock(), node.discovery.select))
    found: list[Discovered] = []

    async def scan() -> None:
        while not found:
            found.extend(await node.after(1.0))

    try:
        await asyncio.wait_for(scan(), timeout=60)
    finally:
        following.cancel()
        await asyncio.wait({following})
        await bus.close(1)
        await operator.close(1)
    assert [report.app for report in found if isinstance(report, FoundContainer)] == ["shop"]
