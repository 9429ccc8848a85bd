"""Pareto front of cost and success.

Note:
    The front goes through the means over seeds; single seeds can be off it. A run without cost is always on the front,
    even if it solves little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whetstone.reporting import charts

Points = Sequence[tuple[float, float]]
"""(cost of an episode, success fraction), one per seed."""


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names on the Pareto front, the cheapest first.

    A point is on the front if no other costs at most as much and solves at least as much.

    >>> pareto_front({"small": (1.0, 0.4), "large": (16.0, 0.9), "wasteful": (20.0, 0.9)})
    ['small', 'large']
    """

    def beaten(cost: float, solved: float) -> bool:
        others = points.values()
        return any(c <= cost and s >= solved and (c, s) != (cost, solved) for c, s in others)

    return sorted((name for name, point in points.items() if not beaten(*point)), key=lambda name: points[name])


def front_chart(runs: Mapping[str, Points]) -> str:
    """Plot cost against success with the Pareto front, as an `<svg>` element.

    Seeds are small marks, means are large marks, and the front is a line. The result is empty if no run has a cost.

    Args:
        runs: Points by name; a run without points is skipped.
    """
    measured = {name: points for name, points in runs.items() if points}
    if not any(cost > 0 for points in measured.values() for cost, _ in points):
        return ""
    means = {
        name: (sum(cost for cost, _ in points) / len(points), sum(solved for _, solved in points) / len(points))
        for name, points in measured.items()
    }
    return charts.plot_scatter(
        measured, means, line=[means[name] for name in pareto_front(means)], x_label="cost of an episode"
    )
