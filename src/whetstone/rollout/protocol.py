"""Interfaces of rollouts: actors, strategies, and the primitives that methods are composed of.

    allocate → start → view → { sample, fork with stop, partner, view of each turn } → score → rewrite
    → inject → select → refill → (advantage, update) → observe

The recipe names a component for each primitive that a method uses. A component returns its state in `state`, and the
checkpoint contains it. `optional_protocols.py` has the optional members of components.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from whetstone.chat import Context, Message, ToolSpec
from whetstone.environments.protocol import Environment
from whetstone.renamed_modules import renamed_export
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, CallRecord, Group, OffPolicy, Task, Tokens, Trajectory, Turn

if TYPE_CHECKING:
    from whetstone.tools import FrozenModel


@dataclass(frozen=True, slots=True)
class Action:
    """Output of an actor in one turn: sampled or written tokens, and optionally the parsed message."""

    tokens: Tokens
    complete: bool = True
    """Whether the actor ended the turn itself; False if a limit of tokens truncated the action."""
    queue_seconds: float = 0.0
    """Seconds that the request waited in the engine before its first forward pass."""
    message: Message | None = None
    """Message of an actor that produces messages; None: the message is parsed from the tokens."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Plan of one group to sample: its task, seed and position in the run."""

    task: Task
    seed: int
    """Random seed of the group; with the task's id and the index of a sample it determines that sample."""
    number: int = 0
    """Index of the group among the groups of a run, in the order of their start."""
    name: str = ""
    """Prefix of the ids of the group's trajectories, so that ids differ between groups."""
    step: int = 0
    """Number of updates made when the group was planned."""
    chosen: int | Task = 0
    """Index of the task in the source, or the task itself if it was generated."""


NOTHING = Tokens.from_ids((), Author.INSERTED)
"""Empty token sequence, such as the prefix of an action that the policy samples entirely."""


@dataclass(frozen=True, slots=True)
class ActorInput:
    """Input of an actor for one turn, which the runner creates."""

    task: Task
    context: Context
    """Tokens that the model reads."""
    conversation: Sequence[Message]
    """Messages of the conversation so far, for actors that read messages."""
    tools: Sequence[ToolSpec]
    """Tools that the actor may call."""
    episode: str
    """Id of the episode; the engine stores its KV cache under this id."""
    turn: int
    """Index of the turn in the episode, from 0."""
    seed: int
    """Random seed of the turn."""
    greedy: bool = False
    """Whether the action is decoded greedily instead of sampled."""
    prefix: Tokens = NOTHING
    """Tokens with which the action starts."""
    sampled_spans: tuple[tuple[int, int], ...] = ()
    """Spans [from, to) of `context` followed by `prefix` that were sampled for this actor; other tokens are prompt
    tokens."""
    allowed: AllowedActions | None = None
    """Actions that the policy can take in a masked turn; None: every action."""


ALLOWED_LOGPROB = "allowed_logprob"
"""Name in `Tokens.measured` of the log-probability, under the policy, of all tokens that an action mask allowed."""


@dataclass(frozen=True, slots=True)
class AllowedActions:
    """Actions of a masked turn, as the tokens that the policy would sample for them."""

    sequences: tuple[tuple[int, ...], ...]
    """Token ids of each action, with the token that ends the turn."""
    trained: bool
    """Whether the sampled action is trained."""


class Actor(Protocol):
    """Component that produces the actions of an episode: the policy in training, an expert or another model."""

    async def act(self, moment: ActorInput) -> Action:
        """Produce the action of one turn.

        Raises:
            InfrastructureError: If the actor's engine or server fails; the episode then ends by `infrastructure`.
        """
        ...

    def leave(self, episode: str) -> None:
        """Release data that the actor stores for an episode, which has ended."""
        ...


@runtime_checkable
class HasOwner(Protocol):
    """Actor with a display name for messages about waits; others are named `the actor`."""

    owner: str
    """Display name of the component that is waited for, such as `the engine`."""


