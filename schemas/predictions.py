"""Queries to the advisor and its replies (thesis chapter 4; design 6). JSON requests get JSON replies."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from schemas.jobs import Configuration, Name, NonNegativeFloat, PositiveFloat, TaskFeatures
from schemas.message import Count, Message
from schemas.runs import RunProfile

MAX_CONFIGURATIONS = 2_000

Coverage = Annotated[float, Field(ge=0, le=1)] | None
"""Measured coverage of such intervals on held-out tasks with a local run of the same kind (finished, or ended by its
time limit). None: not measured for this kind of query."""


class Objective(StrEnum):
    """Quantity to minimise."""

    COST = "cost"
    TIME = "time"


class Estimate(Message):
    """A quantity with its interval."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Estimate"

    median: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat


class ModelName(Message):
    """Model and training data behind a reply."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.ModelName"

    model: str
    """The algorithm, such as ``gp``, ``boosting`` or ``thesis_bilstm``."""
    version: str
    """Of the stored model."""
    data_hash: str
    """Digest of its training records."""
    records: Count
    tasks: Count
    trained_ns: Count


class ConfigurationPrediction(Message):
    """Predicted time and cost of one configuration."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.ConfigurationPrediction"

    configuration: Configuration
    time_s: Estimate
    cost_usd: Estimate | None = None
    """None if the catalogue has no price."""
    spot_cost_usd: Estimate | None = None
    """At the spot price, with the expected restarts."""
    feasible: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability that it runs at all (out of memory)."""
    known: bool = True
    """False: the interval or the distance to all measurements is too large."""
    why_unknown: str = ""
    extrapolated: tuple[str, ...] = ()
    """Features outside of the measured range."""
    reasons: tuple[str, ...] = ()
    """Strongest first: why it is slower or faster than the median configuration."""
    pareto: bool = False
    """No other is both faster and cheaper."""


class Question(Message):
    """Common fields of all queries to the advisor."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Question"

    task: TaskFeatures
    configurations: Annotated[tuple[Configuration, ...], Field(max_length=MAX_CONFIGURATIONS)] = ()
    """Empty: all of the price catalogue's machines, times `workers`, times `batch_sizes`."""
    workers: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    profile: RunProfile | None = None
    """The task's local run; or, where it was published on the bus, its name in `run`."""
    run: str = ""
    job: str = ""
    """Where given, the reply is also published as ``evt.prediction.{job}``."""
    prices_as_of: date | None = None
    """A snapshot of the catalogue by its day; None: the newest."""
    price_sources: tuple[str, ...] = ()
    """Catalogues whose prices are used first, best first, such as ``gcp-gce``; empty: the advisor's order."""
    providers: tuple[str, ...] = ()
    """Providers of machines if `configurations` is empty. Empty: those with measurements; emulated ones only if there
    are no others."""
    shipped_data: bool = False
    """Use a model trained on the shipped data set (emulated machines) in addition to the records on the bus."""
    accelerator_data: bool = False
    """Use one trained on the shipped public measurements of steps on accelerators, in addition to those records."""


class PredictRequest(Question):
    """Time and cost of each configuration, in the order given."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.PredictRequest"


class PredictReply(Message):
    """Reply to PredictRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.PredictReply"

    model: ModelName
    prices_as_of: date | None
    price_sources: tuple[str, ...] = ()
    """Catalogues of the prices used, such as ``gcp-vertex``."""
    level: Annotated[float, Field(gt=0, lt=1)]
    """Nominal coverage of the intervals."""
    coverage: Coverage = None
    predictions: tuple[ConfigurationPrediction, ...]
    warnings: tuple[str, ...] = ()


class RankRequest(Question):
    """The best configurations under the limits given."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.RankRequest"

    objective: Objective = Objective.COST
    budget_usd: PositiveFloat | None = None
    deadline_s: PositiveFloat | None = None
    spot: bool = False
    top: Annotated[int, Field(ge=1, le=MAX_CONFIGURATIONS)] = 10
    proposals: Annotated[int, Field(ge=0, le=10)] = 3
    """Number of next runs to propose."""


class Neighbour(Message):
    """A known task that resembles the queried one."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Neighbour"

    task: Name
    distance: NonNegativeFloat
    """0: the same; 1: the median distance between two known tasks."""
    records: Count
    alike: tuple[str, ...] = ()
    """Most and least similar features, with values."""


class Proposal(Message):
    """A proposed next run, which would change the choice or its certainty most."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Proposal"

    configuration: Configuration
    time_s: Estimate
    cost_usd: Estimate | None = None
    reason: str


class RankReply(Message):
    """Reply to RankRequest; best first."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.RankReply"

    model: ModelName
    prices_as_of: date | None
    price_sources: tuple[str, ...] = ()
    """Catalogues of the prices used, such as ``gcp-vertex``."""
    level: Annotated[float, Field(gt=0, lt=1)]
    coverage: Coverage = None
    objective: Objective
    considered: Count
    ranked: tuple[ConfigurationPrediction, ...]
    pareto: tuple[ConfigurationPrediction, ...] = ()
    """The whole Pareto front, fastest first, including those not in `ranked`."""
    neighbours: tuple[Neighbour, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    worth_measuring: tuple[Configuration, ...] = ()
    """Configurations whose time is not known, of which a run would say most: it makes them known."""
    nearest: ConfigurationPrediction | None = None
    """If no configuration meets budget and deadline: the one nearest to them."""
    rejected: dict[str, int] = Field(default_factory=dict)
    """Number of rejected configurations by reason: over budget, too late, will not fit, not known."""
    warnings: tuple[str, ...] = ()


class AdviceExplainRequest(Question):
    """Why one configuration is predicted as it is: exactly one in `configurations`."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.AdviceExplainRequest"


class Contribution(Message):
    """Effect of one feature on a prediction."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Contribution"

    feature: str
    value: str
    factor: PositiveFloat
    """Predicted time relative to that at the median of the known values."""


class AdviceExplainReply(Message):
    """Reply to AdviceExplainRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.AdviceExplainReply"

    model: ModelName
    prediction: ConfigurationPrediction
    contributions: tuple[Contribution, ...]
    neighbours: tuple[Neighbour, ...]
    summary: str


class TrainRequest(Message):
    """Retrain on all known records; the reply comes at once, the training runs in the background."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.TrainRequest"

    seed: Count = 0
    force: bool = False
    """Train even without new records since the last training."""


class TrainReply(Message):
    """Reply to TrainRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.TrainReply"

    accepted: bool
    reason: str = ""
    model: ModelName | None = None
    """The model in use."""


class Prediction(Message):
    """A prediction as an event: the query, the model and prices used, and the reply."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Prediction"

    job: str
    task: TaskFeatures
    model: ModelName
    prices_as_of: date | None
    level: Annotated[float, Field(gt=0, lt=1)]
    predictions: tuple[ConfigurationPrediction, ...]
    """The best 20 at most."""
    considered: Count
    time_ns: Count
