"""Interfaces of rollouts: actors, strategies, and the primitives that methods are composed of.

    allocate → start → view → { sample, fork with stop, partner, view of each turn } → score → rewrite
    → inject → select → refill → (advantage, update) → observe

The recipe names a component for each primitive that a method uses. A component returns its state in `state`, and the
checkpoint contains it. `optional_protocols.py` has the optional members of components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol, runtime_checkable

from whetstone.chat import Context, Message, ToolSpec
from whetstone.environments.protocol import Environment
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, CallRecord, Group, OffPolicy, Task, Tokens, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Action:
    """Output of an actor in one turn."""

    tokens: Tokens
    complete: bool = True
    """Whether the actor ended the turn, rather than a limit."""
    queue_seconds: float = 0.0
    message: Message | None = None
    """Message of an actor that produces messages; None: parsed from the tokens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A group to sample."""

    task: Task
    seed: int
    """Random seed; the task's id, the index of a sample and this seed determine the sampling of that sample."""
    number: int = 0
    """Index among the groups of a run, in the order of their start."""
    name: str = ""
    """Prefix of the ids of its trajectories, so that ids differ between groups."""
    step: int = 0
    """Updates made when the group was planned."""
    chosen: int | Task = 0
    """Index of the task in the source, or the generated task."""


NOTHING = Tokens.from_ids((), Author.INSERTED)
"""No tokens."""


@dataclass(frozen=True, slots=True)
class ActorInput:
    """Input of an actor for one turn."""

    task: Task
    context: Context
    conversation: Sequence[Message]
    tools: Sequence[ToolSpec]
    episode: str
    turn: int
    seed: int
    greedy: bool = False
    """Whether the action is decoded greedily."""
    prefix: Tokens = NOTHING
    """Tokens that the action starts with."""
    sampled_spans: tuple[tuple[int, int], ...] = ()
    """Spans [from, to) of `context` followed by `prefix` that were sampled for this actor, not given."""


class Actor(Protocol):
    """Component that produces the actions of an episode: the policy in training, an expert or another model."""

    async def act(self, moment: ActorInput) -> Action:
        """Return the action of one turn."""
        ...

    def leave(self, episode: str) -> None:
        """Release data that the actor stores for an episode that has ended."""
        ...


@runtime_checkable
class HasOwner(Protocol):
    """An actor with a name for messages about waits; any other is `the actor`."""

    owner: str
    """Name of the component that is waited for, such as `the engine`."""


@runtime_checkable
class Probed(Protocol):
    """An actor with a health check."""

    async def is_answering(self) -> bool:
        """Return whether a small request is answered soon."""
        ...


class EpisodeRecord(Protocol):
    """Record of finished turns, so that an episode can resume after the process was killed."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """Return the recorded turns of an episode, each with its observation; none for a new one."""
        ...

    def add(self, episode: str, turn: Turn) -> None:
        """Record a finished turn with its observation."""
        ...

    def drop(self, episode: str) -> None:
        """Discard the turns of an episode, which is played again from its start."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Position of an episode in a run."""

    task: Task
    seed: int
    """Random seed of the group."""
    step: int = 0
    """Updates made when the group was planned; 0 in an evaluation."""
    index: int = 0
    """Index of the sample in its group."""
    group_size: int = 1

    def random(self, who: str, *where: int | str) -> Random:
        """Return a random generator for the component `who`; the same whenever the episode is played again."""
        return derive_random(self.seed, self.task.id, who, *where)


# ------------------------------------------------------------ sample, fork


@dataclass(frozen=True, slots=True)
class Splice:
    """Tokens that the first action of a fork starts with."""

    prefix: Tokens
    """Prefix of the parent's action at this turn."""
    inserted: Tokens
    """Tokens inserted after the prefix, with the author `Author.INSERTED`."""


