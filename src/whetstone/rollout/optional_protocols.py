"""Optional protocols of strategies, curricula and the components around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from whetstone.capabilities import implements_protocol
from whetstone.environments.protocol import Seats
from whetstone.rewards.protocol import Provides
from whetstone.rollout.protocol import ContextTransform, Stateful
from whetstone.tasks.protocol import Source
from whetstone.tools.protocol import DeclaresProvenance, HasClose
from whetstone.trajectory import Group


@runtime_checkable
class ReportsMetrics(Protocol):
    """Rollout component that reports its own metrics."""

    def metrics(self) -> Mapping[str, float]:
        """Return metric values by name; called after each update and logged with the component's name as prefix."""
        ...


@runtime_checkable
class TrainsModel(Protocol):
    """Rollout component whose `observe` trains a model."""

    trains_model: bool
    """Whether `observe` is called in the compute thread, so that the event loop continues to serve running episodes."""


@runtime_checkable
class ChecksSource(Protocol):
    """Rollout component that checks before the first episode whether it supports the tasks of a source."""

    def check(self, source: Source, first: int) -> None:
        """Check the tasks of a source before the first episode.

        Args:
            source: Task source of the run.
            first: Index of the first task that may be sampled.

        Raises:
            TaskError: If the tasks are not supported; the message has the reason.
        """
        ...


@runtime_checkable
class KeyedBy(Protocol):
    """Rollout component that groups tasks by a key, which every task must have."""

    by: str
    """Key of a task: `task` for its id, or the name of a tag."""


@runtime_checkable
class AtEvaluation(Protocol):
    """Component that declares whether evaluations use it; others are used only in training."""

    at_evaluation: bool
    """Whether the component is also used when the policy is evaluated."""


@runtime_checkable
class EvaluatedAs(Protocol):
    """Context transform that is replaced by another one when the policy is evaluated."""

    evaluated: ContextTransform
    """Context transform that evaluations use instead."""


@runtime_checkable
class TimingDependent(Protocol):
    """Early-stopping component that declares whether it depends on the relative speed of a group's episodes."""

    by_timing: bool
    """Whether the decision depends on timing; True is refused if the run must be deterministic."""


@runtime_checkable
class StatelessOnly(Protocol):
    """Context rewrite that declares whether it undoes tool calls."""

    stateless_only: bool
    """Whether a stateless environment is required; True is refused if calls change the environment's state."""


@runtime_checkable
class SecondPass(Protocol):
    """Replay component whose stored groups are trained in a second pass after an update."""

    def second_pass_groups(self, update: int, draw: Random, /) -> Sequence[Group]:
        """Return the groups to train in a second pass; empty if there is none.

        Args:
            update: Index of the last update, from 0.
        """
        ...


@runtime_checkable
class StoresTrajectories(Protocol):
    """Component that stores trajectories of the policy; another run can load its state (`init_state_from`)."""

    def forget_versions(self) -> None:
        """Mark the stored trajectories as older than every version of this run, after they were loaded from another
        run.
        """
        ...


@runtime_checkable
class FrozenSeats(Protocol):
    """Strategy in which frozen models play roles of a game."""

    frozen: Mapping[str, str] | None
    """Model that plays a role, by role: a model folder, or a name in the recipe's `models`; None: no frozen role."""


@runtime_checkable
class MemberSeats(Protocol):
    """Strategy whose roles are played by members of `policies`."""

    roles: Sequence[str]
    """Names of the roles."""
    members: Mapping[str, str] | None
    """Name of the member that plays a role, by role; None: each role is played by the member with the same name."""


@runtime_checkable
class ReadsEntropies(Protocol):
    """Strategy that reads the entropies of the sampler's distributions."""

    reads_entropies: bool
    """Whether entropies are required; True is refused with an engine that returns none."""


@runtime_checkable
class HasGroupSize(Protocol):
    """Strategy with a default group size."""

    group_size: int
    """Default number of trajectories per group."""


OPTIONAL = (
    Stateful, TrainsModel, ReportsMetrics, ChecksSource, KeyedBy, AtEvaluation, EvaluatedAs, TimingDependent,
    StatelessOnly, SecondPass, StoresTrajectories, FrozenSeats, MemberSeats, ReadsEntropies, HasGroupSize, Seats,
    Provides, HasClose, DeclaresProvenance,
)  # fmt: skip
"""Optional protocols of strategies, curricula and rollout components; `plugins.find_part` checks components against
them."""


KINDS = (
    "strategy", "curriculum", "allocation", "start", "context transform", "stop", "rewrite", "environment wrapper",
    "action mask", "replay", "trajectory filter", "dynamic sampling", "group source",
)  # fmt: skip
"""Names of the kinds of rollout components, as messages print them."""


def can_fork(strategy: object) -> bool:
    """Return whether a strategy forks episodes, as its `provides` declares."""
    return "forks" in provided_data(strategy)


def provided_data(strategy: object) -> frozenset[str]:
    """Return the names of the additional data that a strategy adds to trajectories, such as `forks`.

    They are those in its attribute `provides`; without the attribute, there are none.
    """
    return frozenset(strategy.provides) if implements_protocol(strategy, Provides) else frozenset()
