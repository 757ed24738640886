"""Training jobs over unequal devices."""

from __future__ import annotations

from typing import Final

from schemas.plans import Plan, PlanReply, PlanRequest
from schemas.service import Channel, Delivery, Deployment, Endpoint, Service
from schemas.streams import LAYER_STREAM, TRAINING_STREAM
from schemas.subjects import PLANS
from schemas.telemetry_specs import MetricSpec, SpanSpec

PLANNER_PLAN: Final = Endpoint(
    "planner", "plan", PlanRequest, PlanReply, "divide a training job over unequal devices, or say why that cannot be"
)

SERVICE: Final = Service(
    name="planner",
    channels=(
        Channel(
            PLANS,
            Plan,
            Delivery.JETSTREAM,
            ("planner",),
            ("cli",),
            "how a training job is divided over unequal devices, what a step takes, and why",
        ),
    ),
    endpoints=(PLANNER_PLAN,),
    replays=(LAYER_STREAM,),
    looks_up=(TRAINING_STREAM,),
    dashboard="Planner: requests, layer profiles",
    metrics=(
        MetricSpec("turnbuckle_planner_layer_profiles", "gauge", "layer profiles that are known"),
        MetricSpec("turnbuckle_planner_measured_runs", "gauge", "measured runs that are known, which correct plans"),
        MetricSpec("turnbuckle_planner_requests_total", "counter", "requests to plan", ("outcome",)),
        MetricSpec("turnbuckle_planner_waiting_requests", "gauge", "requests that wait for others to be planned"),
        MetricSpec("turnbuckle_planner_planning_seconds", "histogram", "how long planning took, without waiting"),
    ),
    spans=(
        SpanSpec(
            "planner.plan",
            "a training job divided over devices, or why that cannot be",
            ("turnbuckle.job", "turnbuckle.devices", "turnbuckle.batch"),
        ),
    ),
    deployment=Deployment(
        memory="1g",
        profile="jobs",
        why_profile="it answers where a training job gets devices of different speed or memory",
    ),
)