class Running(Protocol):
    """A running episode."""

    async def turn(self, number: int) -> Turn | None:
        """Wait for a turn by its number, from 0, with its observation; None if the episode has fewer turns.

        The last turn of an episode is returned only once the episode has ended.
        """
        ...

    async def trajectory(self) -> Trajectory:
        """Wait for the trajectory of the whole episode, with its score."""
        ...


class Roller(Protocol):
    """Sampling interface of a strategy."""

    @property
    def occasion(self) -> EpisodeKey:
        """Return the key of the group."""
        ...

    @property
    def max_turns(self) -> int:
        """Return the maximum number of turns of an episode of the group."""
        ...

    def written(self, text: str) -> tuple[int, ...]:
        """Tokenize a text with the policy's tokenizer, such as one to splice."""
        ...

    def samples(self, usual: int) -> int:
        """Return the number of trajectories of the group: `usual`, unless the recipe allocates another one."""
        ...

    async def sample(
        self,
        task: Task,
        *,
        index: int,
        greedy: bool = False,
        view: ContextTransform | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int | None = 0,
    ) -> Trajectory:
        """Sample one whole episode of `task` and score it.

        `index` identifies the sample and determines its seed.

        Args:
            greedy: Decode greedily, for a baseline; the episode is not trained.
            view: Context transform in addition to those of the recipe.
            max_turns: Number of turns after which the episode pauses: it ends by `max_turns` and is not scored.
            seat: Role in a game of several players; empty: a game of one.
            table: Index of the game in the group; None: a separate game, whose other roles are scripted.
        """
        ...

    async def fork(
        self,
        task: Task,
        parent: Trajectory,
        *,
        turns: int,
        index: int,
        splice: Splice | None = None,
        max_turns: int | None = None,
    ) -> Trajectory:
        """Sample an episode that shares the first `turns` turns (the same objects) of its parent; scored."""
        ...

    def begin(self, task: Task, *, index: int, parent: Running | None = None, turns: int = 0) -> Running:
        """Start an episode as `sample` or `fork` do; its turns can be read while it runs.

        It runs whether it is awaited or not, and is cancelled when the group is closed.
        """
        ...

    def random(self, index: int) -> Random:
        """Return a random generator for decisions of a strategy about the sample of this index."""
        ...


class Strategy(Protocol):
    """Component that samples the trajectories of a group."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Return the group of `task`."""
        ...


# ------------------------------------------------------------ allocate, start, view, stop, rewrite, partner


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """Budget of a group; None: the value of the recipe."""

    group_size: int | None = None
    max_turns: int | None = None


class Allocation(Protocol):
    """Component that sets the budget of each group."""

    def __call__(self, occasion: EpisodeKey, /) -> GroupBudget:
        """Return the budget of a group that starts now."""
        ...


@dataclass(frozen=True, slots=True)
class StartPrefix:
    """Turns that precede an episode, and the environment that they were played in."""

    turns: tuple[Turn, ...]
    """Preceding turns. They are not trained: each token has the author environment or inserted."""
    environment_seed: int
    """Seed of that environment."""


class Start(Protocol):
    """Component that sets a common start state for the episodes of a group."""

    async def __call__(self, occasion: EpisodeKey, demonstrator: Demonstrator, /) -> StartPrefix | None:
        """Return the preceding turns; None: start from the reset state."""
        ...


class Demonstrator(Protocol):
    """Expert demonstrations for a start state."""

    async def demonstration(self, task: Task) -> tuple[Trajectory, int]:
        """Return an expert's episode of the task and the seed of its environment.

        Raises:
            RecipeError: If the source has no expert.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """State of a running episode that components can read."""

    occasion: EpisodeKey
    opening: tuple[Message, ...] = ()
    """Initial messages of the environment, untransformed."""
    turns: tuple[Turn, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    context_tokens: int = 0
    """Number of tokens in the model's context, including the last observation."""
    context_length: int = 0
    """Maximum number of tokens in the model's context."""
    max_turns: int = 0


