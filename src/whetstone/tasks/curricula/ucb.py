"""Which kind of task teaches most now? One whose advantages are large, or that was seldom tried.

Easy to get wrong: advantages scaled to groups are near 1 wherever a group is mixed, so kinds differ by how many of
their groups are not; and that of a masked trajectory counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from whetstone.plugins import OptionError
from whetstone.tasks.curricula.drawing import drawn, tag_of
from whetstone.tasks.protocol import Source

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def upper_bounds(learnability: Sequence[float], counts: Sequence[int]) -> list[float]:
    """U_j = L_j + sqrt(2 ln(N + 1) / (n_j + 1)), N = Σ n.

    Source: DUMP 2025, arXiv:2504.09710, and its code.
    """
    total = sum(counts)
    return [
        value + math.sqrt(2 * math.log(total + 1) / (count + 1))
        for value, count in zip(learnability, counts, strict=True)
    ]


def weights_of(bounds: Sequence[float], temperature: float) -> list[float]:
    """softmax(U / τ).

    Source: DUMP 2025, arXiv:2504.09710, and its code.
    """
    most = max(bounds)
    raised = [math.exp((bound - most) / temperature) for bound in bounds]
    return [each / sum(raised) for each in raised]


class UpperBound:
    """Kinds of task drawn by the upper bound of what they teach (DUMP). A temperature without end draws evenly.

    Source: DUMP 2025, arXiv:2504.09710, and its code (`curriculum_learning.py`).

    Args:
        kinds: Values of the tag; each can be drawn.
        by: The tag.
        temperature: τ; the published 0.1 is nearly greedy where bounds differ by 0.3.
        window: Samples whose advantages are remembered of each kind.
    """

    def __init__(self, *, kinds: Sequence[str], by: str = "kind", temperature: float = 0.1, window: int = 300) -> None:
        if not kinds:
            raise OptionError("kinds", "the values of the tag, one or more")
        if temperature <= 0:
            raise OptionError("temperature", f"above 0, got {temperature:g}")
        self.kinds, self.by, self.temperature, self.window = list(map(str, kinds)), by, temperature, window
        self.sizes: dict[str, deque[float]] = {kind: deque(maxlen=window) for kind in self.kinds}
        self.counts = dict.fromkeys(self.kinds, 0)

    @property
    def weights(self) -> dict[str, float]:
        """How likely each kind is; even before anything was heard."""
        if not any(self.counts.values()):
            return dict.fromkeys(self.kinds, 1 / len(self.kinds))
        learnability = [sum(sizes) / len(sizes) if sizes else 0.0 for sizes in self.sizes.values()]
        bounds = upper_bounds(learnability, list(self.counts.values()))
        return dict(zip(self.kinds, weights_of(bounds, self.temperature), strict=True))

    def check(self, source: Source, first: int) -> None:
        """Whether there are tasks of every kind.

        Raises:
            TaskError: Of one there are none.
        """
        for kind in self.kinds:
            drawn(source, first, Random(kind), self.by, kind)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """See `Curriculum`."""
        weights = self.weights
        (kind,) = draw.choices(list(weights), list(weights.values()))
        return drawn(source, first, draw, self.by, kind)

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        for group in heard.groups:
            kind = tag_of(group.task, self.by)
            if kind not in self.sizes:
                continue
            for trajectory in group.counted:
                if trajectory.provenance.is_fresh and "started_later" not in trajectory.marks:
                    self.sizes[kind].append(heard.advantages.get(trajectory.id, 0.0))
                    self.counts[kind] += 1

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"sizes": {kind: list(sizes) for kind, sizes in self.sizes.items()}, "counts": self.counts}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        for kind in self.kinds:
            self.sizes[kind] = deque(state["sizes"].get(kind, ()), maxlen=self.window)
            self.counts[kind] = state["counts"].get(kind, 0)

    def metrics(self) -> dict[str, float]:
        """How likely each kind is."""
        return {f"weight_{kind}": weight for kind, weight in self.weights.items()}
