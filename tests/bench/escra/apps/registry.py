"""The applications of issue 8 by their names."""

from __future__ import annotations

from tests.bench.escra.apps.application import Application
from tests.bench.escra.apps.cache import Cache
from tests.bench.escra.apps.functions import Functions
from tests.bench.escra.apps.grid_search import GridSearch
from tests.bench.escra.apps.media import Media
from tests.bench.escra.apps.shop import Shop

APPLICATIONS: dict[str, Application] = {app.name: app for app in (Shop(), Media(), Cache(), GridSearch(), Functions())}
