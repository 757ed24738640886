"""Settings of the advisor. Every field is a variable ``TURNBUCKLE_ADVISOR__<FIELD>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from services._runtime.service.settings import CommonSettings
from services.advisor.core.spot import SpotTerms

SHIPPED = "shipped"
ACCELERATORS = "accelerators"
RENAMED_ALGORITHMS: Final = {"ours": "gp"}
"""Old name to new, in settings and in the model store."""
_HOURS_PER_DAY = 24.0


class AdvisorSettings(CommonSettings):
    """Settings of an advisor."""

    service: ClassVar[str] = "advisor"
    renamed: ClassVar[Mapping[str, str]] = {
        "look_s": "refresh_interval_s",
        "quiet_s": "retrain_debounce_s",
        "least_records": "min_records",
        "leave_out": "held_out_tasks",
        "training_limit_s": "training_timeout_s",
    }

    algorithm: Annotated[
        Literal["gp", "boosting", "forest", "linear", "thesis"],
        BeforeValidator(lambda name: RENAMED_ALGORITHMS.get(name, name) if isinstance(name, str) else name),
        Field(description="model: gp (a Gaussian process), or a baseline regression on the same features"),
    ] = "gp"
    seed: Annotated[
        int, Field(ge=0, description="random seed of automatic trainings: the same data and seed give the same model")
    ] = 0
    datasets: Annotated[
        tuple[str, ...],
        Field(
            description="record files (Parquet) used in addition to the records of the bus; shipped: the project's "
            "own; accelerators: public ones of GPUs"
        ),
    ] = ()
    held_out_tasks: Annotated[
        tuple[str, ...], Field(description="tasks held out of the training set; their local runs are still used")
    ] = ()
    min_records: Annotated[int, Field(ge=1, description="fewest records for a first model")] = 20
    retrain_after: Annotated[int, Field(ge=1, description="new records after which the model is retrained")] = 50
    retrain_debounce_s: Annotated[
        float,
        Field(ge=0, le=600, description="seconds without a new record before an automatic training starts (debounce)"),
    ] = 2.0
    training_timeout_s: Annotated[float, Field(gt=0, description="seconds after which a training is aborted")] = 900.0
    models_kept: Annotated[int, Field(ge=1, le=100, description="newest models kept in the object store")] = 5
    refresh_interval_s: Annotated[
        float, Field(ge=0.1, le=600, description="seconds between refreshes: models of other replicas, new prices")
    ] = 5.0
    prices_directory: Annotated[
        str,
        Field(
            description="price snapshots besides the shipped ones; empty: where `turnbuckle prices refresh` puts them"
        ),
    ] = ""
    price_sources: Annotated[
        tuple[str, ...],
        Field(
            description="whose price counts for a machine that several catalogues list, best first (such as gcp-gce); "
            "the others follow: checked ones first, then Vertex AI's, then by name"
        ),
    ] = ()
    spot_interruptions_per_day: Annotated[
        float,
        Field(ge=0, le=1000, description="expected preemptions of a spot machine per day; an assumption, not measured"),
    ] = 0.1
    spot_restart_s: Annotated[
        float, Field(ge=0, description="seconds until a preempted job has restarted from its last checkpoint")
    ] = 180.0
    spot_checkpoint_s: Annotated[
        float, Field(ge=0, description="seconds between a job's checkpoints; 0: none, it starts over")
    ] = 0.0

    def spot_terms(self) -> SpotTerms:
        """The assumptions about spot machines."""
        return SpotTerms(self.spot_interruptions_per_day / _HOURS_PER_DAY, self.spot_restart_s, self.spot_checkpoint_s)
