"""Is one method better than another, or was it luck? Paired over the same tasks and seeds.

Easy to get wrong: with many contenders some difference is always "significant"; p-values are corrected for how many
pairs were looked at. And a test over tasks says that these runs differ, not that the methods do: for that the seeds
count.
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
class Paired:
    """One contender less another."""

    one: str
    other: str
    difference: float
    """Of success, in [-1, 1], in the mean over seeds."""
    interval: tuple[float, float]
    """95 %, by Student's t over the differences of seeds; [NaN, NaN] with one seed. About the methods."""
    p_seeds: float
    """Of no difference, two-sided, by the same; NaN with one seed, corrected."""
    p_tasks: float
    """Of no difference between these very runs, by signs exchanged at random task by task; corrected."""
    effect: float
    """Cohen's h of the two shares: 0.2 small, 0.5 middling, 0.8 large."""
    seeds: int
    tasks: int


Outcomes = Mapping[int, Mapping[str, float]]
"""By seed and task, the share of episodes that succeeded."""


def paired(contenders: Mapping[str, Outcomes], pairs: Sequence[tuple[str, str]] | None = None) -> list[Paired]:
    """Pairs of contenders, over the seeds and tasks that both have; p-values corrected after Holm for their number.

    Args:
        pairs: Those that are asked about; None: every pair.

    Raises:
        ValueError: Two contenders have no seed and task in common.

    Source: Dror et al. 2018, "The Hitchhiker's Guide to Testing Statistical Significance in NLP"; Holm 1979, "A simple
    sequentially rejective multiple test procedure"; Cohen 1988, "Statistical Power Analysis", ch. 6.
    """
    asked = combinations(contenders, 2) if pairs is None else pairs
    found = [_pair(one, other, contenders[one], contenders[other]) for one, other in asked]
    p_seeds, p_tasks = holm([pair.p_seeds for pair in found]), holm([pair.p_tasks for pair in found])
    return [
        Paired(p.one, p.other, p.difference, p.interval, a, b, p.effect, p.seeds, p.tasks)
        for p, a, b in zip(found, p_seeds, p_tasks, strict=True)
    ]


def _pair(one: str, other: str, ours: Outcomes, theirs: Outcomes) -> Paired:
    seeds = sorted(set(ours) & set(theirs))
    shared = [set(side[seed]) for side in (ours, theirs) for seed in seeds]
    tasks = sorted(set.intersection(*shared)) if shared else []
    if not tasks:
        raise ValueError(f"{one} and {other} have no task in common")
    first, second = (np.array([[side[seed][task] for task in tasks] for seed in seeds]) for side in (ours, theirs))
    of_seeds = (first - second).mean(1)
    low, high, p_seeds = student(list(map(float, of_seeds)))
    effect = 2 * math.asin(math.sqrt(first.mean())) - 2 * math.asin(math.sqrt(second.mean()))
    difference = float(of_seeds.mean())
    p_tasks = signs((first - second).mean(0))
    return Paired(one, other, difference, (low, high), p_seeds, p_tasks, effect, len(seeds), len(tasks))


def student(differences: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, p) of a mean, by Student's t; NaN of one value. Where all are the same, the interval is that one."""
    count = len(differences)
    if count < 2:
        return (math.nan, math.nan, math.nan)
    mean, error = fmean(differences), stdev(differences) / math.sqrt(count)
    if error == 0:
        return (mean, mean, 1.0 if mean == 0 else 0.0)
    half = float(t.ppf(0.975, count - 1)) * error
    return (mean - half, mean + half, 2 * float(t.sf(abs(mean) / error, count - 1)))


def signs(differences: np.ndarray) -> float:
    """The p-value of a mean of 0, two-sided, exact where there are few differences that are not 0."""
    moved = differences[differences != 0]
    if not len(moved):
        return 1.0
    if len(moved) == 1:
        return 1.0  # either sign is as far off
    found = permutation_test(
        (moved,),
        lambda sample, axis=-1: sample.mean(axis),
        permutation_type="samples",
        n_resamples=_RESAMPLES,
        vectorized=True,
        alternative="two-sided",
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, NaN left as it is.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted((value, place) for place, value in enumerate(values) if not math.isnan(value))
    found = list(values)
    most = 0.0
    for rank, (value, place) in enumerate(order):
        most = max(most, min(1.0, value * (len(order) - rank)))
        found[place] = most
    return found
