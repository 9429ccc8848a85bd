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
    """A component that reports metrics of itself."""

    def metrics(self) -> Mapping[str, float]:
        """Return values by name; called after each update, and logged under the component's name."""
        ...


@runtime_checkable
class TrainsModel(Protocol):
    """A component whose `observe` trains a model."""

    trains_model: bool
    """True: `observe` is called in the compute thread, while the event loop serves the running episodes."""


@runtime_checkable
class ChecksSource(Protocol):
    """A component that can check before any episode whether it supports the tasks of a source."""

    def check(self, source: Source, first: int) -> None:
        """Check the tasks; `first` is the first task that may be selected.

        Raises:
            TaskError: If they are not supported; the message has the reason.
        """
        ...


@runtime_checkable
class KeyedBy(Protocol):
    """A component that distinguishes tasks by a key, which every task must have."""

    by: str


@runtime_checkable
class AtEvaluation(Protocol):
    """A transform, stop, rewrite or wrapper that defines whether it belongs to the agent; default: only to training."""

    at_evaluation: bool
    """True if it is also used when the policy is evaluated."""


@runtime_checkable
class EvaluatedAs(Protocol):
    """A context transform that is replaced by another one when the policy is evaluated."""

    evaluated: ContextTransform


@runtime_checkable
class TimingDependent(Protocol):
    """A stop that declares whether it depends on the relative speed of a group's episodes."""

    by_timing: bool
    """True is refused if a run must be deterministic."""


@runtime_checkable
class StatelessOnly(Protocol):
    """A rewrite that declares whether it takes calls back."""

    stateless_only: bool
    """True is refused if the environment has a state that the calls change."""


@runtime_checkable
class SecondPass(Protocol):
    """A replay component whose stored groups are trained in a second pass."""

    def second_pass_groups(self, update: int, draw: Random, /) -> Sequence[Group]:
        """Return the groups to train after this update, counted from 0; empty if there are none."""
        ...


@runtime_checkable
class StoresTrajectories(Protocol):
    """A component that stores trajectories of the policy; another run can load its state (`init_state_from`)."""

    def forget_versions(self) -> None:
        """Mark the stored trajectories as older than every version: their weights have no version in this run."""
        ...


@runtime_checkable
class FrozenSeats(Protocol):
    """A strategy in which other models play roles."""

    frozen: Mapping[str, str] | None
    """By role, the folder of the model that plays it, or its name in the recipe's `models`."""


@runtime_checkable
class MemberSeats(Protocol):
    """A strategy whose roles are played by members of `policies`."""

    roles: Sequence[str]
    """Names of the roles."""
    members: Mapping[str, str] | None
    """Member that plays a role, by role; None: the member with the name of the role."""


@runtime_checkable
class ReadsEntropies(Protocol):
    """A strategy that reads the sampler's entropies."""

    reads_entropies: bool
    """True is refused with an engine that returns no entropies."""


@runtime_checkable
class HasGroupSize(Protocol):
    """A strategy with a group size."""

    group_size: int
    """Default number of trajectories of a group."""


OPTIONAL = (
    Stateful, TrainsModel, ReportsMetrics, ChecksSource, KeyedBy, AtEvaluation, EvaluatedAs, TimingDependent,
    StatelessOnly, SecondPass, StoresTrajectories, FrozenSeats, MemberSeats, ReadsEntropies, HasGroupSize, Seats,
    Provides, HasClose, DeclaresProvenance,
)  # fmt: skip
"""Optional protocols of strategies, curricula and the components around them."""


KINDS = (
    "strategy", "curriculum", "allocation", "start", "context transform", "stop", "rewrite", "environment wrapper",
    "replay", "trajectory filter", "dynamic sampling", "group source",
)  # fmt: skip
"""Names of the kinds of rollout components in messages."""


def can_fork(strategy: object) -> bool:
    """Return whether a strategy forks episodes, as its `provides` declares."""
    return "forks" in provided_data(strategy)


def provided_data(strategy: object) -> frozenset[str]:
    """Return the additional data of a strategy's trajectories, as its `provides` declares."""
    return frozenset(strategy.provides) if implements_protocol(strategy, Provides) else frozenset()
