"""What Kubernetes declares: which pods join which application, and queries to the kubeoperator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from schemas.message import Message

SELECTORS_KEY: Final = "kubernetes"
"""Of the one entry of the bucket `pod_selectors`: a node reads it whole, with one request."""


class PodSelector(Message):
    """Pods of one namespace that join an application without a label of their own."""

    type_name: ClassVar[str] = "turnbuckle.kubernetes.v1.PodSelector"

    app: str
    namespace: str
    match_labels: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """All of them must be on the pod; empty: every pod of the namespace."""
    declared_by: str
    """The object that declares the application: ``Application shop/web`` or ``Namespace shop``."""

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod is selected."""
        return namespace == self.namespace and self.match_labels.items() <= labels.items()


class PodSelectors(Message):
    """Every selector of the cluster; an application that is listed was declared in Kubernetes."""

    type_name: ClassVar[str] = "turnbuckle.kubernetes.v1.PodSelectors"

    selectors: tuple[PodSelector, ...] = ()

    def application_of(self, namespace: str, labels: Mapping[str, str]) -> str | None:
        """The application that a pod joins: of several, that with the most labels, then the first by name."""
        found = [selector for selector in self.selectors if selector.matches(namespace, labels)]
        return min(found, key=lambda selector: (-len(selector.match_labels), selector.app)).app if found else None


class DeclaredApplication(Message):
    """One object that declares an application, as of its last reconcile."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.DeclaredApplication"
    declared_by: str
    app: str
    refused: str = ""
    """Why it is not announced; empty: it is."""


class KubeoperatorStateRequest(Message):
    """Ask for the applications that Kubernetes declares."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.KubeoperatorStateRequest"


class KubeoperatorStateReply(Message):
    """Answer to KubeoperatorStateRequest."""

    type_name: ClassVar[str] = "turnbuckle.query.v1.KubeoperatorStateReply"
    applications: tuple[DeclaredApplication, ...]
    """Sorted by object."""
