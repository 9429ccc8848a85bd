"""What does a learner have to know, and what comes in and out of it? Data alone, so that it can sit in another process.

UpdateBatch (groups, demonstrations) → Learner.update → UpdateResult (metrics, sizes of advantages)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whetstone.algorithms import LossTerm
from whetstone.chat import Chat
from whetstone.learning.credit import CreditParts
from whetstone.recipe import AggregationSettings, CriticSettings, ReinforcementSettings
from whetstone.trajectory import Group, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True)
class ColumnSources:
    """Sources of columns in addition to the trajectories and the models of the learner."""

    roles: str | None = None
    """Task tag with the role in which a trajectory is played; None: only the seat."""
    chat: Chat | None = None
    """Renders gold answers as tokens, for columns of their likelihood."""
    teacher_reads: Callable[[Trajectory, Task], Trajectory] | None = None
    """An episode as the teacher reads it, the same actions in other contexts; None: as the policy did."""
    added: tuple[Callable[..., Any], ...] = ()
    """Functions that are declared as columns (`columns/declaration.py`), in addition to the built-in ones."""


@dataclass(frozen=True, slots=True)
class LearningSpec:
    """How a policy is trained on groups; the same for all updates of a stage."""

    settings: ReinforcementSettings
    """Optimizer, epochs and minibatches."""
    credit: CreditParts
    """Functions that compute advantages."""
    terms: tuple[LossTerm, ...]
    """The loss, its objective first; see `loss_terms.py`."""
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    critic: CriticSettings | None = None
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    seed: int = 0
    column_sources: ColumnSources = field(default_factory=ColumnSources)

    @property
    def objective(self) -> Callable[..., Any]:
        """Return the function of the first term: columns → TokenLoss, or sums → SumLoss."""
        return self.terms[0].function


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    """What one step learns from."""

    groups: tuple[Group, ...]
    demonstrations: tuple[Segment, ...] = ()
    """Imitated in the same updates."""
    version: int | None = None
    """Of the weights there are. Tokens drawn under it tell how far sampler and learner disagree, older ones how far
    the policy has moved since; None: all are of this one."""
    budget_share: float = 0.0
    """How much of what the stage may spend is spent, from 0 to 1; schedules follow it."""
    for_critic: tuple[Group, ...] = ()
    """Stored groups on which only the critics are trained; see `reinforcement.offline_mixture`."""
    minibatches: int | None = None
    """Updates to make, each with its share of the groups; None: as the recipe says."""
    outer_rate: float = 1.0
    """How far weights go from where they were toward where all of its updates led them, above 0 and at most 1."""
    recorded_advantages: bool = False
    """Whether advantages are the part `advantage` of the trajectories' scores, and nothing is estimated; then one
    epoch is made, of one minibatch."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What came of a step."""

    metrics: dict[str, float]
    advantages: Mapping[str, float] = field(default_factory=dict)
    """By trajectory, the mean size of its advantages before anything was masked."""
