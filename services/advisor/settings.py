"""Settings of the advisor. Every field is a variable ``TURNBUCKLE_ADVISOR__<FIELD>``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from services._runtime.settings import CommonSettings
from services.advisor.core.spot import SpotTerms

SHIPPED = "shipped"
_HOURS_PER_DAY = 24.0


class AdvisorSettings(CommonSettings):
    """What an advisor needs to know."""

    service: ClassVar[str] = "advisor"

    algorithm: Annotated[
        Literal["ours", "boosting", "forest", "linear", "thesis"],
        Field(description="what learns: ours, or a plain regression with the same surroundings"),
    ] = "ours"
    seed: Annotated[
        int, Field(ge=0, description="of trainings that nobody asked for: the same data and seed, the same model")
    ] = 0
    datasets: Annotated[
        tuple[str, ...],
        Field(description="record files (Parquet) that are known beside those of the bus; shipped: the project's own"),
    ] = ()
    leave_out: Annotated[
        tuple[str, ...], Field(description="tasks that are not learned from: for trials; their local runs stay known")
    ] = ()
    least_records: Annotated[int, Field(ge=1, description="records from which on a first model is trained")] = 20
    retrain_after: Annotated[int, Field(ge=1, description="new records after which the model is trained anew")] = 50
    quiet_s: Annotated[
        float, Field(ge=0, le=600, description="seconds without a new record before a training begins by itself")
    ] = 2.0
    training_limit_s: Annotated[float, Field(gt=0, description="seconds after which a training is given up")] = 900.0
    models_kept: Annotated[int, Field(ge=1, le=100, description="newest models that stay in the store")] = 5
    look_s: Annotated[
        float, Field(ge=0.1, le=600, description="seconds between looks for models of other replicas and new prices")
    ] = 5.0
    prices_directory: Annotated[
        str,
        Field(
            description="price snapshots beside the shipped ones; empty: where `turnbuckle prices refresh` puts them"
        ),
    ] = ""
    price_sources: Annotated[
        tuple[str, ...],
        Field(
            description="whose price counts for a machine that several catalogues list, best first (gcp-vertex); "
            "the others follow: checked ones first, then by name"
        ),
    ] = ()
    spot_interruptions_per_day: Annotated[
        float, Field(ge=0, le=1000, description="how often a spot machine is taken away; an assumption, not measured")
    ] = 0.1
    spot_restart_s: Annotated[
        float, Field(ge=0, description="seconds until an interrupted job is where its last checkpoint was")
    ] = 180.0
    spot_checkpoint_s: Annotated[
        float, Field(ge=0, description="seconds between a job's checkpoints; 0: none, it begins anew")
    ] = 0.0

    def spot_terms(self) -> SpotTerms:
        """What is assumed of spot machines."""
        return SpotTerms(self.spot_interruptions_per_day / _HOURS_PER_DAY, self.spot_restart_s, self.spot_checkpoint_s)
