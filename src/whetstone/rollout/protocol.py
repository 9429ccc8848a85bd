"""The seams of the rollout room: who acts in an episode, and the primitives every method is made of.

    allocate → start → view → { sample, fork with stop, partner, view of each turn } → score → rewrite
    → inject → select → refill → (advantage, update) → what is remembered

A method names parts for some of these in its recipe. What a part remembers from step to step, it says in `state`, and
it is in the checkpoint. What a part may have beside what its place asks for, `optional.py` says.
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
    """What an actor produced in one turn."""

    tokens: Tokens
    complete: bool = True
    """Whether the turn was ended by the actor rather than by a limit."""
    queue_seconds: float = 0.0
    message: Message | None = None
    """What it says, from one who speaks in messages; None: what its tokens say."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A group to be."""

    task: Task
    seed: int
    """With the task's id and a sample's index it decides the sample's draws."""
    number: int = 0
    """Its place among the groups of a run, in the order they are started."""
    name: str = ""
    """Begins the id of each of its trajectories, so that ids differ between groups."""
    step: int = 0
    """Updates made when it was planned."""
    chosen: int | Task = 0
    """Which of the source's tasks it is, or the task that was made."""


NOTHING = Tokens.written((), Author.INSERTED)
"""No tokens."""


@dataclass(frozen=True, slots=True)
class ActorInput:
    """What an actor knows when it is its turn."""

    task: Task
    context: Context
    conversation: Sequence[Message]
    tools: Sequence[ToolSpec]
    episode: str
    turn: int
    seed: int
    greedy: bool = False
    """Whether nothing is left to chance."""
    begun: Tokens = NOTHING
    """What its action begins with already."""
    drawn: tuple[tuple[int, int], ...] = ()
    """Spans of `context` and `begun`, one behind the other, that were drawn for it and not given."""


class Actor(Protocol):
    """Whoever produces the actions of an episode: the policy in training, or an expert who shows how."""

    async def act(self, moment: ActorInput) -> Action:
        """The tokens of one turn."""
        ...

    def leave(self, episode: str) -> None:
        """The episode is over."""
        ...


@runtime_checkable
class HasOwner(Protocol):
    """An actor with a name in messages about waits; any other is `the actor`."""

    owner: str
    """Who is waited for, such as `the engine`."""


@runtime_checkable
class Probed(Protocol):
    """An actor that can be asked whether it answers at all."""

    async def is_answering(self) -> bool:
        """Return whether a small request is answered soon."""
        ...


class EpisodeRecord(Protocol):
    """Where turns are written down as they come about, so that an episode cut off by a kill can go on."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """The turns of an episode that was begun before, each with its observation; none for a new one."""
        ...

    def add(self, episode: str, turn: Turn) -> None:
        """One more turn is over, and its observation is there."""
        ...

    def drop(self, episode: str) -> None:
        """What was written of the episode does not count: it is played again from its start."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Where in a run an episode is played."""

    task: Task
    seed: int
    """Of its group."""
    step: int = 0
    """Updates made when the group was planned; 0 in an evaluation."""
    index: int = 0
    """Which sample of its group it is."""
    group_size: int = 1

    def random(self, who: str, *where: int | str) -> Random:
        """Chance for a part of this name, the same whenever this episode, or one of its group, is played again."""
        return derive_random(self.seed, self.task.id, who, *where)


# ------------------------------------------------------------ sample, fork


@dataclass(frozen=True, slots=True)
class Splice:
    """What the action of a fork begins with."""

    kept: Tokens
    """Of its parent's action at this turn."""
    inserted: Tokens
    """Behind it; by `Author.INSERTED`."""


class Running(Protocol):
    """An episode under way."""

    async def turn(self, number: int) -> Turn | None:
        """Its turn of this number, from 0, with what came back, as soon as it is over; None: it has fewer.

        The last turn of an episode is there when the episode is.
        """
        ...

    async def trajectory(self) -> Trajectory:
        """The whole of it, scored."""
        ...


class Roller(Protocol):
    """What a strategy may do."""

    @property
    def occasion(self) -> EpisodeKey:
        """Of the group."""
        ...

    @property
    def max_turns(self) -> int:
        """Turns an episode of the group may have."""
        ...

    def written(self, text: str) -> tuple[int, ...]:
        """A text as the policy's tokens, such as one to splice."""
        ...

    def samples(self, usual: int) -> int:
        """How many trajectories the group is to have: `usual`, unless the recipe allocates otherwise."""
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
        table: int = 0,
    ) -> Trajectory:
        """One whole episode of `task`, scored; `index` tells it from its siblings and decides its seed.

        Args:
            greedy: Played without chance, to be compared with and not learned from.
            view: What it reads beside what every episode of the recipe does.
            max_turns: After which it pauses: it ends by `max_turns` and is not scored.
            seat: The role it plays at a table with others; empty: it plays alone.
            table: Which table of the group that is.
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
        """An episode that shares the first `turns` of its parent, the same objects, and goes on by itself; scored."""
        ...

    def begin(self, task: Task, *, index: int, parent: Running | None = None, turns: int = 0) -> Running:
        """As `sample` and `fork`, with its turns to be seen as they come about. It runs whether it is waited for or
        not, and is cut when the group is given up."""
        ...

    def random(self, index: int) -> Random:
        """Chance for what a strategy decides about the sample of this index."""
        ...


class Strategy(Protocol):
    """How the trajectories of one task come about."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """All trajectories of `task`."""
        ...


# ------------------------------------------------------------ allocate, start, view, stop, rewrite, partner


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a group may use; None: what the recipe says of every group."""

    group_size: int | None = None
    max_turns: int | None = None