@runtime_checkable
class SupportsHealthCheck(Protocol):
    """Actor with a health check."""

    async def is_answering(self) -> bool:
        """Return whether the actor's engine responds to a small request soon.

        Called when a deadline passes, to distinguish a slow policy from a failed engine.
        """
        ...


class EpisodeRecord(Protocol):
    """Record of finished turns, from which an episode resumes after the process was killed."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """Return the recorded turns of an episode with their observations.

        The result is empty for a new episode.
        """
        ...

    def add(self, episode: str, turn: Turn) -> None:
        """Record a finished turn with its observation."""
        ...

    def drop(self, episode: str) -> None:
        """Discard the recorded turns of an episode, which restarts."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Position of an episode in a run, from which all its random decisions are derived."""

    task: Task
    seed: int
    """Random seed of the group."""
    step: int = 0
    """Number of updates made when the group was planned; 0 in an evaluation."""
    index: int = 0
    """Index of the sample in its group, from 0."""
    group_size: int = 1
    """Number of samples of the group."""

    def random(self, who: str, *where: int | str) -> Random:
        """Return a random generator for a component.

        It is the same whenever the episode is played again, so that a resumed run makes the same decisions.

        Args:
            who: Name of the component.
            where: Further values that distinguish decisions of the component.
        """
        return derive_random(self.seed, self.task.id, who, *where)


# ------------------------------------------------------------ sample, fork


@dataclass(frozen=True, slots=True)
class Splice:
    """Tokens with which the first action of a fork starts."""

    prefix: Tokens
    """Prefix of the parent's action at this turn."""
    inserted: Tokens
    """Tokens after the prefix, with the author `Author.INSERTED`."""


class Running(Protocol):
    """Running episode of a group, which a strategy can read before it ends."""

    async def turn(self, number: int) -> Turn | None:
        """Wait for the turn with this index, from 0, and its observation.

        The last turn of an episode is returned only after the episode has ended.

        Returns:
            The turn; None if the episode has fewer turns.
        """
        ...

    async def trajectory(self) -> Trajectory:
        """Wait for the trajectory of the whole episode, with its score."""
        ...


class Roller(Protocol):
    """Sampling interface that a strategy receives for one group."""

    @property
    def episode_key(self) -> EpisodeKey:
        """Return the key of the group, with sample index 0, for random decisions of the strategy."""
        ...

    @property
    def max_turns(self) -> int:
        """Return the maximum number of turns of an episode of the group."""
        ...

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokenize a text with the policy's tokenizer, such as a text to splice."""
        ...

    def samples(self, usual: int) -> int:
        """Return the number of trajectories of the group: `usual`, unless the recipe allocates another number."""
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
        """Sample one whole episode of the task and score it.

        Args:
            task: Task of the group.
            index: Index of the sample in the group, which determines its seed.
            greedy: Decode greedily, for a baseline; the episode is not trained.
            view: Context transform in addition to those of the recipe.
            max_turns: Number of turns after which the episode pauses: it ends by `max_turns` and is not scored.
            seat: Role in a game of several players; empty: the policy is the only player.
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
        """Sample an episode that shares its first turns with another one, and score it.

        Args:
            task: Task of the group.
            parent: Trajectory of this group to fork from.
            turns: Number of shared turns, which are the same objects in both trajectories.
            index: Index of the sample in the group, which determines its seed.
            splice: Tokens with which the first new action starts.
            max_turns: Number of turns after which the episode pauses; see `sample`.
        """
        ...

    def begin(self, task: Task, *, index: int, parent: Running | None = None, turns: int = 0) -> Running:
        """Start an episode or, with a parent, a fork; its turns can be read while it runs.

        The episode runs whether it is awaited or not, and is cancelled when the group ends.

        Args:
            task: Task of the group.
            index: Index of the sample in the group, which determines its seed.
            parent: Running episode to fork from; None: a new episode.
            turns: Number of turns shared with the parent.
        """
        ...

    def random(self, index: int) -> Random:
        """Return a random generator for decisions of a strategy about the sample with this index."""
        ...


class Strategy(Protocol):
    """Component that samples the trajectories of a group, such as independent episodes or a tree."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample and return the group of a task."""
        ...


