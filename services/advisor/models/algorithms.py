"""The algorithms that the service can be told to use, by name; each loads only what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from schemas.predictions import Objective
from services.advisor.core.advising import Algorithm
from services.advisor.models.baselines.plain import Plain


def _ours() -> Algorithm:
    from services.advisor.models.gp.adviser import OurAlgorithm  # noqa: PLC0415 - see the module's text

    return OurAlgorithm()


def _boosting() -> Algorithm:
    from services.advisor.models.baselines.learned import Boosting  # noqa: PLC0415 - as above

    return Plain(Boosting(Objective.TIME))


def _forest() -> Algorithm:
    from services.advisor.models.baselines.learned import Forest  # noqa: PLC0415 - as above

    return Plain(Forest(Objective.TIME, name="forest"))


def _linear() -> Algorithm:
    from services.advisor.models.baselines.learned import Linear  # noqa: PLC0415 - as above

    return Plain(Linear(Objective.TIME))


def _thesis() -> Algorithm:
    from services.advisor.models.thesis_bilstm.model import ThesisRegressor, Unit  # noqa: PLC0415 - as above

    return Plain(ThesisRegressor(Objective.TIME, "thesis", unit=Unit.MATCHED), folds=2)


ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    {"ours": _ours, "boosting": _boosting, "forest": _forest, "linear": _linear, "thesis": _thesis}
)
