"""The algorithms of the setting `algorithm`, by name. Each imports its libraries only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from schemas.predictions import Objective
from services.advisor.core.trained_model import Algorithm
from services.advisor.models.baselines.regressor_model import RegressorAlgorithm


def _gp() -> Algorithm:
    from services.advisor.models.gp.algorithm import GpAlgorithm  # noqa: PLC0415 - see the module's text

    return GpAlgorithm()


def _boosting() -> Algorithm:
    from services.advisor.models.baselines.learned import Boosting  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Boosting(Objective.TIME))


def _forest() -> Algorithm:
    from services.advisor.models.baselines.learned import Forest  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Forest(Objective.TIME, name="forest"))


def _linear() -> Algorithm:
    from services.advisor.models.baselines.learned import Linear  # noqa: PLC0415 - as above

    return RegressorAlgorithm(Linear(Objective.TIME))


def _thesis() -> Algorithm:
    from services.advisor.models.thesis_bilstm.model import ThesisRegressor, Unit  # noqa: PLC0415 - as above

    return RegressorAlgorithm(ThesisRegressor(Objective.TIME, "thesis", unit=Unit.MATCHED), folds=2)


ALGORITHMS: Final[Mapping[str, Callable[[], Algorithm]]] = MappingProxyType(
    {"gp": _gp, "boosting": _boosting, "forest": _forest, "linear": _linear, "thesis": _thesis}
)
