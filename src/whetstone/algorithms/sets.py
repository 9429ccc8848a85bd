"""What is a number like beside the others of its set? Baselines and scales: two of the six pieces of credit.

A set is all rows with the same key: a task, a task and a state, a parent in a tree, a role. Most estimators are one or
two of these in a row.

Easy to get wrong: a set that is all equal says nothing, and must come to exactly 0. The mean of equal floats can be one
ulp away from them, and that ulp over ε is noise the size of a signal.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

_FLAT = 1e-8
"""Deviations below it are noise of the arithmetic."""


def joint_keys(*keys: Tensor) -> Tensor:
    """One key from several: [n] integers, not all of them taken, that are equal exactly where all of `keys` [n] are.

    Source: the sets of arXiv:2505.10978, §4.2 (a task and a state).
    """
    found = torch.zeros_like(keys[0], dtype=torch.long)
    for key in keys:
        of, count = sets_of(key)
        found = sets_of(found * len(count) + of)[0]
    return found


def sets_of(keys: Tensor) -> tuple[Tensor, Tensor]:
    """([n] the set of each row, [sets] how many rows each has); small counting numbers are sets as they are.

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
    """The mean of each row's set; float64.

    Source: the baseline of arXiv:2402.03300.
    """
    of, count = sets_of(keys)
    x = x.double()
    means: Tensor = x.new_zeros(len(count)).index_add_(0, of, x) / count.clamp(min=1)
    return means[of]


def normalised(
    x: Tensor,  # [n]
    keys: Tensor,  # [n] rows with the same key are a set
    *,
    center: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["set", "batch", "none"] = "set",
    ddof: int = 1,
    singleton: Literal["zero", "raw"] = "zero",
    epsilon: float = 1e-6,
) -> Tensor:  # [n]
    """Each number against its set; float64.

        (x − mean of the set) / (std + ε)

    A set of equal numbers, or with a deviation below 1e-8, is exactly 0. So is a set of one.

    Args:
        center: `leave_one_out` compares with the mean of the others: n/(n − 1) times as far.
        scale: Divide by the deviation of the set, of all rows there are (not centred), or by nothing.
        ddof: 1 for the sample deviation, 0 for the population's.
        singleton: What a set of one comes to: nothing, or the number itself as published GRPO code has it.

    Raises:
        ValueError: `x` and `keys` differ in shape, or there is no such scale.

    Source: arXiv:2402.03300 (mean, set); arXiv:2402.14740 (leave one out); arXiv:2508.08221 (batch).
    """
    if x.shape != keys.shape:
        raise ValueError(f"one group per reward: got rewards {[*x.shape]}, group {[*keys.shape]}")
    x = x.double()
    if len(x) == 0:
        return x
    of, count = sets_of(keys)
    size = count[of].double()
    lowest = x.new_zeros(len(count)).scatter_reduce_(0, of, x, "amin", include_self=False)
    highest = x.new_zeros(len(count)).scatter_reduce_(0, of, x, "amax", include_self=False)
    mean = x.new_zeros(len(count)).index_add_(0, of, x) / count.clamp(min=1)
    apart = torch.where((lowest == highest)[of], 0.0, x - mean[of])
    found = apart * size / (size - 1).clamp(min=1) if center == "leave_one_out" else apart
    if scale == "set":
        found = _over(found, _set_std(apart, of, count, ddof), epsilon)
    elif scale == "batch":
        found = _over(found, deviation(x, ddof=ddof), epsilon)
    elif scale != "none":
        raise ValueError(f"scale is set, batch or none: got {scale!r}")
    return torch.where(size == 1, x, found) if singleton == "raw" else found


def set_std(x: Tensor, keys: Tensor, *, ddof: int = 1) -> Tensor:
    """[n] the deviation of each row's set; 0 for a set of equal numbers, or of too few. float64.

    Source: the scale of arXiv:2402.03300.
    """
    of, count = sets_of(keys)
    return _set_std(normalised(x, keys, scale="none"), of, count, ddof)


def deviation(x: Tensor, *, ddof: int = 1) -> Tensor:
    """[] the deviation of all of `x`; 0 where there are not enough, or all are equal.

    Source: arXiv:2508.08221, §4.1 (the scale of the whole batch).
    """
    if len(x) <= ddof or bool((x == x[0]).all()):
        return x.new_zeros(())
    return x.double().std(correction=ddof)


def _set_std(apart: Tensor, of: Tensor, count: Tensor, ddof: int) -> Tensor:
    """From distances to the set's mean, [n]; `of` is each row's set."""
    squares = apart.new_zeros(len(count)).index_add_(0, of, apart.square())
    std: Tensor = (squares / (count - ddof).clamp(min=1)).sqrt()[of]
    return std


def _over(x: Tensor, std: Tensor, epsilon: float) -> Tensor:
    return torch.where(std < _FLAT, 0.0, x / (std + epsilon))
