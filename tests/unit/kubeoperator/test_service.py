"""The kubeoperator with kopf for real, an API server in process and a bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.apps import AppSpec
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.kubeoperator import (
    SELECTORS_KEY,
    DeclaredApplication,
    KubeoperatorStateReply,
    KubeoperatorStateRequest,
    PodSelector,
    PodSelectors,
)
from schemas.message import Message
from schemas.queries import AppState, ContainerState, StateReply
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.services.kubeoperator import KUBEOPERATOR_STATE
from schemas.streams import APPS, POD_SELECTORS
from schemas.subjects import CONTAINER_EVENTS
from services._runtime.bus.api import Delivery
from services.kubeoperator.service import Kubeoperator
from services.kubeoperator.settings import KubeoperatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.kubernetes_api import KubernetesApi, Manifest
from tests.support.service_in_process import run_in_process

pytestmark = pytest.mark.timeout(240)
DEADLINE_S = 90.0
KEY = ("applications", "shop", "web")


def application(spec: Manifest, name: str = "web", namespace: str = "shop") -> Manifest:
    return {
        "apiVersion": "turnbuckle.dev/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def namespace(name: str, **annotations: str) -> Manifest:
    said = {f"turnbuckle.{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": said}}


class Cluster:
    """An API server, a bus, and an operator between them."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.broker = MemoryBroker()
        self.bus, self.ours = MemoryBus(self.broker), MemoryBus(self.broker)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Kubeoperator]:
        settings = KubeoperatorSettings.load({}, status_interval_s=0.2)
        async with run_in_process(Kubeoperator, settings, self.bus) as service:
            yield service

    async def announced(self) -> dict[str, AppSpec]:
        entries = await self.ours.bucket(APPS).entries()
        return {name: entry.message for name, entry in entries.items() if isinstance(entry.message, AppSpec)}

    async def selectors(self) -> tuple[PodSelector, ...]:
        entry = await self.ours.bucket(POD_SELECTORS).get(SELECTORS_KEY)
        return entry.message.selectors if entry is not None and isinstance(entry.message, PodSelectors) else ()

    async def becomes(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Poll the condition until the deadline."""
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():  # noqa: ASYNC110 - the other side is a thread's loop and a server
                await asyncio.sleep(0.01)

    def status(self, key: tuple[str, str, str] = KEY) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects.get(key, {}).get("status", {})
        return status


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    api = KubernetesApi()
    await api.start()
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
    cluster = Cluster(api)
    await api.apply("namespaces", namespace("shop"))
    yield cluster
    await cluster.ours.close(1)
    await api.stop()


def admitted(app: str, owner: str = "a1") -> AppState:
    """One container that uses a core and a half, and one that found no room."""
    fields: dict[str, Any] = {
        "node": "n1",
        "quota_us": 200_000,
        "assigned_us": 200_000,
        "committed_us": 200_000,
        "throttled": False,
        "memory_limit_bytes": 1 << 30,
        "memory_committed_bytes": 1 << 30,
        "report_age_s": 0.0,
    }
    return AppState(
        spec=AppSpec(name=app, cpu_limit=8, memory_limit=16 << 30),
        cpu_committed_us=200_000,
        cpu_free_us=600_000,
        memory_committed_bytes=1 << 30,
        memory_free_bytes=15 << 30,
        owner=owner,
        containers=(
            ContainerState(container="web-1", used_us=150_000, memory_usage_bytes=96 << 20, admitted=True, **fields),
            ContainerState(container="web-2", used_us=0, memory_usage_bytes=0, admitted=False, **fields),
        ),
    )


async def test_an_application_is_announced_shown_changed_and_withdrawn(cluster: Cluster) -> None:
    async def allocator(_: Delivery) -> Message:
        return StateReply(epoch=1, steps=1, superseded=False, replica="a1", apps=(admitted("shop.web"),))

    await cluster.ours.serve(ALLOCATOR_STATE.template.subject("tb"), allocator)
    spec = {"cpu": "8", "memory": "16Gi", "selector": {"matchLabels": {"tier": "web"}}}
    await cluster.api.apply("applications", application(spec))
    async with cluster.running() as service:

        async def enforcing() -> bool:
            return cluster.status().get("phase") == "Enforcing"

        await cluster.becomes(enforcing)
        assert service.not_ready() is None
        announced = (await cluster.announced())["shop.web"]
        assert announced == AppSpec(name="shop.web", cpu_limit=8, memory_limit=16 << 30)
        [selector] = await cluster.selectors()
        assert selector.matches("shop", {"tier": "web", "x": "y"})
        status = cluster.status()
        assert status["limits"] == {"cpu": "8", "memory": "16Gi"}
        assert status["usage"] == {"cpu": "1500m", "memory": "96Mi"}
        assert (status["containers"], status["refusedContainers"]) == (1, 1)
        conditions = {each["type"]: each["status"] for each in status["conditions"]}
        assert conditions == {"Accepted": "True", "Owned": "True"}

        event = ContainerEvent(
            change=ContainerChange.REFUSED,
            app="shop.web",
            node="n1",
            container="web-2",
            name="web",
            source=ContainerSource.KUBERNETES,
            time_ns=1_700_000_000_000_000_000,
            incarnation=1,
            reason="no room",
        )
        subject = CONTAINER_EVENTS.subject("tb", app="shop.web", node="n1")
        cluster.ours.publish_event(subject, event, message_id="1")

        async def event_shown() -> bool:
            return (cluster.status().get("lastEvent") or {}).get("message") == "web-2 on n1: no room"

        await cluster.becomes(event_shown)
        assert cluster.status()["lastEvent"]["type"] == "ContainerRefused"

        await cluster.api.apply("applications", application(spec | {"cpu": "500m", "mode": "observe"}))

        async def observing() -> bool:
            return cluster.status().get("phase") == "Observing"

        await cluster.becomes(observing)
        assert (await cluster.announced())["shop.web"].cpu_limit == 0.5
        assert cluster.status()["observedGeneration"] == 2

        await cluster.api.delete("applications", "shop", "web")

        async def gone() -> bool:
            return KEY not in cluster.api.objects

        await cluster.becomes(gone)
        assert await cluster.announced() == {}
        assert await cluster.selectors() == ()


async def test_what_cannot_be_announced_is_refused_with_a_condition_and_an_event(cluster: Cluster) -> None:
    await cluster.ours.bucket(APPS).put("shop.taken", AppSpec(name="shop.taken", cpu_limit=1, memory_limit=64 << 20))
    await cluster.api.apply("applications", application({"cpu": "8 cores", "memory": "16Gi"}))
    await cluster.api.apply("applications", application({"cpu": "1", "memory": "1Gi"}, name="taken"))
    async with cluster.running():

        async def refused() -> bool:
            names = ("web", "taken")
            return all(cluster.status(("applications", "shop", name)).get("phase") == "Refused" for name in names)

        await cluster.becomes(refused)
        accepted = cluster.status()["conditions"][0]
        assert (accepted["type"], accepted["status"], accepted["reason"]) == ("Accepted", "False", "InvalidQuantity")
        assert "'8 cores' is no quantity" in accepted["message"]
        other = cluster.status(("applications", "shop", "taken"))["conditions"][0]
        assert other["reason"] == "NameTaken"
        assert set(await cluster.announced()) == {"shop.taken"}

        async def told() -> bool:
            return bool(cluster.api.events("InvalidQuantity"))

        await cluster.becomes(told)
        [event] = cluster.api.events("InvalidQuantity")
        assert event["type"] == "Warning"
        assert event["involvedObject"]["name"] == "web"
        reply = await cluster.ours.request(
            KUBEOPERATOR_STATE.template.subject("tb"), KubeoperatorStateRequest(), timeout_s=60
        )
        assert isinstance(reply, KubeoperatorStateReply)
        assert [each.declared_by for each in reply.applications] == ["Application shop/taken", "Application shop/web"]
        assert isinstance(reply.applications[0], DeclaredApplication)
        assert all(each.refused for each in reply.applications)

        # What is mended is announced.
        await cluster.api.apply("applications", application({"cpu": "8", "memory": "16Gi"}))

        async def mended() -> bool:
            return "shop.web" in await cluster.announced()

        await cluster.becomes(mended)
        await cluster.api.delete("applications", "shop", "taken")

        async def gone() -> bool:
            return ("applications", "shop", "taken") not in cluster.api.objects

        await cluster.becomes(gone)
        assert "shop.taken" in await cluster.announced(), "it was not announced by the operator"


async def test_annotations_of_a_namespace_limit_the_sum_of_its_pods(cluster: Cluster) -> None:
    await cluster.api.apply("namespaces", namespace("team", cpu_limit="8", memory_limit="16Gi"))
    async with cluster.running():

        async def announced() -> bool:
            return "team" in await cluster.announced()

        await cluster.becomes(announced)
        assert (await cluster.announced())["team"] == AppSpec(name="team", cpu_limit=8, memory_limit=16 << 30)
        [selector] = await cluster.selectors()
        assert (selector.namespace, dict(selector.match_labels)) == ("team", {})

        await cluster.ours.bucket(APPS).put("team", AppSpec(name="team", cpu_limit=1, memory_limit=64 << 20))

        async def restored() -> bool:
            return (await cluster.announced())["team"].cpu_limit == 8

        await cluster.becomes(restored)

        await cluster.api.apply("namespaces", namespace("other", cpu_limit="much", memory_limit="16Gi"))

        async def told() -> bool:
            return bool(cluster.api.events("InvalidQuantity"))

        await cluster.becomes(told)
        key = ("namespaces", None, "team")
        del cluster.api.objects[key]["metadata"]["annotations"]["turnbuckle.cpu-limit"]
        del cluster.api.objects[key]["metadata"]["annotations"]["turnbuckle.memory-limit"]
        await cluster.api.apply("namespaces", {"metadata": {"name": "team", "labels": {"changed": "yes"}}})

        async def withdrawn() -> bool:
            return await cluster.announced() == {} and await cluster.selectors() == ()

        await cluster.becomes(withdrawn)
        assert not cluster.api.objects[key]["metadata"].get("finalizers"), "its deletion must not wait for us"


async def test_what_was_deleted_while_no_operator_ran_is_withdrawn_by_the_next(cluster: Cluster) -> None:
    await cluster.api.apply("namespaces", namespace("team", cpu_limit="8", memory_limit="16Gi"))
    await cluster.api.apply("applications", application({"cpu": "1", "memory": "1Gi"}))

    async def both() -> bool:
        return set(await cluster.announced()) == {"team", "shop.web"} and bool(cluster.status())

    async with cluster.running():
        await cluster.becomes(both)
    await cluster.ours.bucket(APPS).put("byhand", AppSpec(name="byhand", cpu_limit=1, memory_limit=64 << 20))
    await cluster.api.delete("namespaces", None, "team")
    await cluster.api.delete("applications", "shop", "web")
    assert KEY in cluster.api.objects, "the finalizer keeps it"

    async with cluster.running():

        async def only_by_hand() -> bool:
            return set(await cluster.announced()) == {"byhand"} and KEY not in cluster.api.objects

        await cluster.becomes(only_by_hand)
