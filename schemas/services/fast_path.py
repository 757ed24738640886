"""Route overrides ahead of FRR, on one host."""

from __future__ import annotations

from typing import Final

from schemas.service import Service
from schemas.telemetry_specs import MetricSpec

SERVICE: Final = Service(
    name="fast_path",
    per_host=True,
    metrics=(
        MetricSpec("turnbuckle_fast_path_overrides_total", "counter", "route overrides written ahead of FRR"),
        MetricSpec(
            "turnbuckle_fast_path_removed_overrides_total",
            "counter",
            "route overrides removed, FRR's route in force again",
        ),
        MetricSpec("turnbuckle_fast_path_faults_total", "counter", "uplink failures that were handled"),
        MetricSpec("turnbuckle_fast_path_refused_writes_total", "counter", "overrides that the kernel refused"),
        MetricSpec("turnbuckle_fast_path_loop_stalls_total", "counter", "stalls of the data-plane process's loop"),
        MetricSpec("turnbuckle_fast_path_active_overrides", "gauge", "destinations with an override"),
        MetricSpec("turnbuckle_fast_path_routes", "gauge", "destinations that are protected"),
        MetricSpec("turnbuckle_fast_path_input_lost_info", "gauge", "1 while an input is lost, else 0"),
        MetricSpec(
            "turnbuckle_fast_path_admin_down_sessions", "gauge", "uplinks whose BFD session is administratively down"
        ),
        MetricSpec("turnbuckle_fast_path_flap_damped_info", "gauge", "1 while flap damping suspends overrides, else 0"),
        MetricSpec("turnbuckle_fast_path_peer_messages_total", "counter", "datagrams between hosts", ("kind",)),
    ),
)
