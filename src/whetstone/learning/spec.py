"""What does a learner have to know, and what comes in and out of it? Data alone, so that it can sit in another process.

UpdateBatch (groups, demonstrations) → Learner.update → UpdateResult (metrics, sizes of advantages)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whetstone.chat import Chat
from whetstone.learning.credit import CreditParts
from whetstone.recipe import AggregationSettings, CriticSettings, ReinforcementSettings
from whetstone.trajectory import Group, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True)
class LearningSpec:
    """How a policy learns from groups; the same for all updates of a stage."""

    settings: ReinforcementSettings
    """Optimiser, epochs, minibatches, and what is added to the objective."""
    credit: CreditParts
    """What advantages are made of."""
    objective: Callable[..., Any]
    """Columns of its parameters' names, each [T] → TokenLoss; or sums [S] → SumLoss."""
    correction: Callable[..., Any] | None = None
    """Columns of its parameters' names, each [T] → [T] weights."""
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    critic: CriticSettings | None = None
    temperature: float = 1.0
    """What the sampler divided its logits by."""
    seed: int = 0
    roles: str | None = None
    """The task tag that names the role a trajectory is played in; None: the seat alone."""
    chat: Chat | None = None
    """Writes gold answers as tokens, for columns that ask how likely they are."""
    teacher_reads: Callable[[Trajectory, Task], Trajectory] | None = None
    """An episode as the teacher reads it, the same actions in other contexts; None: as the policy did."""
    columns: tuple[Callable[..., Any], ...] = ()
    """Functions declared as columns (`columns/declaration.py`), beside the built-in ones."""


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
