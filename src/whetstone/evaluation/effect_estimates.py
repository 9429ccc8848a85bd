"""Effect of methods against one baseline: simultaneous intervals over seeds and a verdict with a margin.

The layout is that of randomized blocks: every contender is trained with every seed, and a seed is a block. Intervals
are simultaneous: with 95 % probability all intervals against one baseline cover their true differences.

- With fewer than 8 common seeds the variance is pooled over all contenders (Dunnett), so that three seeds of ten
  contenders estimate it with 18 degrees of freedom instead of 2. This assumes that all contenders scatter equally.
- From 8 seeds on, the variance is that of the paired differences of a comparison (Student's t, the level of Šidák).
  This holds however differently contenders scatter: in one bench the deviations of differences are 0.3 to 13 points.

Note:
    Success on other tasks is no replication. Two checkpoints of one method differ significantly over tasks; only seeds
    measure the method.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, norm, t

from whetstone.evaluation.verdicts import BETTER, CANNOT_TELL, NO_DIFFERENCE, WORSE

MARGIN = 0.05
"""Difference in success, as a fraction, below which a method counts as equal to the baseline."""
POWER = 0.8
OWN_VARIANCE_SEEDS = 8
"""Number of common seeds from which the variance is that of the paired differences instead of the pooled one."""
_LEVEL = 0.95
_MAX_SEEDS = 4096

Results = Mapping[str, Mapping[int, float]]
"""Contender → seed → measured value."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of one contender from the baseline, estimated over seeds. Created by `effects_against`."""

    contender: str
    """Name of the contender."""
    baseline: str
    """Name of the baseline."""
    difference: float
    """Mean over the seeds that both have, contender less baseline."""
    interval: tuple[float, float]
    """95 %, simultaneous over all contenders that are compared with this baseline; NaN if it cannot be estimated."""
    p: float
    """Probability of a difference as large by chance for any of the comparisons; NaN as for the interval."""
    seeds: int
    """Number of seeds that both have."""
    deviation: float
    """Standard deviation of one run around the additive model: pooled over contenders, or that of the paired
    differences divided by √2, from 8 seeds on."""
    degrees: int
    """Degrees of freedom of `deviation`."""
    comparisons: int
    """Number of contenders that are compared with this baseline."""

    def get_verdict(self, *, lower_is_better: bool = False, margin: float | None = MARGIN, min_seeds: int = 2) -> str:
        """Return `better`, `worse`, `no difference of 5 points` or `cannot tell`.

        Args:
            lower_is_better: The measure is a cost.
            margin: Largest difference that counts as none; None if the measure has no margin.
            min_seeds: With fewer seeds the result is `cannot tell`.
        """
        low, high = self.interval
        if self.seeds < min_seeds or math.isnan(low):
            return CANNOT_TELL
        if margin is not None and -margin < low and high < margin:
            return NO_DIFFERENCE
        if low > 0 or high < 0:
            return BETTER if (high < 0) == lower_is_better else WORSE
        return CANNOT_TELL

    def seeds_needed(self, margin: float = MARGIN) -> int | None:
        """Return the number of seeds that detects a difference of `margin` with a power of 80 %.

        If the present seeds could not decide, the result is larger than their number. It is None without an estimate
        of the deviation.
        """
        if math.isnan(self.deviation):
            return None
        return seeds_for(self.deviation, margin, comparisons=self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the verdict on success and the number of seeds needed."""
        names = ("contender", "baseline", "difference", "interval", "p", "seeds", "deviation", "comparisons")
        return {
            **{name: getattr(self, name) for name in names},
            "verdict": self.get_verdict(),
            "seeds_needed": self.seeds_needed(),
        }


def effects_against(baseline: str, results: Results, compared: Sequence[str]) -> list[Effect]:
    """Compare contenders with a baseline, seed by seed.

        fewer than 8 seeds:   difference ± q s √(2/n)      s: residuals of `value = contender + seed`, over `results`
        8 seeds or more:      difference ± t s √(2/n)      s: deviation of the paired differences / √2

    q is Dunnett's quantile, t Student's quantile with n − 1 degrees at the level 0.95^(1/comparisons). If s is 0, it is
    unknown and the intervals are NaN, because equal values of a few seeds do not show that there is no scatter.

    Args:
        baseline: Name of the contender that the others are compared with.
        results: All contenders whose scatter is pooled, the baseline and `compared` among them.
        compared: Contenders other than the baseline.

    Returns:
        One effect per contender that has a seed in common with the baseline.

    Source: Dunnett 1955, "A multiple comparison procedure for comparing several treatments with a control"; Šidák 1967,
        "Rectangular confidence regions for the means of multivariate normal distributions".
    """
    pooled = pooled_deviation(results)
    shared = {name: sorted(set(results[name]) & set(results[baseline])) for name in compared}
    count = len([seeds for seeds in shared.values() if seeds])
    effects = []
    for name, seeds in shared.items():
        if not seeds:
            continue
        differences = [results[name][seed] - results[baseline][seed] for seed in seeds]
        difference, own = fmean(differences), len(seeds) >= OWN_VARIANCE_SEEDS
        deviation, degrees = (stdev(differences) / math.sqrt(2), len(seeds) - 1) if own else pooled
        if degrees < 1 or deviation < 1e-12:
            effect = Effect(name, baseline, difference, (math.nan, math.nan), math.nan, len(seeds), math.nan, 0, count)
        else:
            error = deviation * math.sqrt(2 / len(seeds))
            half = _quantile(count, degrees, own=own) * error
            p = 1 - _probability(abs(difference) / error, count, degrees, own=own)
            interval = (difference - half, difference + half)
            effect = Effect(name, baseline, difference, interval, p, len(seeds), deviation, degrees, count)
        effects.append(effect)
    return effects


def pooled_deviation(results: Results) -> tuple[float, int]:
    """Return standard deviation and degrees of freedom of the residuals of `value = contender + seed`.

    Contenders may lack seeds. Without a degree of freedom the deviation is NaN.
    """
    cells = [(name, seed, value) for name, values in results.items() for seed, value in values.items()]
    names, seeds = sorted({name for name, _, _ in cells}), sorted({seed for _, seed, _ in cells})
    design = np.zeros((len(cells), len(names) + len(seeds)))
    for row, (name, seed, _) in enumerate(cells):
        design[row, names.index(name)] = design[row, len(names) + seeds.index(seed)] = 1.0
    values = np.array([value for _, _, value in cells])
    if not len(cells):
        return math.nan, 0
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    degrees = len(cells) - int(rank)
    if degrees < 1:
        return math.nan, 0
    return math.sqrt(float(((values - design @ solution) ** 2).sum()) / degrees), degrees


def _probability(bound: float, comparisons: int, degrees: int, *, own: bool) -> float:
    """Return the probability that all |t| of comparisons are at most `bound` if nothing differs."""
    if own:
        return float((1 - 2 * t.sf(bound, degrees)) ** comparisons)
    return _dunnett_probability(bound, comparisons, degrees)


def _quantile(comparisons: int, degrees: int, *, own: bool) -> float:
    """Return the two-sided simultaneous 95 % quantile."""
    if own:
        return float(t.ppf((1 + _LEVEL ** (1 / comparisons)) / 2, degrees))
    return dunnett_quantile(comparisons, degrees)


@functools.cache
def _nodes(degrees: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return quadrature nodes and weights for a normal deviate and for a scaled chi deviate."""
    z, z_weights = np.polynomial.hermite_e.hermegauss(64)
    u, u_weights = np.polynomial.legendre.leggauss(64)
    scale = np.sqrt(chi2.ppf((u + 1) / 2, degrees) / degrees)
    return z, z_weights / math.sqrt(2 * math.pi), scale, u_weights / 2


def _dunnett_probability(bound: float, comparisons: int, degrees: int) -> float:
    """Return the probability that all |t| of comparisons with one baseline are at most `bound` if nothing differs."""
    z, z_weights, scale, weights = _nodes(degrees)
    reach = math.sqrt(2) * bound * scale[:, None]
    inside = norm.cdf(reach + z[None, :]) - norm.cdf(z[None, :] - reach)
    return float(weights @ (inside**comparisons @ z_weights))


@functools.lru_cache(maxsize=4096)
def dunnett_quantile(comparisons: int, degrees: int) -> float:
    """Return the two-sided 95 % quantile of Dunnett's distribution for groups of equal size.

    Args:
        comparisons: Number of contenders that are compared with the baseline, at least 1. For 1 it is that of Student's
            t.
        degrees: Degrees of freedom of the pooled variance, at least 1.
    """
    return float(brentq(lambda q: _dunnett_probability(q, comparisons, degrees) - _LEVEL, 0.1, 2000.0, xtol=1e-6))


def seeds_for(deviation: float, margin: float = MARGIN, *, comparisons: int = 1) -> int:
    """Return the smallest number of seeds that detects a difference of `margin` with a power of 80 %.

        n ≥ 2 s² (q + z_0.8)² / margin²       q: quantile of `effects_against` with n seeds

    Args:
        deviation: Standard deviation of one run.
        margin: Difference to detect, in the unit of `deviation`.
        comparisons: Number of contenders that are compared with the baseline.
    """
    # the detectable difference falls within each of the ranges, in which the kind of variance is the same
    for low, high in ((1, OWN_VARIANCE_SEEDS - 1), (OWN_VARIANCE_SEEDS - 1, _MAX_SEEDS)):
        if detectable_difference(deviation, high, comparisons=comparisons) > margin:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            is_enough = detectable_difference(deviation, middle, comparisons=comparisons) <= margin
            low, high = (low, middle) if is_enough else (middle, high)
        return high
    return _MAX_SEEDS


def detectable_difference(deviation: float, seeds: int, *, comparisons: int = 1) -> float:
    """Return the difference that is detected with a power of 80 %, in the unit of `deviation`."""
    own = seeds >= OWN_VARIANCE_SEEDS
    quantile = _quantile(comparisons, seeds - 1 if own else comparisons * (seeds - 1), own=own)
    return float((quantile + norm.ppf(POWER)) * deviation * math.sqrt(2 / seeds))


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the expected fraction of false discoveries; NaN stays NaN.

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]

    Source: Benjamini and Hochberg 1995, "Controlling the false discovery rate".
    """
    order = sorted((value, index) for index, value in enumerate(values) if not math.isnan(value))
    adjusted = list(values)
    least = 1.0
    for rank in range(len(order), 0, -1):
        value, index = order[rank - 1]
        least = min(least, value * len(order) / rank)
        adjusted[index] = least
    return adjusted
