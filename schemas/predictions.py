"""The advisor's questions and answers (thesis chapter 4; design 6). JSON is accepted and answered too."""

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
"""Share of outcomes that such intervals held on tasks that were left out, asked about with a local run of the same kind
(finished, or cut by its time limit). None: not measured for this kind of question."""


class Objective(StrEnum):
    """What is made small."""

    COST = "cost"
    TIME = "time"


class Estimate(Message):
    """A quantity with its interval."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Estimate"

    median: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat


class ModelName(Message):
    """Which model answered, and what it has learned from."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.ModelName"

    model: str
    """The algorithm, such as ``ours``, ``boosting`` or ``thesis_bilstm``."""
    version: str
    """Of the stored model."""
    data_hash: str
    """Digest of the records that it was trained on."""
    records: Count
    tasks: Count
    trained_ns: Count


class ConfigurationPrediction(Message):
    """What is to be expected of one configuration."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.ConfigurationPrediction"

    configuration: Configuration
    time_s: Estimate
    cost_usd: Estimate | None = None
    """None where the catalogue has no price."""
    spot_cost_usd: Estimate | None = None
    """At the spot price, with the expected restarts."""
    feasible: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability that it runs at all (out of memory)."""
    known: bool = True
    """False: the interval, or the distance to everything measured, says that we do not know."""
    why_unknown: str = ""
    extrapolated: tuple[str, ...] = ()
    """Features that lie outside of what was measured."""
    reasons: tuple[str, ...] = ()
    """Strongest first: what makes it slower or faster than the middle configuration."""
    pareto: bool = False
    """No other is both faster and cheaper."""


class Question(Message):
    """What every question to the advisor holds."""

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
    providers: tuple[str, ...] = ()
    """Whose machines, where `configurations` is empty. Empty: those that were measured; emulated ones only where no
    others were."""
    shipped_data: bool = False
    """Answer from a model that learned the project's own data set (emulated machines) beside what is on the bus."""


class PredictRequest(Question):
    """Time and cost of each configuration, in the order given."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.PredictRequest"


class PredictReply(Message):
    """Answer to PredictRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.PredictReply"

    model: ModelName
    prices_as_of: date | None
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
    """How many next runs to propose."""


class Neighbour(Message):
    """A known task that resembles the queried one."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Neighbour"

    task: Name
    distance: NonNegativeFloat
    """0: the same; 1: as far as two known tasks are from each other in the middle."""
    records: Count
    alike: tuple[str, ...] = ()
    """What is alike most, and what least, with values."""


class Proposal(Message):
    """A run that is worth making next, because it would change the choice or its certainty most."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Proposal"

    configuration: Configuration
    time_s: Estimate
    cost_usd: Estimate | None = None
    reason: str


class RankReply(Message):
    """Answer to RankRequest; best first."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.RankReply"

    model: ModelName
    prices_as_of: date | None
    level: Annotated[float, Field(gt=0, lt=1)]
    coverage: Coverage = None
    objective: Objective
    considered: Count
    ranked: tuple[ConfigurationPrediction, ...]
    pareto: tuple[ConfigurationPrediction, ...] = ()
    """All of the front, fastest first; also those that are not among `ranked`."""
    neighbours: tuple[Neighbour, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    nearest: ConfigurationPrediction | None = None
    """Where nothing keeps the budget and the deadline: what comes nearest to them."""
    rejected: dict[str, int] = Field(default_factory=dict)
    """Why configurations were left out, with counts: over budget, too late, will not fit, not known."""
    warnings: tuple[str, ...] = ()


class AdviceExplainRequest(Question):
    """Why one configuration is predicted as it is: exactly one in `configurations`."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.AdviceExplainRequest"


class Contribution(Message):
    """What one feature does to a prediction."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.Contribution"

    feature: str
    value: str
    factor: PositiveFloat
    """The predicted time is this many times what it would be at the middle of the known values."""


class AdviceExplainReply(Message):
    """Answer to AdviceExplainRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.AdviceExplainReply"

    model: ModelName
    prediction: ConfigurationPrediction
    contributions: tuple[Contribution, ...]
    neighbours: tuple[Neighbour, ...]
    summary: str


class TrainRequest(Message):
    """Train anew on every record that is known; answered at once, the training goes on."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.TrainRequest"

    seed: Count = 0
    force: bool = False
    """Also where no record has come since the last training."""


class TrainReply(Message):
    """Answer to TrainRequest."""

    type_name: ClassVar[str] = "turnbuckle.prediction.v1.TrainReply"

    accepted: bool
    reason: str = ""
    model: ModelName | None = None
    """The one in use now."""


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
