"""Bandit curriculum over kinds of tasks: prefers kinds with large advantages, or with few samples (UCB).

Note:
    Advantages that are scaled per group are near 1 in every mixed group, so kinds differ by the fraction of groups that
    are not mixed. The advantage of a masked trajectory counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from whetstone.plugins import OptionError
from whetstone.tasks.curricula.sample_task import get_tag, sample_task
from whetstone.tasks.protocol import Source

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def upper_bounds(learnability: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Compute upper confidence bounds of the learnability of kinds of tasks (UCB).

        U_j = L_j + sqrt(2 ln(N + 1) / (n_j + 1)),    N = Σ n

    Args:
        learnability: L, the mean absolute advantage of each kind.
        counts: n, the number of samples of each kind.

    Source: DUMP 2025, arXiv:2504.09710, and its code.
    """
    total = sum(counts)
    return [
        value + math.sqrt(2 * math.log(total + 1) / (count + 1))
        for value, count in zip(learnability, counts, strict=True)
    ]


def softmax_weights(bounds: Sequence[float], temperature: float) -> list[float]:
    """Compute sampling probabilities from bounds: softmax(U / τ).

    Args:
        bounds: U, the upper confidence bound of each kind.
        temperature: τ, above 0.

    Source: DUMP 2025, arXiv:2504.09710, and its code.
    """
    most = max(bounds)
    raised = [math.exp((bound - most) / temperature) for bound in bounds]
    return [each / sum(raised) for each in raised]


class UpperBound:
    """Curriculum that samples kinds of tasks by upper confidence bounds (DUMP).

    The bound is that of the kind's learnability, its mean absolute advantage. An infinite temperature samples
    uniformly.

    Source: DUMP 2025, arXiv:2504.09710, and its code (`curriculum_learning.py`).

    Args:
        kinds: Values of the tag; each can be sampled.
        by: Name of the tag.
        temperature: τ; the published 0.1 is nearly greedy if bounds differ by 0.3.
        window: Number of samples per kind whose advantages are stored.
    """

    def __init__(self, *, kinds: Sequence[str], by: str = "kind", temperature: float = 0.1, window: int = 300) -> None:
        if not kinds:
            raise OptionError("kinds", "set one or more values of the tag")
        if temperature <= 0:
            raise OptionError("temperature", f"must be above 0, got {temperature:g}")
        self.kinds, self.by, self.temperature, self.window = list(map(str, kinds)), by, temperature, window
        self.sizes: dict[str, deque[float]] = {kind: deque(maxlen=window) for kind in self.kinds}
        self.counts = dict.fromkeys(self.kinds, 0)

    @property
    def kind_weights(self) -> dict[str, float]:
        """Return the sampling probability of each kind; uniform before the first sample."""
        if not any(self.counts.values()):
            return dict.fromkeys(self.kinds, 1 / len(self.kinds))
        learnability = [sum(sizes) / len(sizes) if sizes else 0.0 for sizes in self.sizes.values()]
        bounds = upper_bounds(learnability, list(self.counts.values()))
        return dict(zip(self.kinds, softmax_weights(bounds, self.temperature), strict=True))

    def check(self, source: Source, first: int) -> None:
        """Check that the source has tasks of every kind.

        Raises:
            TaskError: If there are none of a kind.
        """
        for kind in self.kinds:
            sample_task(source, first, Random(kind), self.by, kind)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """Return the index of a task of a sampled kind; see `Curriculum`."""
        weights = self.kind_weights
        (kind,) = draw.choices(list(weights), list(weights.values()))
        return sample_task(source, first, draw, self.by, kind)

    def observe(self, outcome: StepOutcome, /) -> None:
        """Record the advantages of the sampled trajectories of a step; see `Stateful`."""
        for group in outcome.groups:
            kind = get_tag(group.task, self.by)
            if kind not in self.sizes:
                continue
            for trajectory in group.counted:
                if trajectory.provenance.is_fresh and "started_later" not in trajectory.marks:
                    self.sizes[kind].append(outcome.advantages.get(trajectory.id, 0.0))
                    self.counts[kind] += 1

    def state(self) -> dict[str, Any]:
        """Return the stored advantages and counts for a checkpoint; see `Stateful`."""
        return {"sizes": {kind: list(sizes) for kind, sizes in self.sizes.items()}, "counts": self.counts}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stored advantages and counts of a checkpoint; see `Stateful`."""
        for kind in self.kinds:
            self.sizes[kind] = deque(state["sizes"].get(kind, ()), maxlen=self.window)
            self.counts[kind] = state["counts"].get(kind, 0)

    def metrics(self) -> dict[str, float]:
        """Return the sampling probability of each kind as `weight_KIND`."""
        return {f"weight_{kind}": weight for kind, weight in self.kind_weights.items()}