class ContextTransform(Protocol):
    """Component that transforms the messages of the environment before the policy reads them."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Return the context that actions are trained on: `shown` (the one of sampling) or `original`
        (untransformed)."""
        ...

    @property
    def off_policy(self) -> OffPolicy:
        """Return the log-probs that ratios are computed against if the two contexts differ."""
        ...

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Transform the initial messages."""
        ...

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """Transform the messages after an action, which is the last turn of `so_far`."""
        ...


class Stop(Protocol):
    """Component that ends episodes early."""

    def __call__(self, so_far: EpisodeState, siblings: Siblings, /) -> bool:
        """Return whether to end the episode; called after each turn that does not end it."""
        ...


@dataclass(slots=True)
class Siblings:
    """Progress of the episodes of a group. It depends on their speed; a stop that reads it is `TimingDependent`."""

    running: dict[str, int] = field(default_factory=dict)
    """Number of turns of each running episode, by id."""
    ended: list[tuple[int, bool]] = field(default_factory=list)
    """(turns, whether solved) of each finished episode."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The rollout asks the policy a question; the next action responds to it and is not passed to the environment."""

    text: str
    drop: int = 0
    """Number of last turns that are removed before."""


@dataclass(frozen=True, slots=True)
class RestartContext:
    """The context of the next turn is replaced by these messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class PatchTurn:
    """The turns from a number on are replaced by one corrected turn."""

    turn: int
    """Number of the first turn that is replaced."""
    message: Message
    observation: tuple[Message, ...]
    calls: tuple[CallRecord, ...] = ()


Change = Ask | RestartContext | PatchTurn


class Rewrite(Protocol):
    """Component that rewrites the history of an episode."""

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """Return a change of the history; None for no change.

        Called after each turn that does not end the episode, and after a response to its `Ask` (a last turn with
        `aside`).
        """
        ...


class EnvironmentWrapper(Protocol):
    """Component that wraps the environment of the recipe."""

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """Return an environment that wraps the one of the recipe."""
        ...


class Judge(Protocol):
    """Function that computes the reward of a running episode."""

    async def __call__(self, task: Task, actions: Sequence[Message], /) -> float | None:
        """Return 1 or 0 if the reward reports success or failure, else its value; `actions` are those so far."""
        ...


# ------------------------------------------------------------ inject, select, refill


class Replay(Protocol):
    """Component that adds stored trajectories to a group before it is trained."""

    @property
    def off_policy(self) -> OffPolicy:
        """Return the log-probs that the ratios of stored tokens are computed against."""
        ...

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """Return the group with stored trajectories."""
        ...


class TrajectoryFilter(Protocol):
    """Component that selects the trajectories of a step to train on. Removed ones stay, with their `removal`."""

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Return the same groups, in the same order, with trajectories marked as removed."""
        ...


class DynamicSampling(Protocol):
    """Component that selects the groups of an update; others are sampled instead of the rejected ones."""

    @property
    def max_tried(self) -> int:
        """Return the maximum number of groups sampled for an update, in multiples of those it takes."""
        ...

    @property
    def when_exhausted(self) -> Literal["stop", "continue"]:
        """Return whether the run then stops, or the update takes the accepted groups."""
        ...

    def __call__(self, group: Group, /) -> bool:
        """Return whether the group is accepted."""
        ...


# ------------------------------------------------------------ state


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a step."""

    step: int
    """Updates made, including this one."""
    groups: tuple[Group, ...]
    """Groups as they were sampled, including those that were not trained."""
    advantages: Mapping[str, float]
    """Mean absolute advantage by trajectory, before masking; missing for trajectories without advantages."""
    draw: Random


@runtime_checkable
class Stateful(Protocol):
    """A component that learns from the results of steps: a buffer, a pool, a bandit, a library. Its size is bounded."""

    def observe(self, outcome: StepOutcome, /) -> None:
        """Receive the result of a step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the complete state as JSON values."""
        ...

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore a state that `state` returned."""
        ...
