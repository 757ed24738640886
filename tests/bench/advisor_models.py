"""The models of the advisor's benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from schemas.predictions import Objective
from services.advisor.models.baselines.learned import Boosting, Forest, Linear
from services.advisor.models.baselines.regressor_model import Regressor
from services.advisor.models.thesis_bilstm.model import ThesisRegressor, Unit
from tests.bench.evaluation.ernest import Ernest
from tests.bench.evaluation.gp import Gp
from tests.bench.evaluation.learned_baselines import BoostingOfRatio, ForestClassifier, Poisson
from tests.bench.evaluation.protocols import Ranker, Sequential
from tests.bench.evaluation.search_strategies import Bayesian, ErnestSearch, FirstOf, RandomSearch
from tests.bench.evaluation.thesis_classifier import ThesisClassifier
from tests.bench.evaluation.workload_agnostic import CheapestHour, LargestMachine, MeanRanking, RandomChoice

MEAN_RANKING: Final = "mean ranking"
"""What everything is compared with."""

REGRESSORS: Final[Mapping[str, Callable[[Objective], Regressor]]] = {
    "gp": Gp,
    "linear": Linear,
    "poisson": Poisson,
    "random forest": Forest,
    "boosting": Boosting,
    "boosting of ratio": BoostingOfRatio,
    "ernest": Ernest,
    "thesis": lambda target: ThesisRegressor(target, "thesis", unit=Unit.MATCHED),
}
"""Predict a quantity, and rank by it."""

RANKERS: Final[Mapping[str, Callable[[Objective], Ranker]]] = {
    MEAN_RANKING: MeanRanking,
    "cheapest $/h": CheapestHour,
    "largest machine": LargestMachine,
    "random": RandomChoice,
    "forest classifier": ForestClassifier,
    "thesis classifier": ThesisClassifier,
}
"""Order configurations, and predict nothing."""

SEARCHES: Final[Mapping[str, Callable[[Objective], Sequential]]] = {
    "gp": Gp,
    "bayesian": Bayesian,
    "random search": RandomSearch,
    "ernest search": ErnestSearch,
    f"first of {MEAN_RANKING}": lambda target: FirstOf(MeanRanking(target)),
    "first of boosting": lambda target: FirstOf(Boosting(target)),
}
"""Run k configurations of the asked task."""

ONLY_KNOWN_TASKS: Final = frozenset({"ernest"})
"""Says nothing about a task that was never run, so it is not asked about left-out ones."""

BY_CHANCE: Final = frozenset({"random", "bayesian", "random search", "ernest search"})
"""Averaged over several seeds also where tasks are left out."""

RENAMED: Final = {"ours": "gp"}
"""Old name to new, in options and in parts measured before."""

SLOW: Final = frozenset({"thesis", "thesis classifier"})
"""Fitted for fewer random splits; left-out applications in groups; thresholds tuned on two parts."""
