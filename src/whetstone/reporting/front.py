"""Who is worth his price? Cost and quality of each, and the front of those nobody beats in both.

Easy to get wrong: means over seeds lie on the front, single seeds beside it; and who costs nothing is on it however
little he solves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whetstone.reporting import charts

Points = Sequence[tuple[float, float]]
"""(cost of an episode, share solved), one for each seed."""


def front_of(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of those nobody beats, the cheapest first: nobody costs no more and solves more, or costs less and solves
    no less.

    >>> front_of({"small": (1.0, 0.4), "large": (16.0, 0.9), "wasteful": (20.0, 0.9)})
    ['small', 'large']
    """

    def beaten(cost: float, solved: float) -> bool:
        others = points.values()
        return any(c <= cost and s >= solved and (c, s) != (cost, solved) for c, s in others)

    return sorted((name for name, point in points.items() if not beaten(*point)), key=lambda name: points[name])


def front_chart(runs: Mapping[str, Points]) -> str:
    """Cost against quality as an `<svg>` element: small marks for seeds, large ones for their mean, and a line through
    the front; empty where nobody has a cost.

    Args:
        runs: By name; one without a point is left out.
    """
    there = {name: points for name, points in runs.items() if points}
    if not any(cost > 0 for points in there.values() for cost, _ in points):
        return ""
    means = {
        name: (sum(cost for cost, _ in points) / len(points), sum(solved for _, solved in points) / len(points))
        for name, points in there.items()
    }
    return charts.scatter(there, means, line=[means[name] for name in front_of(means)], x_label="cost of an episode")