# ------------------------------------------------------------ allocate, start, view, stop, rewrite, partner


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """Budget of a group; a field of None keeps the value of the recipe."""

    group_size: int | None = None
    """Number of trajectories of the group."""
    max_turns: int | None = None
    """Maximum number of turns per episode."""


class Allocation(Protocol):
    """Component that sets the budget of each group (`rollout.budget_allocation`)."""

    def __call__(self, episode_key: EpisodeKey, /) -> GroupBudget:
        """Return the budget of a group that starts now."""
        ...


@dataclass(frozen=True, slots=True)
class StartPrefix:
    """Start state: turns that precede the episodes of a group, and the seed of their environment."""

    turns: tuple[Turn, ...]
    """Preceding turns. They are not trained: each token has the author environment or inserted."""
    environment_seed: int
    """Seed of the environment in which the turns were played."""


class Start(Protocol):
    """Component that sets a common start state for the episodes of a group (`rollout.start_states`)."""

    async def __call__(self, episode_key: EpisodeKey, demonstrator: Demonstrator, /) -> StartPrefix | None:
        """Return the turns that precede all episodes of the group; None: they start from the reset state."""
        ...


class Demonstrator(Protocol):
    """Source of expert demonstrations for a start state; the group sampler implements it."""

    async def demonstration(self, task: Task, *, model: FrozenModel | None = None) -> tuple[Trajectory, int]:
        """Play the expert's episode of a task, or that of a frozen model.

        Args:
            task: Task of the episode.
            model: Model that plays instead of the expert; None: the expert.

        Returns:
            The trajectory, and the seed of its environment.

        Raises:
            RecipeError: If the task source has no expert.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """State of a running episode that rollout components receive. It is a snapshot and does not change."""

    episode_key: EpisodeKey
    opening: tuple[Message, ...] = ()
    """Initial messages of the environment, before context transforms."""
    turns: tuple[Turn, ...] = ()
    """Turns so far; the last one has its observation."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the policy may call."""
    context_tokens: int = 0
    """Number of tokens in the model's context, including the last observation."""
    context_length: int = 0
    """Maximum number of tokens in the model's context."""
    max_turns: int = 0
    """Maximum number of turns of the episode."""

    @property
    def occasion(self) -> EpisodeKey:
        """Return `episode_key`, by its name in earlier releases."""
        warnings.warn("EpisodeState.occasion was renamed to EpisodeState.episode_key", DeprecationWarning, stacklevel=2)
        return self.episode_key


