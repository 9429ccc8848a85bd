"""Significance tests of paired comparisons of methods over the same tasks and seeds.

Note: With many contenders some difference is always "significant"; p-values are corrected for the number of pairs. A
test over tasks shows that these runs differ, not that the methods do: that needs several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
from scipy.stats import permutation_test, t

_RESAMPLES = 9999


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Paired comparison of two contenders: difference of success, interval and p-values."""

    one: str
    """Name of the first contender."""
    other: str
    """Name of the second contender."""
    difference: float
    """Difference of success, in [-1, 1], mean over seeds."""
    interval: tuple[float, float]
    """95 % confidence interval by Student's t over the differences of seeds; [NaN, NaN] with one seed. For methods."""
    p_seeds: float
    """Two-sided p-value of no difference by the same test, corrected; NaN with one seed."""
    p_tasks: float
    """P-value of no difference between these runs, by a sign-flip permutation test over tasks; corrected."""
    effect: float
    """Cohen's h of the two success rates: 0.2 small, 0.5 medium, 0.8 large."""
    seeds: int
    """Number of seeds that both have."""
    tasks: int
    """Number of tasks that both have."""


Outcomes = Mapping[int, Mapping[str, float]]
"""Seed → task → fraction of episodes that succeeded."""


def compare_pairs(
    contenders: Mapping[str, Outcomes], pairs: Sequence[tuple[str, str]] | None = None
) -> list[PairedComparison]:
    """Compare pairs of contenders over their common seeds and tasks, with p-values corrected by Holm's method.

    Args:
        pairs: Pairs to compare; None: all pairs.

    Raises:
        ValueError: If two contenders have no seed and task in common.

    Source: Dror et al. 2018, "The Hitchhiker's Guide to Testing Statistical Significance in NLP"; Holm 1979, "A simple
    sequentially rejective multiple test procedure"; Cohen 1988, "Statistical Power Analysis", ch. 6.
    """
    selected = combinations(contenders, 2) if pairs is None else pairs
    compared = [_pair(one, other, contenders[one], contenders[other]) for one, other in selected]
    p_seeds, p_tasks = (
        correct_p_values([pair.p_seeds for pair in compared]),
        correct_p_values([pair.p_tasks for pair in compared]),
    )
    return [
        PairedComparison(p.one, p.other, p.difference, p.interval, a, b, p.effect, p.seeds, p.tasks)
        for p, a, b in zip(compared, p_seeds, p_tasks, strict=True)
    ]


def _pair(one: str, other: str, one_outcomes: Outcomes, other_outcomes: Outcomes) -> PairedComparison:
    seeds = sorted(set(one_outcomes) & set(other_outcomes))
    shared = [set(side[seed]) for side in (one_outcomes, other_outcomes) for seed in seeds]
    tasks = sorted(set.intersection(*shared)) if shared else []
    if not tasks:
        raise ValueError(f"{one} and {other} have no task in common; compare results on the same tasks")
    first, second = (
        np.array([[side[seed][task] for task in tasks] for seed in seeds]) for side in (one_outcomes, other_outcomes)
    )
    of_seeds = (first - second).mean(1)
    low, high, p_seeds = t_interval(list(map(float, of_seeds)))
    effect = 2 * math.asin(math.sqrt(first.mean())) - 2 * math.asin(math.sqrt(second.mean()))
    difference = float(of_seeds.mean())
    p_tasks = sign_flip_test((first - second).mean(0))
    return PairedComparison(one, other, difference, (low, high), p_seeds, p_tasks, effect, len(seeds), len(tasks))


def t_interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return (low, high, p) of a mean by Student's t; NaN for one value, a zero-width interval for equal values."""
    count = len(differences)
    if count < 2:
        return (math.nan, math.nan, math.nan)
    mean, error = fmean(differences), stdev(differences) / math.sqrt(count)
    if error == 0:
        return (mean, mean, 1.0 if mean == 0 else 0.0)
    half = float(t.ppf(0.975, count - 1)) * error
    return (mean - half, mean + half, 2 * float(t.sf(abs(mean) / error, count - 1)))


def sign_flip_test(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a mean of 0 by a sign-flip test; exact for few nonzero differences."""
    moved = differences[differences != 0]
    if not len(moved):
        return 1.0
    if len(moved) == 1:
        return 1.0  # both signs give the same distance
    result = permutation_test(
        (moved,),
        lambda sample, axis=-1: sample.mean(axis),
        permutation_type="samples",
        n_resamples=_RESAMPLES,
        vectorized=True,
        alternative="two-sided",
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def correct_p_values(values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's method; NaN is unchanged.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted((value, place) for place, value in enumerate(values) if not math.isnan(value))
    corrected = list(values)
    most = 0.0
    for rank, (value, place) in enumerate(order):
        most = max(most, min(1.0, value * (len(order) - rank)))
        corrected[place] = most
    return corrected
