"""Statistics within groups: baselines (means) and scales (standard deviations).

A set is all rows with the same key: a task, a task and a state, a parent in a tree, a role. Most estimators apply one
or two of these functions.

Note: A set of equal numbers must give exactly 0. The mean of equal floats can differ from them by one ulp, and that
ulp divided by ε would be as large as a signal.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

_FLAT = 1e-8
"""Standard deviation below which differences are rounding errors."""


def combine_keys(*keys: Tensor) -> Tensor:
    """Combine keys: return [n] integers that are equal if and only if all of `keys` [n] are; not all are used.

    Source: the sets of arXiv:2505.10978, §4.2 (a task and a state).
    """
    joined = torch.zeros_like(keys[0], dtype=torch.long)
    for key in keys:
        of, count = index_sets(key)
        joined = index_sets(joined * len(count) + of)[0]
    return joined


def index_sets(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return ([n] set index of each row, [sets] number of rows per set); small integers are used unchanged.

    Source: the groups of arXiv:2402.03300.
    """
    if not keys.is_floating_point() and len(keys) and int(keys.min()) >= 0 and int(keys.max()) < 4 * len(keys):
        keys = keys.long()
        return keys, torch.bincount(keys)
    of, count = torch.unique(keys, return_inverse=True, return_counts=True)[1:]
    return of, count


def set_mean(
    x: Tensor,  # [n]
    keys: Tensor,  # [n] rows with the same key are a set
) -> Tensor:  # [n]
    """Compute the mean of each row's set; float64.

    Source: the baseline of arXiv:2402.03300.
    """
    of, count = index_sets(keys)
    x = x.double()
    means: Tensor = x.new_zeros(len(count)).index_add_(0, of, x) / count.clamp(min=1)
    return means[of]


def normalize_in_sets(
    x: Tensor,  # [n]
    keys: Tensor,  # [n] rows with the same key are a set
    *,
    center: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["set", "batch", "none"] = "set",
    ddof: int = 1,
    singleton: Literal["zero", "raw"] = "zero",
    epsilon: float = 1e-6,
) -> Tensor:  # [n]
    """Normalize each number within its set; float64.

        (x − mean of the set) / (std + ε)

    A set of equal numbers, or with a deviation below 1e-8, gives exactly 0. So does a set of one.

    Args:
        center: `leave_one_out` subtracts the mean of the others, which multiplies the difference by n/(n − 1).
        scale: Divide by the standard deviation of the set, or of all rows (not centered), or do not divide.
        ddof: 1 for the sample deviation, 0 for the population's.
        singleton: Result of a set of one: 0, or the number itself as in published GRPO code.

    Raises:
        ValueError: If `x` and `keys` differ in shape, or the scale is unknown.

    Source: arXiv:2402.03300 (mean, set); arXiv:2402.14740 (leave one out); arXiv:2508.08221 (batch).
    """
    if x.shape != keys.shape:
        raise ValueError(f"rewards and group must have the same shape, got {[*x.shape]} and {[*keys.shape]}")
    x = x.double()
    if len(x) == 0:
        return x
    of, count = index_sets(keys)
    size = count[of].double()
    lowest = x.new_zeros(len(count)).scatter_reduce_(0, of, x, "amin", include_self=False)
    highest = x.new_zeros(len(count)).scatter_reduce_(0, of, x, "amax", include_self=False)
    mean = x.new_zeros(len(count)).index_add_(0, of, x) / count.clamp(min=1)
    centered = torch.where((lowest == highest)[of], 0.0, x - mean[of])
    normalized = centered * size / (size - 1).clamp(min=1) if center == "leave_one_out" else centered
    if scale == "set":
        normalized = _divide_by_std(normalized, _set_std(centered, of, count, ddof), epsilon)
    elif scale == "batch":
        normalized = _divide_by_std(normalized, standard_deviation(x, ddof=ddof), epsilon)
    elif scale != "none":
        raise ValueError(f"scale must be set, batch or none, got {scale!r}")
    return torch.where(size == 1, x, normalized) if singleton == "raw" else normalized


def set_std(x: Tensor, keys: Tensor, *, ddof: int = 1) -> Tensor:
    """Compute the standard deviation of each row's set, [n]; 0 for equal or too few numbers. float64.

    Source: the scale of arXiv:2402.03300.
    """
    of, count = index_sets(keys)
    return _set_std(normalize_in_sets(x, keys, scale="none"), of, count, ddof)


def standard_deviation(x: Tensor, *, ddof: int = 1) -> Tensor:
    """Compute the standard deviation of all of `x`, []; 0 if there are too few numbers, or all are equal.

    Source: arXiv:2508.08221, §4.1 (the scale of the whole batch).
    """
    if len(x) <= ddof or bool((x == x[0]).all()):
        return x.new_zeros(())
    return x.double().std(correction=ddof)


def _set_std(centered: Tensor, of: Tensor, count: Tensor, ddof: int) -> Tensor:
    """Compute standard deviations [n] from differences to the set's mean; `of` is the set index of each row."""
    squares = centered.new_zeros(len(count)).index_add_(0, of, centered.square())
    std: Tensor = (squares / (count - ddof).clamp(min=1)).sqrt()[of]
    return std


def _divide_by_std(x: Tensor, std: Tensor, epsilon: float) -> Tensor:
    return torch.where(std < _FLAT, 0.0, x / (std + epsilon))