class Allocation(Protocol):
    """How much each group may use."""

    def __call__(self, occasion: EpisodeKey, /) -> Allowance:
        """For a group that begins now."""
        ...


@dataclass(frozen=True, slots=True)
class StartPrefix:
    """Turns an episode begins behind, in the world they were played in."""

    turns: tuple[Turn, ...]
    """None of them is trained: each token is written by the environment or spliced."""
    world: int
    """The seed of that environment."""


class Start(Protocol):
    """Where the episodes of a group begin, all at the same place."""

    async def __call__(self, occasion: EpisodeKey, guide: Demonstrator, /) -> StartPrefix | None:
        """The turns in front of them; None: at the beginning."""
        ...


class Demonstrator(Protocol):
    """What a start may ask for."""

    async def demonstration(self, task: Task) -> tuple[Trajectory, int]:
        """(an expert's episode of the task, the seed of its environment)

        Raises:
            RecipeError: The source has no expert.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """What a part may know of an episode under way."""

    occasion: EpisodeKey
    opening: tuple[Message, ...] = ()
    """As the environment gave it."""
    turns: tuple[Turn, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    context_tokens: int = 0
    """What the model has in view, the last answer included."""
    context_length: int = 0
    """What it could have."""
    max_turns: int = 0


class ContextTransform(Protocol):
    """What the policy reads instead of what the environment said."""

    @property
    def trained_on(self) -> Literal["shown", "original"]:
        """Context on which actions are trained: `shown`, from which they were sampled, or `original`, untransformed."""
        ...

    @property
    def off_policy(self) -> OffPolicy:
        """What ratios compare with, where those differ."""
        ...

    def opening(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """What an episode begins with."""
        ...

    def observation(self, messages: tuple[Message, ...], so_far: EpisodeState, /) -> tuple[Message, ...]:
        """What stands behind an action; `so_far` has it as the last turn."""
        ...


class Stop(Protocol):
    """Whether an episode is to end."""

    def __call__(self, so_far: EpisodeState, siblings: Siblings, /) -> bool:
        """Asked behind every turn that does not end it by itself."""
        ...


@dataclass(slots=True)
class Siblings:
    """How far the episodes of a group are. Depends on who is faster; a stop that reads it says so (`ByTiming`)."""

    under_way: dict[str, int] = field(default_factory=dict)
    """Turns of each."""
    ended: list[tuple[int, bool]] = field(default_factory=list)
    """(turns, whether it was solved) of each."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The policy is asked for something by the rollout; its next action is the answer, not one for the environment."""

    text: str
    drop: int = 0
    """Last turns taken out before."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The next turn is drawn behind these messages and nothing else."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Repair:
    """Turns from one on are replaced by one turn, as if the policy had said this at once."""

    turn: int
    """The first that is replaced."""
    message: Message
    observation: tuple[Message, ...]
    calls: tuple[CallRecord, ...] = ()


Change = Ask | Reopen | Repair


class Rewrite(Protocol):
    """What becomes of what was said so far."""

    async def __call__(self, so_far: EpisodeState, /) -> Change | None:
        """Asked behind every turn that does not end the episode, and behind an answer to its `Ask` (a last turn with
        `aside`); None leaves everything as it is."""
        ...


class EnvironmentWrapper(Protocol):
    """Who answers the policy in the environment's place."""

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """An environment around the recipe's own."""
        ...


class Judge(Protocol):
    """Says of an episode under way what its reward would be."""

    async def __call__(self, task: Task, actions: Sequence[Message], /) -> float | None:
        """1 and 0 for right and wrong where the reward can tell, else its value; `actions` are those so far."""
        ...


# ------------------------------------------------------------ inject, select, refill


class Replay(Protocol):
    """What stored trajectories a group is given before it is learned from."""

    @property
    def off_policy(self) -> OffPolicy:
        """What the ratios of stored tokens compare with."""
        ...

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """The group with them."""
        ...


class TrajectoryFilter(Protocol):
    """Which trajectories of a step are learned from. Removed ones stay, and say whether they still count."""

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """The same groups, in the same order, with removals."""
        ...


class DynamicSampling(Protocol):
    """Which groups count towards those an update takes; others are sampled in the place of the rest."""

    @property
    def max_tried(self) -> int:
        """Groups sampled for an update, in multiples of those it takes, after which it is exhausted."""
        ...

    @property
    def when_exhausted(self) -> Literal["stop", "continue"]:
        """Whether the run then stops, or the update takes those there are."""
        ...

    def __call__(self, group: Group, /) -> bool:
        """Whether it counts."""
        ...


# ------------------------------------------------------------ what is remembered


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of a step."""

    step: int
    """Updates made, this one included."""
    groups: tuple[Group, ...]
    """As they were sampled, those that were not learned from among them."""
    advantages: Mapping[str, float]
    """By trajectory, the mean size of its advantages before anything was masked; none for those that had none."""
    draw: Random


@runtime_checkable
class Stateful(Protocol):
    """A part that learns from how steps went: a buffer, a pool, a bandit, a library. It is bounded in size."""

    def observe(self, heard: StepOutcome, /) -> None:
        """A step is over."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything it remembers, as JSON can hold it."""
        ...

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Remember what `state` said."""
        ...
