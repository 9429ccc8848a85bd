"""Schedules of weights over steps, constant after their end.

Note: A cosine without a constant end falls again and would remove the term that it introduced.
"""

from __future__ import annotations

import math
from typing import Literal


def mixing_weight(step: int, *, start: float = 0.9, end: float = 0.05, warmup: int = 0, decay: int = 350) -> float:
    """Return the weight μ of imitation next to reinforcement: linear warmup, half a cosine down, then constant.

    Args:
        step: From 0.
        start: Peak value.
        end: Final value; above 0 it preserves the output format.
        warmup: Number of steps of linear increase.
        decay: Number of steps of cosine decrease.

    Source: DataMind 2025, arXiv:2509.25084, and its code; CHORD, arXiv:2508.11408.
    """
    if step < warmup:
        return start * (step + 1) / warmup
    if step >= warmup + decay:
        return end
    return end + (start - end) * (1 + math.cos(math.pi * (step - warmup) / decay)) / 2


def replay_weight(step: int, *, steps: int = 200, peak: float = 1.0) -> float:
    """Return the weight of replayed episodes: half a cosine up, then constant.

        ζ (1 − cos(π t / T)) / 2

    Args:
        step: From 0.
        steps: Number of steps of the increase, T.
        peak: Final weight ζ.

    Source: Qin et al. 2025 (SPEAR), arXiv:2509.22601, §3.2, and its code.
    """
    return peak * (1 - math.cos(math.pi * min(step, steps) / steps)) / 2


def phase_weight(epoch: int, epochs: int, *, form: Literal["decay", "rise", "constant"] = "decay") -> float:
    """Return the weight of EPO's entropy smoothing over training.

        first half 1 − 0.2 (1 − e^(−2x)),   second half 0.8 e^(−3x),   x the completed fraction of the half

    The first half is ⌊E / 2⌋ epochs. It jumps in the middle, reaches neither 0.8 nor 0, and is constant at both ends.
    The paper's text describes an increase, its code this decrease.

    Args:
        epoch: From 0 to `epochs`; constant beyond.
        epochs: Number of epochs of training, E.
        form: `rise` is the decrease reversed, `constant` is 1.

    Source: Xu et al. 2025 (EPO), arXiv:2509.22576, and its code.
    """
    if form == "constant":
        return 1.0
    if form == "rise":
        return phase_weight(epochs - epoch, epochs)
    epoch, half = min(max(epoch, 0), epochs), epochs // 2
    if epoch <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * epoch / half)) if half else 1.0
    return 0.8 * math.exp(-3 * (epoch - half) / (epochs - half))


def adaptive_weight(weight: float, divergence: float, *, target: float, samples: int, horizon: int = 10000) -> float:
    """Update the weight of a KL penalty after a batch, so that the divergence approaches its target.

        β ← β (1 + clip(KL / target − 1, ±0.2) · n / horizon)

    Args:
        weight: Previous β.
        divergence: KL of the batch.
        target: Above 0.
        samples: n, trajectories of the batch.
        horizon: Number of trajectories over which it adapts.

    Source: Ziegler et al. 2019, arXiv:1909.08593, §2.2.
    """
    return weight * (1 + min(max(divergence / target - 1, -0.2), 0.2) * samples / horizon)
