"""What may a strategy, or a part around it, have beside what its place asks for? Each is a small protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from whetstone.contracts import fulfils
from whetstone.environments.protocol import Seats
from whetstone.rewards.protocol import Provides
from whetstone.rollout.protocol import ContextTransform, Stateful
from whetstone.tasks.protocol import Source
from whetstone.tools.protocol import Closes, DeclaresProvenance
from whetstone.trajectory import Group


@runtime_checkable
class Measures(Protocol):
    """A part with something to say of itself."""

    def metrics(self) -> Mapping[str, float]:
        """Numbers by name; asked behind each update, and shown under the part's own name."""
        ...


@runtime_checkable
class TrainsModel(Protocol):
    """A part whose `observe` trains a model."""

    trains_model: bool
    """True: `observe` is called in the compute thread, while the event loop serves the running episodes."""


@runtime_checkable
class ChecksSource(Protocol):
    """A part that can tell before any episode whether it can do with the tasks there are."""

    def check(self, source: Source, first: int) -> None:
        """Look; `first` is the first task it may choose.

        Raises:
            TaskError: It cannot; the message says why.
        """
        ...


@runtime_checkable
class KeyedBy(Protocol):
    """A part that tells tasks apart by a key of theirs, which they then have to have."""

    by: str


@runtime_checkable
class AtEvaluation(Protocol):
    """A view, stop, rewrite or partner that says whether it belongs to the agent; what says nothing is for training."""

    at_evaluation: bool
    """True where it is there when the policy is evaluated, too."""


@runtime_checkable
class EvaluatedAs(Protocol):
    """A view that is another one when the policy is evaluated."""

    evaluated: ContextTransform


@runtime_checkable
class ByTiming(Protocol):
    """A stop that says whether it depends on which of a group's episodes is faster."""

    by_timing: bool
    """True is refused where a run has to be deterministic."""


@runtime_checkable
class StatelessOnly(Protocol):
    """A rewrite that says whether it takes calls back."""

    stateless_only: bool
    """True is refused where the world remembers them."""


@runtime_checkable
class LearnsAgain(Protocol):
    """An injection that has stored groups learned from in a second pass."""

    def again(self, update: int, draw: Random, /) -> Sequence[Group]:
        """Those for behind this update, counted from 0; none where there are none."""
        ...


@runtime_checkable
class KeepsDrawn(Protocol):
    """A component that stores trajectories of the policy; another run can load its state (`init_state_from`)."""

    def forget_versions(self) -> None:
        """What was drawn so far was drawn by weights that have no number here: it is older than every version."""
        ...


@runtime_checkable
class FrozenSeats(Protocol):
    """A strategy that puts other models into seats."""

    frozen: Mapping[str, str] | None
    """By seat, the folder of the model that sits there, or its name among the recipe's `models`."""


@runtime_checkable
class MemberSeats(Protocol):
    """A strategy whose seats are played by members of `policies`."""

    roles: Sequence[str]
    """The seats."""
    members: Mapping[str, str] | None
    """Member that plays a seat, by role; None: the one with the name of the role."""


@runtime_checkable
class ReadsEntropies(Protocol):
    """A strategy that decides by the sampler's entropies."""

    reads_entropies: bool
    """True is refused with an engine that gives none."""


@runtime_checkable
class Sized(Protocol):
    """A strategy that makes groups of a size."""

    group_size: int
    """How many trajectories a group usually has."""


OPTIONAL = (
    Stateful, TrainsModel, Measures, ChecksSource, KeyedBy, AtEvaluation, EvaluatedAs, ByTiming, StatelessOnly,
    LearnsAgain, KeepsDrawn, FrozenSeats, MemberSeats, ReadsEntropies, Sized, Seats, Provides, Closes,
    DeclaresProvenance,
)  # fmt: skip
"""What a strategy, a curriculum, or any part around them may have."""


KINDS = (
    "strategy", "curriculum", "allocation", "start", "context transform", "stop", "rewrite", "environment wrapper",
    "replay", "trajectory filter", "dynamic sampling", "group source",
)  # fmt: skip
"""What parts of rollout are called in messages."""


def forks(strategy: object) -> bool:
    """Whether a strategy begins episodes in the middle of others; it says so by what it `provides`."""
    return "forks" in provided(strategy)


def provided(strategy: object) -> frozenset[str]:
    """What the trajectories of a strategy carry besides, by its own word."""
    return frozenset(strategy.provides) if fulfils(strategy, Provides) else frozenset()
