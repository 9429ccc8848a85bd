"""95 % intervals that account for several episodes per task.

Episodes of one task are correlated: sixteen episodes of each of ten tasks are closer to ten independent samples than to
160. Tasks are sampled, and everything within a task is one observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, t

_UPPER = 0.975
_Z = float(norm.ppf(_UPPER))


@dataclass(frozen=True, slots=True)
class Rate:
    """Success rate of episodes with its confidence interval."""

    episodes: int
    """Number of episodes."""
    success: float
    """In [0, 1]; NaN for no episodes."""
    interval: tuple[float, float]
    """95 %, see `clustered_interval`."""


def wilson_interval(successes: float, count: float) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a fraction of independent samples; [0, 1] if there are none.

        p = successes / n
        (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Args:
        successes: Number of successes.
        count: Number of samples, n; an effective number need not be whole.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if count <= 0:
        return (0.0, 1.0)
    p, ratio = successes / count, _Z * _Z / count
    half = math.sqrt(max(0.0, p * (1 - p)) * ratio + ratio * ratio / 4)
    low, high = (p + ratio / 2 - half) / (1 + ratio), (p + ratio / 2 + half) / (1 + ratio)
    return (0.0 if p == 0 else max(0.0, low), 1.0 if p == 1 else min(1.0, high))


def effective_number(outcomes: Sequence[Sequence[float]]) -> float:
    """Return the number of independent episodes whose success rate is as uncertain as that of K tasks.

        m = sum(x_ij) / sum(n_i)           V = K / (K - 1) * sum((sum_j x_ij - m n_i)^2) / sum(n_i)^2
        min(sum(n_i), m (1 - m) / V) * (z / t_{K-1})^2

    The last factor accounts for the estimate of V (Student's t). With one episode per task the number is K, and if all
    outcomes are equal, which does not show the correlation within a task. If there is one task, its outcomes are no
    evidence for other tasks: 0.

    Args:
        outcomes: [K][n_i] outcomes of each task, 0 or 1; tasks without episodes are left out.

    Source: Korn & Graubard 1998, "Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data".
    """
    sums, counts = _sums_of(outcomes)
    tasks, episodes = len(sums), float(counts.sum())
    if episodes == tasks or sums.sum() in (0, episodes):
        return float(tasks)
    if tasks < 2:
        return 0.0
    mean, variance = _ratio(sums, counts)
    number = min(episodes, mean * (1 - mean) / variance) if variance else episodes
    return number * (_Z / float(t.ppf(_UPPER, tasks - 1))) ** 2


def clustered_interval(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over all values of K tasks; [NaN, NaN] without values.

    Outcomes (0 or 1) have the Wilson interval of their `effective_number`. Other values have Student's interval of the
    ratio of sums over tasks, m +- t_{K-1} sqrt(V), with m and V as in `effective_number`; it is NaN for one task.

    Args:
        values: [K][n_i] values of each task; tasks without values are left out.

    Source: Miller 2024, arXiv:2411.00640 (tasks as clusters).
    """
    sums, counts = _sums_of(values)
    if not len(sums):
        return (math.nan, math.nan)
    if all(value in (0, 1) for row in values for value in row):
        number = effective_number(values)
        return wilson_interval(float(sums.sum() / counts.sum()) * number, number)
    if len(sums) < 2:
        return (math.nan, math.nan)
    mean, variance = _ratio(sums, counts)
    half = float(t.ppf(_UPPER, len(sums) - 1)) * math.sqrt(variance)
    return (mean - half, mean + half)


def _sums_of(values: Sequence[Sequence[float]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return ([K] sums, [K] counts) of the tasks that have values."""
    filled = [row for row in values if len(row)]
    return np.array([float(sum(row)) for row in filled]), np.array([float(len(row)) for row in filled])


def _ratio(sums: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return (mean, its variance) of a ratio of sums over two tasks or more."""
    tasks, total = len(sums), counts.sum()
    mean = sums.sum() / total
    return float(mean), float(tasks / (tasks - 1) * ((sums - mean * counts) ** 2).sum() / total**2)
