"""Specification, input and output of a learner: only data, so that a learner can run in another process.

UpdateBatch (groups, demonstrations) → Learner.update → UpdateResult (metrics, sizes of advantages)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whetstone.algorithms import LossTerm
from whetstone.chat import Chat
from whetstone.learning.credit_assignment import CreditParts
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
    """Returns an episode as the teacher reads it, with the same actions in other contexts; None: as the policy read
    it."""
    added: tuple[Callable[..., Any], ...] = ()
    """Functions that are declared as columns (`columns/declaration.py`), in addition to the built-in ones."""


@dataclass(frozen=True, slots=True)
class LearningSpec:
    """Specification of how a policy is trained on groups, the same for all updates of a stage."""

    settings: ReinforcementSettings
    """Optimizer, epochs and minibatches."""
    credit: CreditParts
    """Functions that compute advantages."""
    terms: tuple[LossTerm, ...]
    """Loss terms, the objective first; see `loss_terms.py`."""
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    """Weights of tokens in the loss of an update."""
    critic: CriticSettings | None = None
    """Settings of the critics; None: there are none."""
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    seed: int = 0
    """Random seed of the run."""
    column_sources: ColumnSources = field(default_factory=ColumnSources)
    """Sources of columns in addition to trajectories and models."""

    @property
    def objective(self) -> Callable[..., Any]:
        """Function of the first loss term: columns → `TokenLoss`, or sums → `SumLoss`."""
        return self.terms[0].function


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    """Data of one training step, the argument of `Learner.update`."""

    groups: tuple[Group, ...]
    """Groups of the step."""
    demonstrations: tuple[Segment, ...] = ()
    """Segments to imitate in the same updates."""
    version: int | None = None
    """Policy version of the current weights. Tokens sampled with it measure the mismatch of sampler and learner, older
    ones the staleness of the policy; None: all tokens are of this version."""
    budget_share: float = 0.0
    """Fraction of the stage's budget that is used, from 0 to 1; schedules follow it."""
    for_critic: tuple[Group, ...] = ()
    """Stored groups on which only the critics are trained; see `reinforcement.offline_mixture`."""
    minibatches: int | None = None
    """Number of updates, each on a part of the groups; None: the recipe's setting."""
    outer_rate: float = 1.0
    """Fraction of the weight change by all updates of the step that is applied, above 0 and at most 1."""
    recorded_advantages: bool = False
    """Whether advantages are the part `advantage` of the trajectories' scores instead of an estimate. The step then has
    one epoch with one minibatch."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Result of `Learner.update` and `Learner.imitate`."""

    metrics: dict[str, float]
    """Metrics of the step, by name."""
    advantages: Mapping[str, float] = field(default_factory=dict)
    """Mean absolute advantage by trajectory id, before loss weights are applied."""
