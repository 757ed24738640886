"""The algorithms that the service can be told to use, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from schemas.predictions import Objective
from services.advisor.core.advising import Algorithm
from services.advisor.core.baselines_learned import Boosting, Forest, Linear
from services.advisor.core.ours.adviser import OurAlgorithm
from services.advisor.core.plain import Plain

ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    {
        "ours": OurAlgorithm,
        "boosting": lambda: Plain(Boosting(Objective.TIME)),
        "forest": lambda: Plain(Forest(Objective.TIME, name="forest")),
        "linear": lambda: Plain(Linear(Objective.TIME)),
    }
)
