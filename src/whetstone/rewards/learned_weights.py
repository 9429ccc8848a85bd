"""Weights of auxiliary reward terms, learned from the primary outcome by regression within groups.

Note: Only groups whose primary outcomes differ count. While all episodes fail, auxiliary terms keep their full weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_SWEEPS = 200
_EPSILON = 1e-12


class LearnedWeights:
    """Factors in [0, 1] of reward terms; a term that does not go with the primary outcome is switched off.

        minimize over 0 ≤ β ≤ 1:   Σ_i (y_i − Σ_k β_k x_ik)² + prior · Σ_k (β_k − 1)²

    y is the primary outcome and x_k a term, as deviations from the mean of the group, scaled to unit variance over all
    groups. Without evidence every factor is 1; redundant terms share their effect.

    Args:
        names: Names of the terms.
        prior: Number of episodes that outweigh the initial factors.
        decay: Factor of the evidence of earlier steps, in (0, 1].

    Raises:
        ValueError: If `prior` or `decay` is out of range.

    Source: BARFI 2023, arXiv:2310.19007, with a regression in place of its bi-level optimization.
    """

    def __init__(self, names: Sequence[str], *, prior: float = 16.0, decay: float = 0.95) -> None:
        if not prior > 0 or not 0 < decay <= 1:
            raise ValueError(f"prior must be above 0 and decay in (0, 1], got {prior:g} and {decay:g}")
        self.names, self.prior, self.decay = tuple(names), prior, decay
        self.factors: dict[str, float] = dict.fromkeys(names, 1.0)
        """Factor of each term."""
        size = len(self.names) + 1
        self._moments = [[0.0] * size for _ in range(size)]
        """Decayed sums of products of deviations; the last row and column are the primary outcome."""
        self._count = 0.0

    def observe_groups(self, groups: Sequence[Sequence[Sequence[float]]]) -> None:
        """Add the episodes of one step and solve the regression.

        Args:
            groups: For each group and episode, the values of the terms and, last, the primary outcome.
        """
        self._count *= self.decay
        self._moments = [[self.decay * value for value in row] for row in self._moments]
        for group in groups:
            if len({row[-1] for row in group}) < 2:
                continue
            means = [math.fsum(column) / len(group) for column in zip(*group, strict=True)]
            for row in group:
                deviations = [value - mean for value, mean in zip(row, means, strict=True)]
                for a, x in enumerate(deviations):
                    for b, y in enumerate(deviations):
                        self._moments[a][b] += x * y
            self._count += len(group)
        if self._count:
            self.factors = dict(zip(self.names, self._solve(), strict=True))

    def _solve(self) -> list[float]:
        """Minimize the objective by coordinate descent; it is strictly convex."""
        size = len(self.names)
        scale = [math.sqrt(self._moments[k][k]) for k in range(size + 1)]
        correlations = [
            [
                self._moments[a][b] / (scale[a] * scale[b]) if scale[a] * scale[b] > _EPSILON else 0.0
                for b in range(size + 1)
            ]
            for a in range(size)
        ]
        factors = [1.0] * size
        for _ in range(_SWEEPS):
            for k, row in enumerate(correlations):
                others = math.fsum(row[j] * factors[j] for j in range(size) if j != k)
                best = (self._count * (row[size] - others) + self.prior) / (self._count * row[k] + self.prior)
                factors[k] = min(1.0, max(0.0, best))
        return factors

    def dump_state(self) -> dict[str, Any]:
        """Return the evidence and the factors as JSON values."""
        return {"names": list(self.names), "moments": self._moments, "count": self._count, "factors": self.factors}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `dump_state`; the state of other terms is ignored."""
        if list(state["names"]) == list(self.names):
            self._moments = [list(row) for row in state["moments"]]
            self._count, self.factors = state["count"], dict(state["factors"])
