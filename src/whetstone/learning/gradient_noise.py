"""Gradient noise scale: the batch size, in groups, at which the noise of a gradient equals its signal.

    B_noise = tr(Σ) / |G|²      Σ: covariance of the gradient of one group, G: expected gradient

Both terms are estimated without bias from the norms of two gradients: that of an update, over all of its groups, and
that of a random part of them. The part has a separate forward and backward pass before the update, so the update
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

MAX_COST = 0.05
"""Maximum fraction of the tokens of all updates that measurements compute. Updates take 9 to 16 % of a step in the demo
and the guessing environment, so this is less than 1 % of a step there, and 2 % if they take 40 %."""
_PART = 16
"""Number of groups of an update per group of the part."""
_DECAY = 0.95
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
    """Return the number of groups of the part, for an update of `count` groups; at least 1."""
    return max(1, count // _PART)


def interval_steps(count: int) -> int:
    """Return the number of steps between two measurements, so that their cost is at most `MAX_COST`.

    >>> [interval_steps(count) for count in (2, 8, 32, 512)]
    [10, 3, 2, 2]
    """
    return math.ceil(part_size(count) / count / MAX_COST)


def sample_part(count: int, *, seed: int, step: int) -> list[int]:
    """Sample the groups of the part without replacement.

    Args:
        count: Number of groups of the update.
        seed: Seed of the run.
        step: Step, so that each has another sample.

    Returns:
        Ascending indices below `count`.
    """
    return sorted(derive_random(seed, "gradient noise", step).sample(range(count), part_size(count)))


class GradientNoise:
    """Moving averages of tr(Σ) and |G|², from which a run reports the gradient noise scale.

    Created by `ModelTrainer`, one per stage.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 6
        """Weighted sums of tr(Σ), |G|², |G|⁴, |g|² and 1, and the sum of squared weights."""

    def add(self, small: float, big: float, *, part: int, count: int) -> dict[str, float]:
        """Add a measurement to the moving averages and return the metrics.

        `update/noise_scale` is absent if the average of |G|² is not positive: the noise then hides the gradient.
        `update/noise_scale_min` is B (|g|² / (|G|² + 2 s) − 1) with the standard error s of |G|².

        Args:
            small: Squared norm of the mean gradient of the part.
            big: Squared norm of the mean gradient of all groups.
            part: Number of groups of the part.
            count: Number of all groups.
        """
        variance, signal = gradient_noise(small, big, part=part, count=count)
        measured = (variance, signal, signal**2, big, 1.0)
        self._sums = [
            *(_DECAY * old + new for old, new in zip(self._sums, measured, strict=False)),
            _DECAY**2 * self._sums[5] + 1.0,
        ]
        weight = self._sums[4]
        variance, signal, square, big = (each / weight for each in self._sums[:4])
        metrics = {
            "update/groups": float(count),
            "update/gradient_variance": variance,
            "update/gradient_signal": signal,
        }
        if signal > 0:
            metrics["update/noise_scale"] = max(0.0, variance) / signal
        independent = weight**2 / self._sums[5]
        """Number of equally weighted measurements with the same error."""
        if independent > 1:
            error = math.sqrt(max(0.0, square - signal**2) / (independent - 1))
            max_signal = signal + 2 * error
            metrics["update/noise_scale_min"] = max(0.0, count * (big / max_signal - 1)) if max_signal > 0 else 0.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the averages for a checkpoint."""
        return {"sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the averages of a checkpoint.

        None, as in checkpoints of earlier releases, restarts the averages.
        """
        self._sums = list(state["sums"]) if state is not None else [0.0] * 6
