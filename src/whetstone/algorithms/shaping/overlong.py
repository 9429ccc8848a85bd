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
        lengths: [N] n, action tokens; observations are not the policy's doing.
        limit: Tokens at which the whole penalty is due.
        buffer: Tokens below it over which the penalty grows.
        penalty: p. DAPO's rewards are ±1; for 0 and 1 half of it has the same force.

    Raises:
        ValueError: The buffer is not in (0, limit].

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer must be above 0 and at most limit ({limit}), got {buffer}")
    over = lengths.double() - (limit - buffer)
    return outcomes.double() - penalty * (over / buffer).clamp(0, 1)