class ContextTransform(Protocol):
    """Component that changes the environment's messages before the policy reads them (`rollout.context_transforms`)."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Return the context on which actions are trained: `shown`, the transformed one, or `original`."""
        ...

    @property
    def off_policy(self) -> OffPolicy:
        """Return the log-probs that ratios are computed against if actions are trained on the original context."""
        ...

    def opening(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Transform the initial messages of the environment."""
        ...

    def observation(self, messages: tuple[Message, ...], state: EpisodeState, /) -> tuple[Message, ...]:
        """Transform the messages that follow an action, which is the last turn of `state`."""
        ...


CONTINUED = "_continued:"
"""Separator of a stop's name and a number of turns in the mark of an episode that continued after the stop."""


class ActionMask(Protocol):
    """Component that restricts the policy to some actions in some turns (`rollout.action_mask`)."""

    trained: bool
    """Whether the actions of masked turns are trained, with ratios to the distribution that was sampled."""

    async def __call__(
        self, state: EpisodeState, admissible: Callable[[], Awaitable[Sequence[str]]], /
    ) -> Sequence[str | Message] | None:
        """Return the actions that the next turn can take; None: the turn is not masked.

        Args:
            state: State of the episode before the turn.
            admissible: Returns the admissible commands of the environment; empty if it lists none.
        """
        ...


class Stop(Protocol):
    """Component that ends episodes early (`rollout.early_stopping`)."""

    def __call__(self, state: EpisodeState, siblings: Siblings, /) -> bool:
        """Return whether to end the episode; called after each turn that does not end it."""
        ...


@dataclass(slots=True)
class Siblings:
    """Progress of the episodes of a group. It depends on their speed, so a stop that reads it is `TimingDependent`."""

    running: dict[str, int] = field(default_factory=dict)
    """Number of turns of each running episode, by trajectory id."""
    ended: list[tuple[int, bool]] = field(default_factory=list)
    """(number of turns, whether the task was solved) of each finished episode."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Change of the history: a question to the policy, whose answer the environment does not receive."""

    text: str
    """Text of the question."""
    drop: int = 0
    """Number of last turns that are removed before the question."""


@dataclass(frozen=True, slots=True)
class RestartContext:
    """Change of the history: the context of the next turn starts with new messages."""

    messages: tuple[Message, ...]
    """Messages of the new context."""


@dataclass(frozen=True, slots=True)
class PatchTurn:
    """Change of the history: the turns from an index on are replaced by one corrected turn."""

    turn: int
    """Index of the first turn that is replaced."""
    message: Message
    """Message of the corrected turn."""
    observation: tuple[Message, ...]
    """Messages that follow the corrected turn."""
    calls: tuple[CallRecord, ...] = ()
    """Records of the corrected turn's tool calls."""


HistoryChange = Ask | RestartContext | PatchTurn


class Rewrite(Protocol):
    """Component that rewrites the history of an episode (`rollout.context_rewrites`)."""

    async def __call__(self, state: EpisodeState, /) -> HistoryChange | None:
        """Return a change of the history; None for no change.

        Called after each turn that does not end the episode, and after the answer to an `Ask` (a last turn with
        `aside`).
        """
        ...


class EnvironmentWrapper(Protocol):
    """Component that wraps the environment of each episode (`rollout.environment_wrapper`)."""

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Return an environment that wraps the recipe's.

        Args:
            environment: Environment of one episode.
            judge: Function that computes the recipe's reward of the actions so far.
        """
        ...


class RewardCallback(Protocol):
    """Function that computes the recipe's reward of a running episode, for environment wrappers."""

    async def __call__(self, task: Task, actions: Sequence[Message], /) -> float | None:
        """Compute the reward of the actions so far, as if the episode ended with them.

        Returns:
            1 or 0 if the reward reports success or failure, else its value.
        """
        ...


# ------------------------------------------------------------ inject, select, refill


class TrajectoryReplay(Protocol):
    """Component that adds stored trajectories to a group before it is trained (`rollout.replay`)."""

    @property
    def off_policy(self) -> OffPolicy:
        """Return the log-probs that the ratios of stored tokens are computed against."""
        ...

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """Return the group with stored trajectories; unchanged if none fits."""
        ...


class TrajectoryFilter(Protocol):
    """Component that selects the trajectories of a step to train on (`rollout.trajectory_filters`).

    Removed trajectories stay in their groups and are marked by `removal`.
    """

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Return the same groups, in the same order, with some trajectories marked as removed."""
        ...


class DynamicSampling(Protocol):
    """Component that selects the groups of an update; rejected groups are replaced by further ones (DAPO)."""

    @property
    def max_tried(self) -> int:
        """Return the maximum number of groups sampled for an update, in multiples of those that it takes."""
        ...

    @property
    def when_exhausted(self) -> Literal["stop", "continue"]:
        """Return the action after `max_tried`: `stop` the run, or `continue` with the accepted groups."""
        ...

    def __call__(self, group: Group, /) -> bool:
        """Return whether the group is accepted for the update."""
        ...


# ------------------------------------------------------------ state


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of a training step, which stateful components observe."""

    step: int
    """Number of updates made, including this one."""
    groups: tuple[Group, ...]
    """Groups as they were sampled, including those that were not trained."""
    advantages: Mapping[str, float]
    """Mean absolute advantage by trajectory id, before masking; trajectories without advantages are missing."""
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


def __getattr__(name: str) -> Any:
    """Return the type that a name of an earlier release refers to, with a deprecation warning."""
    if new := renamed_export(__name__, name):
        warnings.warn(f"{__name__}.{name} was renamed to {__name__}.{new}", DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
