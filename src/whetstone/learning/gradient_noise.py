"""Gradient noise scale: the batch size, in groups, at which the noise of a gradient equals its signal.

    B_noise = tr(Σ) / |G|²      Σ: covariance of the gradient of one group, G: expected gradient

Both terms are estimated without bias from the norms of two gradients: that of an update, over all of its groups, and
that of a random part of them. The part has a forward and a backward pass of its own before the update, so the update
computes the same numbers with and without the measurement. Updates are measured at intervals that keep the cost at
`MAX_COST` of the computed tokens.

Note:
    Episodes of one group are not independent: the noise scale counts groups. The ratio of two averages is reported,
    since the average of ratios is biased.

Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.seeding import derive_random

MAX_COST = 0.02
"""Maximum fraction of the tokens of all updates that measurements compute."""
_PART = 16
"""Groups of an update per group of the part. The variance of the estimates hardly depends on the size of the part."""
_DECAY = 0.9
"""Weight of earlier measurements in the moving averages."""


def gradient_noise(small: float, big: float, *, part: int, count: int) -> tuple[float, float]:
    """Estimate tr(Σ) and |G|² from the squared norms of two mean gradients.

        tr(Σ) ≈ (|g_part|² - |g|²) / (1/b - 1/B)
        |G|²  ≈ (B |g|² - b |g_part|²) / (B - b)

    Unbiased if groups are independent and the part is a random one. An estimate can be negative.

    Args:
        small: Squared norm of the mean gradient of the part.
        big: Squared norm of the mean gradient of all groups.
        part: Number of groups b of the part.
        count: Number of all groups B.

    Raises:
        ValueError: If not 0 < b < B.
    """
    if not 0 < part < count:
        raise ValueError(f"the part must have at least one of {count} groups and not all of them, got {part}")
    return (small - big) / (1 / part - 1 / count), (count * big - part * small) / (count - part)


def part_size(count: int) -> int:
    """Return the number of groups of the part of an update of `count` groups."""
    return max(1, count // _PART)


def interval_steps(count: int) -> int:
    """Return the number of steps between two measurements, so that their cost is at most `MAX_COST`.

    >>> [interval_steps(count) for count in (2, 8, 32, 512)]
    [25, 7, 4, 4]
    """
    return math.ceil(part_size(count) / count / MAX_COST)


def sample_part(count: int, *, seed: int, step: int) -> list[int]:
    """Sample the groups of the part, ascending indices below `count`."""
    return sorted(derive_random(seed, "gradient noise", step).sample(range(count), part_size(count)))


class GradientNoise:
    """Moving averages of tr(Σ) and |G|²."""

    def __init__(self) -> None:
        self._sums = [0.0, 0.0, 0.0]
        """Weighted sum of tr(Σ), of |G|², and of the weights."""

    def add(self, small: float, big: float, *, part: int, count: int) -> dict[str, float]:
        """Add a measurement and return the metrics; see `gradient_noise`.

        `update/noise_scale` is absent if the average of |G|² is not positive: the noise then hides the gradient.
        """
        measured = (*gradient_noise(small, big, part=part, count=count), 1.0)
        self._sums = [_DECAY * old + (1 - _DECAY) * new for old, new in zip(self._sums, measured, strict=True)]
        variance, signal = self._sums[0] / self._sums[2], self._sums[1] / self._sums[2]
        metrics = {
            "update/groups": float(count),
            "update/gradient_variance": variance,
            "update/gradient_signal": signal,
        }
        return metrics | ({"update/noise_scale": max(0.0, variance) / signal} if signal > 0 else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the averages for a checkpoint."""
        return {"sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the averages; None, of an earlier release, starts new ones."""
        self._sums = list(state["sums"]) if state is not None else [0.0, 0.0, 0.0]
