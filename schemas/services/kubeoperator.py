"""Announces and withdraws the applications that a Kubernetes cluster declares."""

from __future__ import annotations

from typing import Final

from schemas.kubeoperator import KubeoperatorStateReply, KubeoperatorStateRequest
from schemas.service import BucketUse, Endpoint, Service
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.streams import APPS, POD_SELECTORS
from schemas.telemetry_specs import MetricSpec

KUBEOPERATOR_STATE: Final = Endpoint(
    "kubeoperator",
    "state",
    KubeoperatorStateRequest,
    KubeoperatorStateReply,
    "applications that Kubernetes declares",
    read_only=True,
)

SERVICE: Final = Service(
    name="kubeoperator",
    endpoints=(KUBEOPERATOR_STATE,),
    asks=(ALLOCATOR_STATE,),
    buckets=(BucketUse(APPS, writes=True, reads=True), BucketUse(POD_SELECTORS, writes=True, reads=True)),
    dashboard="Kubernetes operator",
    metrics=(
        MetricSpec("turnbuckle_kubeoperator_reconciles_total", "counter", "reconciles of objects since the start"),
        MetricSpec("turnbuckle_kubeoperator_announcements_total", "counter", "applications announced or withdrawn"),
        MetricSpec("turnbuckle_kubeoperator_applications", "gauge", "objects that declare an application"),
        MetricSpec("turnbuckle_kubeoperator_refused_applications", "gauge", "objects whose declaration was refused"),
    ),
)
