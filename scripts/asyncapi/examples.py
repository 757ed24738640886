"""One example of every message, for docs/asyncapi.json: one application, one host, one training job, throughout."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from datetime import date
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, NodeInfo
from schemas.jobs import Configuration, CostKind, JobRecord, JobState, Price, TaskFeatures
from schemas.kubeoperator import (
    DeclaredApplication,
    KubeoperatorStateReply,
    KubeoperatorStateRequest,
    PodSelector,
    PodSelectors,
)
from schemas.leases import Heartbeat, Lease, Members
from schemas.limits import LimitDecisions, LimitReply, LimitsApplied, LimitUpdate
from schemas.message import ColumnType, Message
from schemas.network import (
    DiffReply,
    DiffRequest,
    NetworkStateReply,
    NetworkStateRequest,
    PathState,
    ReconcilerInfo,
    RouteEvent,
    RouteKind,
    RulesReply,
    RulesRequest,
    RuleState,
    TcEvent,
    TcObject,
    TcOperation,
    TcOperationKind,
)
from schemas.oom import MemoryReply, MemoryRequest, OomCause, OomEvent, OomKind
from schemas.predictions import (
    AdviceExplainReply,
    AdviceExplainRequest,
    ConfigurationPrediction,
    Contribution,
    Estimate,
    ModelName,
    Neighbour,
    Objective,
    Prediction,
    PredictReply,
    PredictRequest,
    Proposal,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.queries import (
    AppState,
    ContainerState,
    ExplainReply,
    ExplainRequest,
    Explanation,
    QueryError,
    StateReply,
    StateRequest,
)
from schemas.reasons import Reason, sentence
from schemas.runs import RunEnd, RunProfile, RunSample, WorkerSeries
from schemas.savings import Baseline, Savings, SavingsPart

_NOW: Final = 1_795_284_000_000_000_000
_BORN: Final = _NOW - 3_600_000_000_000
_MIB: Final = 1 << 20
_APP, _NODE, _JOB, _RUN = "shop", "gpu-07", "grid-7db18a33f4b5208e", "image-cnn-20261121-1800"
_WEB, _API = "web-4f0c9a1b2d3e", "api-9b8a7c6d5e4f"
_MAC, _VTEP = "02:00:00:00:00:08", "10.255.0.8"

_SPEC: Final = AppSpec(name=_APP, cpu_limit=2.0, memory_limit=2 << 30, announced_containers=2)
_TASK: Final = TaskFeatures(
    task="image-cnn",
    parameter_count=620_362,
    layers=("Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear"),
    input_elements=3_072,
    output_elements=10,
    optimizer="SGD",
    learning_rate=0.05,
    epochs=10,
    samples_per_epoch=50_000,
    forward_flops=12_300_000.0,
)
_SMALL: Final = Configuration(
    instance_type="n1-standard-8", provider="gcp", workers=3, batch_size=64, vcpu=8, memory_gb=30, network_gbps=16
)
_PRICE: Final = Price(usd_per_hour=0.4370, as_of=date(2026, 11, 21), source="gcp-vertex", snapshot="3b1f0c")
_MODEL: Final = ModelName(
    model="gp", version="gp-03e5acd906a4-s0", data_hash="03e5acd906a4", records=464, tasks=8, trained_ns=_BORN
)
_EXPECTED: Final = ConfigurationPrediction(
    configuration=_SMALL,
    time_s=Estimate(median=412.0, low=318.0, high=540.0),
    cost_usd=Estimate(median=0.150, low=0.116, high=0.197),
    reasons=("3 workers: 0.41 x", "batch size 64: 0.93 x"),
    pareto=True,
)
_ALIKE: Final = Neighbour(task="image-resnet", distance=0.31, records=58, alike=("optimizer SGD", "10 outputs"))
_WRITE: Final = TcOperation(
    operation=TcOperationKind.REPLACE,
    object=TcObject.FILTER,
    device="rep0",
    ifindex=12,
    pref=49_152,
    handle=7,
    mac=_MAC,
    before="10.255.0.6",
    after=_VTEP,
    in_hw=True,
    reason="FRR moved the MAC",
)

_DECIDED: Final = LimitDecisions.build(
    [_WEB],
    {
        "quota_from_us": [40_000],
        "quota_to_us": [62_000],
        "quota_reason": [Reason.DEMAND_ROSE],
        "quota_measured": [61_800.0],
        "quota_threshold": [40_000.0],
        "limit_from_bytes": [300 * _MIB],
        "limit_to_bytes": [0],
        "limit_reason": [Reason.NONE],
        "limit_measured": [0.0],
        "limit_threshold": [0.0],
    },
    app=_APP,
    mode="enforce",
    policy="waterfill",
    epoch=4,
    step=81_233,
    time_ns=_NOW,
    container_count=2,
    cpu_limit_us=200_000,
    cpu_allocated_us=112_000,
    memory_limit_bytes=2 << 30,
    memory_allocated_bytes=812 * _MIB,
    memory_reserved_bytes=128 * _MIB,
    update_seq_first=978,
    update_seq_last=978,
)

_LIMITS: Final[tuple[Message, ...]] = (
    _SPEC,
    Lease(owner="allocator-1 host-3", epoch=4, time_ns=_NOW),
    Members(epoch=4, previous=3, replicas=("host-3-5e0f1a", "host-4-91c2aa"), unable={}, time_ns=_NOW),
    Heartbeat(replica="host-3-5e0f1a", epoch=4, time_ns=_NOW),
    NodeInfo(
        node=_NODE,
        incarnation=_BORN,
        time_ns=_NOW,
        host_cpus=32,
        memory_bytes=128 << 30,
        cgroup_version=2,
        telemetry_source="cgroup-v2",
        docker=True,
        container_count=2,
        version="0.1.0",
        memory_guard="memory.high",
        holder="5vH0cWm2Tn6k3oYbXJ1q8A",
    ),
    CfsBatch.build(
        [_WEB, _API],
        {
            "periods": [1, 1],
            "quota_us": [40_000, 50_000],
            "used_us": [40_000, 8_200],
            "unused_us": [0, 41_800],
            "throttled": [1, 0],
            "throttled_us": [21_500, 0],
            "memory_usage_bytes": [211 * _MIB, 96 * _MIB],
            "memory_reclaimable_bytes": [12 * _MIB, 4 * _MIB],
            "memory_limit_bytes": [300 * _MIB, 150 * _MIB],
            "limit_update_seq": [977, 970],
            "oom_kills": [0, 0],
            "flags": [0, 0],
        },
        app=_APP,
        node=_NODE,
        incarnation=_BORN,
        report_seq=36_012,
        time_ns=_NOW,
        period_us=100_000,
        host_cpus=32,
        reserve_given_bytes=256 * _MIB,
        reserve_used_bytes=128 * _MIB,
        reserve_update_seq=961,
    ),
    _DECIDED,
    LimitUpdate.build(
        [_WEB],
        {"quota_us": [62_000], "limit_bytes": [0]},
        node=_NODE,
        incarnation=_BORN,
        epoch=4,
        seq=978,
        time_ns=_NOW,
        apps=(_APP,),
    ),
    LimitReply.build(
        [_WEB],
        {"quota_us": [62_000], "limit_bytes": [300 * _MIB], "limit_update_seq": [978], "status": [0]},
        node=_NODE,
        incarnation=_BORN,
        report_seq=36_013,
        epoch=4,
        seq=978,
    ),
    LimitsApplied.build(
        [_WEB],
        {"quota_us": [62_000], "limit_bytes": [300 * _MIB], "status": [0]},
        app=_APP,
        node=_NODE,
        incarnation=_BORN,
        report_seq=36_013,
        epoch=4,
        seq=978,
        time_ns=_NOW,
    ),
    ContainerEvent(
        change=ContainerChange.STARTED,
        app=_APP,
        node=_NODE,
        container=_WEB,
        name="web",
        source=ContainerSource.DOCKER,
        time_ns=_NOW,
        incarnation=_BORN,
        quota_us=100_000,
        limit_bytes=512 * _MIB,
    ),
    OomEvent(
        kind=OomKind.GRANT,
        cause=OomCause.THRESHOLD,
        app=_APP,
        node=_NODE,
        container=_WEB,
        incarnation=_BORN,
        time_ns=_NOW,
        usage_bytes=281 * _MIB,
        limit_before_bytes=300 * _MIB,
        limit_after_bytes=364 * _MIB,
        reserve_bytes=64 * _MIB,
        latency_us=610,
        reason="usage 281.0 MiB came within 19.0 MiB of the limit",
    ),
    MemoryRequest(
        app=_APP,
        node=_NODE,
        incarnation=_BORN,
        container=_WEB,
        wanted_bytes=128 * _MIB,
        usage_bytes=281 * _MIB,
        limit_bytes=364 * _MIB,
        tasks_blocked=False,
        time_ns=_NOW,
    ),
    MemoryReply(app=_APP, epoch=4, granted_bytes=128 * _MIB, reclaiming_bytes=0),
    Savings(
        app=_APP,
        day=date(2026, 11, 21),
        record="turnbuckle-1-4f2a9c-1",
        time_ns=_NOW,
        parts=(
            SavingsPart(
                mode="observe",
                cpu_baseline=Baseline.CONFIGURED,
                memory_baseline=Baseline.APPLICATION_LIMIT,
                covered_s=3_594.0,
                cpu_baseline_core_s=7_188.0,
                cpu_held_core_s=2_516.0,
                memory_baseline_gib_s=7_188.0,
                memory_held_gib_s=3_953.0,
                periods=71_880,
                throttled_periods=0,
                throttled_s=0.0,
                excess_periods=431,
                excess_core_s=9.7,
            ),
        ),
        core_hour_price=0.03,
        gib_hour_price=0.004,
        currency="EUR",
    ),
)

_QUERIES: Final[tuple[Message, ...]] = (
    PodSelectors(selectors=(PodSelector(app="shop.web", namespace="shop", declared_by="Application shop/web"),)),
    KubeoperatorStateRequest(),
    KubeoperatorStateReply(applications=(DeclaredApplication(declared_by="Application shop/web", app="shop.web"),)),
    StateRequest(app=_APP),
    StateReply(
        epoch=4,
        steps=81_233,
        superseded=False,
        replica="allocator-1",
        apps=(
            AppState(
                spec=_SPEC,
                cpu_committed_us=112_000,
                cpu_free_us=88_000,
                memory_committed_bytes=812 * _MIB,
                memory_free_bytes=1_236 * _MIB,
                memory_reserved_bytes=128 * _MIB,
                epoch=4,
                owner="allocator-1",
                containers=(
                    ContainerState(
                        container=_WEB,
                        node=_NODE,
                        quota_us=62_000,
                        assigned_us=62_000,
                        committed_us=62_000,
                        used_us=58_100,
                        throttled=False,
                        memory_usage_bytes=281 * _MIB,
                        memory_limit_bytes=364 * _MIB,
                        memory_committed_bytes=364 * _MIB,
                        admitted=True,
                        report_age_s=0.04,
                    ),
                ),
            ),
        ),
    ),
    ExplainRequest(app=_APP, container=_WEB),
    ExplainReply(
        app=_APP,
        summary="shop holds 1.12 of 2 cores and 812 MiB of 2 GiB for 2 containers",
        decisions=(
            Explanation(
                time_ns=_NOW,
                container=_WEB,
                resource="cpu",
                before=40_000,
                after=62_000,
                reason="DEMAND_ROSE",
                sentence=sentence("cpu", Reason.DEMAND_ROSE, 61_800, 40_000),
            ),
        ),
    ),
    QueryError(code=404, message="no application 'shoq'; known: shop"),
)

_NETWORK: Final[tuple[Message, ...]] = (
    RouteEvent(
        kind=RouteKind.OVERRIDE,
        node=_NODE,
        incarnation=_BORN,
        seq=41,
        source="fast_path",
        time_ns=_NOW,
        destination=_VTEP,
        interface="eth1",
        before=("10.1.1.1@eth1", "10.1.2.1@eth2"),
        after=("10.1.2.1@eth2",),
        cause="carrier",
        peer="10.255.1.1",
        latency_us=1_900,
        reason="eth1 has no carrier",
    ),
    TcEvent(
        node=_NODE,
        incarnation=_BORN,
        pass_id=12,
        first_pass_id=12,
        time_ns=_NOW,
        causes={"fdb": 1},
        desired=6,
        digest_before="9d2c41",
        digest_after="51aa07",
        installed=6,
        in_hw=6,
        lag_us=7_400,
        duration_us=2_100,
        verified=True,
        operations=(_WRITE,),
    ),
    RulesRequest(device="rep0"),
    RulesReply(
        node=_NODE,
        total=1,
        rules=(RuleState(device="rep0", mac=_MAC, vtep=_VTEP, vni=100, pref=49_152, handle=7, index=3, in_hw=True),),
    ),
    ReconcilerInfo(node=_NODE, incarnation=_BORN, time_ns=_NOW, version="0.1.0", holder="0yQ2sZr7Jm9fHc4VtWk1Lw"),
    DiffRequest(),
    DiffReply(node=_NODE, desired=6, installed=6, unmanaged=0, operations=(_WRITE,), total=1),
    NetworkStateRequest(),
    NetworkStateReply(
        node=_NODE,
        incarnation=_BORN,
        offload="prefer",
        full_reconciles=12,
        writes=9,
        last_reconcile_age_s=0.4,
        ports=("rep0",),
        encapsulation_device="vxlan100",
        vteps=(_VTEP,),
        macs=6,
        installed=6,
        in_hw=6,
        not_in_hw=0,
        unmanaged=0,
        paths=(
            PathState(
                destination=_VTEP,
                kernel=("10.1.1.1@eth1", "10.1.2.1@eth2"),
                frr=("10.1.1.1@eth1", "10.1.2.1@eth2"),
                bfd_up=("eth1", "eth2"),
                agree=True,
            ),
        ),
        problems=(),
    ),
)


def _series(worker: str, cpu_cores: float) -> WorkerSeries:
    columns = {"cpu_cores": [cpu_cores, cpu_cores + 0.1], "memory_bytes": [1.2e9, 1.3e9]}
    columns |= {f"network_{way}_bytes_per_s": [4.1e6, 4.2e6] for way in ("in", "out")}
    return WorkerSeries.model_validate({"worker": worker, **columns})


_PROFILE: Final = RunProfile(
    run=_RUN,
    task=_TASK,
    configuration=Configuration(instance_type="local", provider="local", workers=2, batch_size=64, vcpu=1),
    command=("python", "train.py", "--batch-size", "64"),
    started_ns=_BORN,
    duration_s=2.0,
    end=RunEnd.TIMED_OUT,
    workers=(_series("master", 0.9), _series("worker-1", 0.8)),
    load_average=0.4,
)
_JOBS: Final[tuple[Message, ...]] = (
    RunSample(
        run=_RUN,
        worker="worker-1",
        elapsed_s=17.0,
        cpu_cores=0.83,
        memory_bytes=1_213_000_000,
        network_in_bytes_per_s=4.1e6,
        network_out_bytes_per_s=4.2e6,
    ),
    _PROFILE,
    JobRecord(
        job=_JOB,
        dataset="vertex",
        task=_TASK,
        configuration=_SMALL,
        state=JobState.SUCCEEDED,
        duration_s=431.0,
        cost_usd=0.157,
        cost_kind=CostKind.DERIVED,
        price=_PRICE,
        started_ns=_BORN,
        local_run=_RUN,
    ),
    PredictRequest(task=_TASK, configurations=(_SMALL,), run=_RUN, job=_JOB),
    PredictReply(model=_MODEL, prices_as_of=_PRICE.as_of, level=0.9, predictions=(_EXPECTED,)),
    RankRequest(task=_TASK, workers=(1, 2, 4, 8), batch_sizes=(64, 128), run=_RUN, budget_usd=1.0, top=3),
    RankReply(
        model=_MODEL,
        prices_as_of=_PRICE.as_of,
        level=0.9,
        objective=Objective.COST,
        considered=96,
        ranked=(_EXPECTED,),
        pareto=(_EXPECTED,),
        neighbours=(_ALIKE,),
        rejected={"over budget": 11, "not known": 4},
        proposals=(
            Proposal(
                configuration=_SMALL,
                time_s=_EXPECTED.time_s,
                cost_usd=_EXPECTED.cost_usd,
                reason="its interval reaches below the first choice's cost",
            ),
        ),
    ),
    AdviceExplainRequest(task=_TASK, configurations=(_SMALL,), run=_RUN),
    AdviceExplainReply(
        model=_MODEL,
        prediction=_EXPECTED,
        neighbours=(_ALIKE,),
        summary="412 s: 3 workers make it faster than most",
        contributions=(Contribution(feature="workers", value="3", factor=0.41),),
    ),
    TrainRequest(),
    TrainReply(accepted=True, model=_MODEL),
    Prediction(
        job=_JOB,
        task=_TASK,
        model=_MODEL,
        prices_as_of=_PRICE.as_of,
        level=0.9,
        predictions=(_EXPECTED,),
        considered=96,
        time_ns=_NOW,
    ),
)


def _in_other_modules() -> Iterator[Message]:
    """Those of every module ``*_examples`` in this folder."""
    for module in sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.endswith("_examples"):
            yield from import_module(f"{__package__}.{module}").EXAMPLES


EXAMPLES: Final = (*_LIMITS, *_QUERIES, *_NETWORK, *_JOBS, *_in_other_modules())


def examples() -> dict[type[Message], dict[str, Any]]:
    """By message: its fields as they would stand in JSON, columns as text such as ``int64 [62000]``."""
    return {type(message): _fields(message) for message in EXAMPLES}


def _fields(message: Message) -> dict[str, Any]:
    kinds = {
        name: np.dtype(found.code)
        for name, field in type(message).model_fields.items()
        for found in field.metadata
        if isinstance(found, ColumnType)
    }
    return {name: _shown(value, kinds.get(name)) for name, value in message}


def _shown(value: Any, column: np.dtype[Any] | None = None) -> Any:
    if isinstance(value, bytes):
        return f"{column} {np.frombuffer(value, dtype=column).tolist()}"
    if isinstance(value, Message):
        return _fields(value)
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, date) else value
