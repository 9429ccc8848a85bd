"""How sure is a number? Intervals that know that episodes of one task are alike.

Easy to get wrong: sixteen episodes of each of ten tasks are ten things drawn, not a hundred and sixty.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, bootstrap

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of episodes that succeeded."""

    episodes: int
    success: float
    """In [0, 1]; NaN for no episodes."""
    interval: tuple[float, float]
    """The 95 % Wilson score interval."""


def wilson(successes: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of independent things; [0, 1] of none.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if count == 0:
        return (0.0, 1.0)
    found = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    return (float(found.low), float(found.high))


def clustered(values: Sequence[Sequence[float]], *, level: float = 0.95) -> tuple[float, float]:
    """An interval of the mean over all values [tasks][episodes], whole tasks drawn anew; [NaN, NaN] of nothing.

    Bias-corrected and accelerated, of Σ values / Σ counts over tasks. Where all tasks say the same it cannot tell how
    far off that is: for values of 0 and 1 the Wilson interval over tasks is given then, else the value itself.

    Source: Efron 1987, "Better bootstrap confidence intervals"; Miller 2024, arXiv:2411.00640, for the clusters.
    """
    filled = [list(map(float, row)) for row in values if len(row)]
    if not filled:
        return (math.nan, math.nan)
    sums, counts = np.array([sum(row) for row in filled]), np.array([len(row) for row in filled], dtype=float)
    means = sums / counts
    if len(filled) < 2 or np.ptp(means) == 0:
        mean = float(sums.sum() / counts.sum())
        if mean in (0.0, 1.0):
            return wilson(round(mean * len(filled)), len(filled))
        return (mean, mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of degenerate resamples; what comes of them is looked at below
        found = bootstrap(
            (sums, counts),
            lambda s, c, axis=-1: s.sum(axis) / c.sum(axis),
            paired=True,
            vectorized=True,
            n_resamples=_RESAMPLES,
            confidence_level=level,
            method="BCa",
            rng=np.random.default_rng(0),
        ).confidence_interval
    low, high = float(found.low), float(found.high)
    mean = float(sums.sum() / counts.sum())
    if math.isnan(low) or math.isnan(high):
        return (mean, mean)
    # resampling alone is too narrow where tasks are few
    widen = math.sqrt(len(filled) / (len(filled) - 1))
    low, high = mean + widen * (low - mean), mean + widen * (high - mean)
    flat = [value for row in filled for value in row]
    if set(flat) <= {0.0, 1.0}:
        return (max(0.0, low), min(1.0, high))
    return (low, high)
