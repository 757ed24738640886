"""Time and cost of configurations."""

from __future__ import annotations

from typing import Final

from schemas.predictions import (
    AdviceExplainReply,
    AdviceExplainRequest,
    Prediction,
    PredictReply,
    PredictRequest,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.service import Channel, Delivery, Deployment, Endpoint, Service
from schemas.streams import JOB_STREAM, MODELS, RUN_STREAM
from schemas.subjects import PREDICTIONS
from schemas.telemetry_specs import MetricSpec, SpanSpec

ADVISOR_PREDICT: Final = Endpoint(
    "advisor", "predict", PredictRequest, PredictReply, "time and cost of each configuration, with intervals"
)
ADVISOR_RANK: Final = Endpoint(
    "advisor", "rank", RankRequest, RankReply, "the best configurations, the Pareto front, and runs worth making next"
)
ADVISOR_EXPLAIN: Final = Endpoint(
    "advisor",
    "explain",
    AdviceExplainRequest,
    AdviceExplainReply,
    "why one configuration is predicted as it is",
    read_only=True,
)
ADVISOR_TRAIN: Final = Endpoint("advisor", "train", TrainRequest, TrainReply, "train anew on every record known")

SERVICE: Final = Service(
    name="advisor",
    channels=(
        Channel(
            PREDICTIONS,
            Prediction,
            Delivery.JETSTREAM,
            ("advisor",),
            ("cli",),
            "a prediction, with its model's version and the day of its prices",
        ),
    ),
    endpoints=(ADVISOR_PREDICT, ADVISOR_RANK, ADVISOR_EXPLAIN, ADVISOR_TRAIN),
    replays=(RUN_STREAM, JOB_STREAM),
    object_stores=(MODELS,),
    metrics=(
        MetricSpec("turnbuckle_advisor_records", "gauge", "job records in the training set"),
        MetricSpec("turnbuckle_advisor_local_runs", "gauge", "local run profiles in the training set"),
        MetricSpec("turnbuckle_advisor_rejected_records_total", "counter", "records with invalid values"),
        MetricSpec("turnbuckle_advisor_answered_queries_total", "counter", "queries answered"),
        MetricSpec("turnbuckle_advisor_rejected_queries_total", "counter", "queries answered with an error"),
        MetricSpec("turnbuckle_advisor_trainings_total", "counter", "models trained by this replica"),
        MetricSpec("turnbuckle_advisor_failed_trainings_total", "counter", "trainings that failed"),
        MetricSpec("turnbuckle_advisor_unusable_models_total", "counter", "stored models that could not be loaded"),
    ),
    spans=(
        SpanSpec("advisor.predict", "configurations predicted", ("turnbuckle.model", "turnbuckle.configurations")),
        SpanSpec("advisor.rank", "configurations ranked", ("turnbuckle.model", "turnbuckle.configurations")),
        SpanSpec("advisor.explain", "one prediction explained", ("turnbuckle.model", "turnbuckle.configurations")),
        SpanSpec("advisor.train", "a model trained", ("turnbuckle.model", "turnbuckle.records")),
    ),
    deployment=Deployment(memory="3g", profile="advisor", why_profile="an image of 1 GB, with PyTorch"),
)
