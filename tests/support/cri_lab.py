"""The Container Runtime Interface in protobuf's own classes: a runtime at a real socket, and a client of a real one.

The definition is api.proto of k8s.io/cri-api, as far as tests use it; the agent reads the same fields by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "/runtime.v1.RuntimeService"
CREATED, RUNNING, EXITED = 0, 1, 2
HOST_NETWORK: Final = 2
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "enum": _FIELD.TYPE_INT32,
}
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "PodSandboxMetadata": {
        "name": (1, "string"),
        "uid": (2, "string"),
        "namespace": (3, "string"),
        "attempt": (4, "uint32"),
    },
    "PodSandbox": {
        "id": (1, "string"),
        "metadata": (2, "PodSandboxMetadata"),
        "state": (3, "enum"),
        "created_at": (4, "int64"),
        "labels": (5, "map"),
        "annotations": (6, "map"),
    },
    "ListPodSandboxRequest": {},
    "ListPodSandboxResponse": {"items": (1, "*PodSandbox")},
    "ImageSpec": {"image": (1, "string")},
    "ContainerMetadata": {"name": (1, "string"), "attempt": (2, "uint32")},
    "Container": {
        "id": (1, "string"),
        "pod_sandbox_id": (2, "string"),
        "metadata": (3, "ContainerMetadata"),
        "image": (4, "ImageSpec"),
        "image_ref": (5, "string"),
        "state": (6, "enum"),
        "created_at": (7, "int64"),
        "labels": (8, "map"),
        "annotations": (9, "map"),
    },
    "ListContainersRequest": {},
    "ListContainersResponse": {"containers": (1, "*Container")},
    "NamespaceOption": {"network": (1, "enum"), "pid": (2, "enum"), "ipc": (3, "enum")},
    "LinuxSandboxSecurityContext": {"namespace_options": (1, "NamespaceOption")},
    "LinuxPodSandboxConfig": {"cgroup_parent": (1, "string"), "security_context": (2, "LinuxSandboxSecurityContext")},
    "PodSandboxConfig": {
        "metadata": (1, "PodSandboxMetadata"),
        "labels": (6, "map"),
        "annotations": (7, "map"),
        "linux": (8, "LinuxPodSandboxConfig"),
    },
    "RunPodSandboxRequest": {"config": (1, "PodSandboxConfig")},
    "RunPodSandboxResponse": {"pod_sandbox_id": (1, "string")},
    "ContainerConfig": {"metadata": (1, "ContainerMetadata"), "image": (2, "ImageSpec")},
    "CreateContainerRequest": {
        "pod_sandbox_id": (1, "string"),
        "config": (2, "ContainerConfig"),
        "sandbox_config": (3, "PodSandboxConfig"),
    },
    "CreateContainerResponse": {"container_id": (1, "string")},
    "StartContainerRequest": {"container_id": (1, "string")},
    "StartContainerResponse": {},
    "StopPodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "StopPodSandboxResponse": {},
    "RemovePodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "RemovePodSandboxResponse": {},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="cri_lab.proto", package="cri_lab", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            made = message.field.add(name=field, number=number, label=_FIELD.LABEL_OPTIONAL)
            if kind in _SCALARS:
                made.type = _SCALARS[kind]
                continue
            made.type = _FIELD.TYPE_MESSAGE
            if kind == "map":
                entry = f"{field.capitalize()}Entry"
                nested = message.nested_type.add(name=entry)
                nested.options.map_entry = True
                for key, place in (("key", 1), ("value", 2)):
                    nested.field.add(name=key, number=place, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
                made.type_name = f".cri_lab.{name}.{entry}"
            else:
                made.type_name = f".cri_lab.{kind.removeprefix('*')}"
            if kind == "map" or kind.startswith("*"):
                made.label = _FIELD.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cri_lab.{name}")) for name in _MESSAGES}


CRI: Final = _classes()
"""Message classes by name."""


class FakeRuntime(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Answers both questions from what it is given; counts them."""

    def __init__(self) -> None:
        self.sandboxes: list[Any] = []
        self.containers: list[Any] = []
        self.questions = 0
        self.fault: bytes | grpc.StatusCode | None = None
        """Answer this instead."""

    def add_pod(self, sandbox_id: str, *, namespace: str = "default", **metadata: Any) -> None:
        """A pod; `labels` and `annotations`."""
        described = CRI["PodSandboxMetadata"](name="web-0", uid="u", namespace=namespace, attempt=3)
        self.sandboxes.append(CRI["PodSandbox"](id=sandbox_id, metadata=described, created_at=1 << 60, **metadata))

    def add_container(self, container_id: str, sandbox_id: str, name: str, state: int = RUNNING) -> None:
        """A container of a pod."""
        labels = {"io.kubernetes.container.name": name}
        self.containers.append(
            CRI["Container"](
                id=container_id, pod_sandbox_id=sandbox_id, metadata={"name": name}, state=state, labels=labels
            )
        )

    def service(self, details: Any) -> Any:
        """A handler for a method's name."""
        answers = {
            f"{SERVICE}/ListPodSandbox": lambda: CRI["ListPodSandboxResponse"](items=self.sandboxes),
            f"{SERVICE}/ListContainers": lambda: CRI["ListContainersResponse"](containers=self.containers),
        }
        answer = answers.get(details.method)
        return grpc.unary_unary_rpc_method_handler(lambda _, context: self._answer(answer, context)) if answer else None

    def _answer(self, answer: Any, context: Any) -> bytes:
        self.questions += 1
        if isinstance(self.fault, bytes):
            return self.fault
        if self.fault is not None:
            context.abort(self.fault, "as told")
        made: bytes = answer().SerializeToString()
        return made


@contextmanager
def serving(runtime: FakeRuntime, path: Path) -> Iterator[None]:
    """At a unix socket."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[runtime])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


class RuntimeClient:
    """What a kubelet does with a real runtime."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])
        self._pods: list[str] = []

    def ask(self, method: str, request: Any) -> Any:
        """One call."""
        call = self._channel.unary_unary(
            f"{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=CRI[f"{method}Response"].FromString,
        )
        return call(request, timeout=60)

    def run_pod(self, config: Any) -> str:
        """A sandbox; returns its id."""
        sandbox_id: str = self.ask("RunPodSandbox", CRI["RunPodSandboxRequest"](config=config)).pod_sandbox_id
        self._pods.append(sandbox_id)
        return sandbox_id

    def run_container(self, sandbox_id: str, config: Any, name: str, image: str) -> str:
        """A container in it; returns its id."""
        wanted = CRI["ContainerConfig"](metadata={"name": name}, image={"image": image})
        request = CRI["CreateContainerRequest"](pod_sandbox_id=sandbox_id, config=wanted, sandbox_config=config)
        container_id: str = self.ask("CreateContainer", request).container_id
        self.ask("StartContainer", CRI["StartContainerRequest"](container_id=container_id))
        return container_id

    def remove_pod(self, sandbox_id: str) -> None:
        """Stop and remove it with all that is in it."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            self.ask(method, CRI[f"{method}Request"](pod_sandbox_id=sandbox_id))
        self._pods.remove(sandbox_id)

    def close(self) -> None:
        """Remove what is left."""
        for sandbox_id in list(self._pods):
            self.remove_pod(sandbox_id)
        self._channel.close()
