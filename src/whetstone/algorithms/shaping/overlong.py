"""Soft overlong penalty, which grows linearly near the length limit.

Note: Filtering of overlong episodes is a separate method. Use one of the two.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory
from whetstone.bounded_types import Count, NotNegative


def overlong(
    outcomes: PerTrajectory,
    lengths: PerTrajectory,
    *,
    limit: Count = 20480,
    buffer: Count = 4096,
    penalty: NotNegative = 1.0,
) -> PerTrajectory:
    """Subtract a penalty from outcomes that grows over the last tokens below a limit (DAPO's overlong shaping).

        R ← R − p · clip((n − (limit − buffer)) / buffer, 0, 1)

    Args:
        outcomes: [N] outcome per trajectory.
        lengths: [N] number n of action tokens; observations do not count.
        limit: Number of tokens at which the whole penalty applies.
        buffer: Number of tokens below the limit over which the penalty grows.
        penalty: Maximum penalty p. DAPO's rewards are ±1; for rewards of 0 and 1, half of it has the same force.

    Raises:
        ValueError: If the buffer is not in (0, limit].

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer must be above 0 and at most limit ({limit}), got {buffer}")
    over = lengths.double() - (limit - buffer)
    return outcomes.double() - penalty * (over / buffer).clamp(0, 1)
