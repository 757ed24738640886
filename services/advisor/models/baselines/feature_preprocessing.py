"""Feature preprocessing for linear models and distances: logarithms, standardised, unknown values set to the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import CATEGORY_MARK
from services.advisor.core.table import Table

_FLAT: Final = 1e-12


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Scaling of features, fitted on the training rows alone."""

    kept: IntArray
    """Features with at least two different known values."""
    logarithmic: FloatArray
    """1 for features on a logarithmic scale, shape ``(kept,)``."""
    middle: FloatArray
    scale: FloatArray

    @staticmethod
    def fit(table: Table, prefixes: tuple[str, ...] = ("",)) -> Preprocessing:
        """Fit to a table's features whose names begin with any of `prefixes`."""
        candidates = table.columns(*prefixes)
        features = table.features[:, candidates]
        known = np.isfinite(features)
        most = np.where(known, features, -np.inf).max(axis=0, initial=-np.inf)
        least = np.where(known, features, np.inf).min(axis=0, initial=np.inf)
        usable = most > least
        kept = candidates[usable]
        numeric = np.array([CATEGORY_MARK not in table.feature_names[at] for at in kept], dtype=np.float64)
        values = _logarithms(table.features[:, kept], numeric)
        middle = np.nanmean(values, axis=0) if len(kept) else np.zeros(0)
        scale = np.nanstd(values, axis=0) if len(kept) else np.ones(0)
        return Preprocessing(kept, numeric, middle, np.where(scale > _FLAT, scale, 1.0))

    def apply(self, table: Table) -> FloatArray:
        """Return features of mean 0 and standard deviation 1 over the training rows; 0 if unknown."""
        values = _logarithms(table.features[:, self.kept], self.logarithmic)
        return np.nan_to_num((values - self.middle) / self.scale, nan=0.0)


def _logarithms(values: FloatArray, where: FloatArray) -> FloatArray:
    """``sign(x) log(1 + |x|)`` of the logarithmic columns."""
    return np.asarray(np.where(where > 0, np.sign(values) * np.log1p(np.abs(values)), values))
