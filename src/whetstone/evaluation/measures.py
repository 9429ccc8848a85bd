"""What can be said of n episodes of a task, c of them solved? And of how sure an agent was.

Easy to get wrong: pass^k is not (share)^k; over tasks it is the mean of each task's own.
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


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """The chance that at least one of `k` samples drawn from `samples`, `solved` of them right, is right.

        1 − C(n − c, k) / C(n, k) = 1 − Π_{i = n−c+1 … n} (1 − k / i)

    1 where fewer than k samples are wrong.

    Raises:
        ValueError: k is larger than the number of samples.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is between 1 and the number of samples ({samples}), got {k}")
    if samples - solved < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - solved + 1, samples + 1))


def pass_hat_k(samples: int, solved: int, k: int) -> float:
    """The chance that all of `k` samples drawn from `samples` are right: C(c, k) / C(n, k).

    Raises:
        ValueError: k is larger than the number of samples.

    Source: Yao et al. 2024 (tau-bench), arXiv:2406.12045, §4.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is between 1 and the number of samples ({samples}), got {k}")
    return float(Fraction(comb(solved, k), comb(samples, k)))


def majority(answers: Sequence[str | None]) -> str | None:
    """The answer given most often; of several, the one given first. None where none was given."""
    given = Counter(answer for answer in answers if answer is not None)
    return given.most_common(1)[0][0] if given else None


def tool_productivity(solved: Sequence[bool], calls: Sequence[int]) -> float:
    """Σ solved / Σ calls; NaN where nothing was called.

    Source: Wang et al. 2025 (OTC), arXiv:2504.14870.
    """
    return sum(solved) / sum(calls) if sum(calls) else math.nan


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well stated confidence fits what was right."""

    said: int
    """Episodes that said how sure they were."""
    expected_error: float
    """ECE, over ten bins of equal width."""
    brier: float
    auroc: float
    """The chance that a right answer was said with more confidence than a wrong one, ties half; NaN where all or none
    is right."""
    mean_confidence: float


def calibration(confidence: Sequence[float], right: Sequence[bool], *, bins: int = 10) -> Calibration | None:
    """ECE, Brier score and AUROC; None where nobody said how sure he was. A confidence of 1 is in the last bin.

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
        mine = place == number
        if mine.any():
            error += mine.mean() * abs(solved[mine].mean() - sure[mine].mean())
    wins = math.nan
    positive = int(solved.sum())
    negative = len(solved) - positive
    if positive and negative:
        wins = float((rankdata(sure)[solved == 1].sum() - positive * (positive + 1) / 2) / (positive * negative))
    return Calibration(len(sure), float(error), float(((sure - solved) ** 2).mean()), wins, float(sure.mean()))


def matched_before_mismatch(matched: Sequence[int], lengths: Sequence[int]) -> dict[str, float]:
    """Semi-online performance: mean share of steps before the first that differs from a recorded trajectory (PG), share
    of trajectories without one (TSR), and the mean of both.

    Source: UI-S1 2025, arXiv:2509.11543.
    """
    shares = [m / t for m, t in zip(matched, lengths, strict=True)]
    progress = sum(shares) / len(shares)
    whole = sum(share == 1 for share in shares) / len(shares)
    return {"progress": progress, "success": whole, "mean": (progress + whole) / 2}


def faster_than(speedups: Sequence[float], *, than: float = 1.0) -> float:
    """fast_p: the share of solutions that are right and faster than `than` times the reference; wrong ones are 0.

    Source: KernelBench 2025, arXiv:2502.10517.
    """
    return sum(speedup > than for speedup in speedups) / len(speedups) if speedups else math.nan
