"""Metrics of episodes: pass@k, pass^k, majority vote, success by step, and calibration of confidence.

Note: pass^k is not the success rate to the power k; over tasks it is the mean of the tasks' values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb

import numpy as np
from scipy.stats import rankdata


def compute_pass_at_k(samples: int, solved: int, k: int) -> float:
    """Compute pass@k: the probability that at least one of `k` samples out of `samples` is right.

        1 − C(n − c, k) / C(n, k) = 1 − Π_{i = n−c+1 … n} (1 − k / i)

    It is 1 if fewer than k samples are wrong.

    Raises:
        ValueError: If k is larger than the number of samples.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k must be between 1 and the number of samples ({samples}), got {k}")
    if samples - solved < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - solved + 1, samples + 1))


def pass_hat_k(samples: int, solved: int, k: int) -> float:
    """Compute pass^k: the probability that all of `k` samples out of `samples` are right, C(c, k) / C(n, k).

    Raises:
        ValueError: If k is larger than the number of samples.

    Source: Yao et al. 2024 (tau-bench), arXiv:2406.12045, §4.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k must be between 1 and the number of samples ({samples}), got {k}")
    return float(Fraction(comb(solved, k), comb(samples, k)))


def majority_answer(answers: Sequence[str | None]) -> str | None:
    """Return the most frequent answer, the first of several; None without answers."""
    counts = Counter(answer for answer in answers if answer is not None)
    return counts.most_common(1)[0][0] if counts else None


def tool_productivity(solved: Sequence[bool], calls: Sequence[int]) -> float:
    """Compute Σ solved / Σ calls; NaN without calls.

    Source: Wang et al. 2025 (OTC), arXiv:2504.14870.
    """
    return sum(solved) / sum(calls) if sum(calls) else math.nan


def success_by_step(steps: Sequence[int], solved: Sequence[bool]) -> dict[str, float]:
    """Compute the fraction of episodes that were solved within k steps, for k = 1 … 10 and the largest number.

    The last value is the success rate. Empty if no episode has two steps or more.

    Args:
        steps: [N] number of turns, or of answer attempts, of each episode.
        solved: [N] whether each episode was solved.

    Source: Wang et al. 2024 (MINT), arXiv:2309.10691, SR_k.
    """
    most = max(steps, default=0)
    if most < 2:
        return {}
    pairs = list(zip(steps, solved, strict=True))
    numbers = sorted({*range(1, min(most, 10) + 1), most})
    return {str(k): sum(right and count <= k for count, right in pairs) / len(pairs) for k in numbers}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of the confidence that the policy states with its answers."""

    said: int
    """Number of episodes with a stated confidence."""
    expected_error: float
    """Expected calibration error (ECE) over ten bins of equal width."""
    brier: float
    """Brier score: mean squared difference between confidence and correctness."""
    auroc: float
    """Probability that a right answer has more confidence than a wrong one, ties half; NaN if all or none are right."""
    mean_confidence: float
    """Mean stated confidence, from 0 to 1."""


def compute_calibration(confidence: Sequence[float], right: Sequence[bool], *, bins: int = 10) -> Calibration | None:
    """Compute ECE, Brier score and AUROC; None without stated confidence. A confidence of 1 is in the last bin.

        ECE = Σ_b (n_b / N) |accuracy_b − mean confidence_b|

    With few episodes ECE is too high; the Brier score is not.

    Source: Guo et al. 2017, arXiv:1706.04599; Brier 1950, "Verification of forecasts expressed in terms of
        probability".
    """
    if not len(confidence):
        return None
    sure, solved = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    place = np.minimum((sure * bins).astype(int), bins - 1)
    error = 0.0
    for number in range(bins):
        in_bin = place == number
        if in_bin.any():
            error += in_bin.mean() * abs(solved[in_bin].mean() - sure[in_bin].mean())
    wins = math.nan
    positive = int(solved.sum())
    negative = len(solved) - positive
    if positive and negative:
        wins = float((rankdata(sure)[solved == 1].sum() - positive * (positive + 1) / 2) / (positive * negative))
    return Calibration(len(sure), float(error), float(((sure - solved) ** 2).mean()), wins, float(sure.mean()))
