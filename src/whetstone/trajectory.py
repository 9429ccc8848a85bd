"""What flows through Whetstone: tasks, turns, trajectories, groups and segments.

Tokens are the truth; messages, masks and branches are views of it. Every value here is frozen: a step
that adds knowledge returns a new value (`replace(trajectory, score=…)`).

Easy to get wrong: a forked trajectory holds the *same* `Turn` objects as its parent up to the fork.
Turns therefore compare by identity, and a set of trajectories is a tree without a second data type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from whetstone import notebook_html
from whetstone.chat.message import Message, Text
from whetstone.end_reason import EndReason as EndReason
from whetstone.provenance import Provenance as Provenance
from whetstone.tokens import Author as Author
from whetstone.tokens import Media as Media
from whetstone.tokens import Tokens as Tokens
from whetstone.tokens import TokenSequence as TokenSequence


@dataclass(frozen=True, slots=True)
class Task:
    """One problem."""

    id: str
    """Unique within its source; the same id is the same problem in every run."""
    prompt: str
    """Text of the request; empty if the environment makes its own opening from the seed. A list of messages in the
    OpenAI format is accepted: then this is the text of the last one, and `messages` has all of them."""
    private: Mapping[str, Any] = field(default_factory=dict)
    """For the verifier and the expert; the policy never sees it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What results are broken down by: `kind`, `difficulty`, `domain`, …"""
    messages: tuple[Message, ...] = ()
    """Messages that the episode starts with, if the prompt is a list of messages; empty: one of the user, `prompt`."""

    def __post_init__(self) -> None:
        given: Any = self.prompt if not isinstance(self.prompt, str) else self.messages
        if not isinstance(given, list | tuple):
            raise TypeError(f"the prompt of a task is a text or a list of messages, got {type(given).__name__}")
        messages = tuple(each if isinstance(each, Message) else Message.from_openai(each) for each in given)
        object.__setattr__(self, "messages", messages)
        if isinstance(self.prompt, str):
            return
        if not messages or messages[-1].role == "assistant":
            raise ValueError("a prompt of messages ends with one of the user")
        object.__setattr__(self, "prompt", messages[-1].text)

    @property
    def opening(self) -> tuple[Message, ...]:
        """Messages that an episode of this task starts with."""
        return self.messages or (Message("user", (Text(self.prompt),)),)

    @property
    def text(self) -> str:
        """Text of all messages that an episode of this task starts with."""
        return "\n".join(message.text for message in self.opening)


_READ = frozenset({
    "ok", "tool_error", "tool_failed", "unavailable", "timeout", "stopped", "budget_exhausted", "refused_by_policy",
    "not_called",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One executed or refused tool call."""

    name: str
    """The tool asked for; empty where the call could not be read."""
    outcome: str
    """`ok`, `tool_error`, `tool_failed` (by a bug of its own), `unavailable` (its backend failed),
    `invalid_arguments`, `unknown_tool`, `malformed_call`, `too_many_calls`, `timeout`, `stopped`, `budget_exhausted`,
    `refused_by_policy`, `not_called` (its effect is not permitted)."""
    seconds: float
    """How long the tool ran; 0 where it did not."""
    truncated: bool = False
    """Whether the result was cut to the environment's limit."""
    cost: float = 0.0
    """What the call cost, in the unit of the budget; 0 where there is none."""
    error: str = ""
    """Error message of a call that failed, in one line; empty if it did not."""

    @property
    def well_formed(self) -> bool:
        """Whether the call named a tool on offer with arguments it accepts, whatever the tool then did."""
        return self.outcome in _READ


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What happened between two answers of the environment. Compared by identity: a shared turn is one object."""

    context: Tokens
    """What stood before the action and is new in this turn; the whole context where `opens_segment`."""
    action: Tokens
    """What the model produced, end-of-turn token included; empty where the turn was cut before anything came."""
    message: Message
    """The action as a message: a view of `action`."""
    observation: tuple[Message, ...] = ()
    """What came back; empty where the episode ended with this turn or was cut inside it."""
    reward: float | None = None
    """The environment's reward for this turn, if it gives one."""
    calls: tuple[CallRecord, ...] = ()
    """The tool calls of this turn, in order."""
    opens_segment: bool = False
    """Whether `context` replaces everything before it: the first turn, and where a template rewrote history."""
    training_context: Tokens | None = None
    """What to train the action under, where that differs from what it was generated under; else None."""
    conversation: int = 0
    """Number of its conversation in the episode. An agent with sub-agents holds several at once; the turns of a
    conversation extend each other, and the first one has `opens_segment`."""
    agent: str = ""
    """Name of the agent that acts; empty if the episode has one agent, or names none."""
    aside: bool = False
    """Whether the action was said to the rollout, such as a summary of what happened so far, and not to the
    environment."""
    generation_seconds: float = 0.0
    """Time in the engine, queueing included."""
    queue_seconds: float = 0.0
    """Time of that spent waiting for a place in a batch."""
    environment_seconds: float = 0.0
    """Time the environment and its tools took."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said of a trajectory, and why."""

    question: str
    """As it was asked, without what was to be judged."""
    said: Mapping[str, Any]
    """The answer: `met`, `reason`, whatever its shape has."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward said of a trajectory."""

    value: float
    """The outcome the trainer sees."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components, each logged."""
    turns: tuple[float, ...] | None = None
    """[turns] optionally one value per turn."""
    success: bool | None = None
    """Whether the task was solved, where the reward can tell; `value > 0` is not the same thing."""
    signals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By name, [turns] more of what was found out about each turn: its kind of thought, whether it matched. Estimators
    ask for them by these names."""
    invalid: str = ""
    """Why nothing can be said of the trajectory (a judge is down, a sandbox died), where that is so: it is no number
    then, whatever `value` is, and the trajectory leaves the statistics."""
    judgements: tuple[Judgement, ...] = field(default=(), compare=False)
    """What judges said on the way to it, for people to read; in no particular order, as they answered."""

    @classmethod
    def unknown(cls, why: str) -> Score:
        """Nothing can be said."""
        return cls(math.nan, invalid=why)


class RemovalScope(StrEnum):
    """What a trajectory that is taken out still counts in; published methods differ, and results with them."""

    BEFORE_BASELINE = "before_baseline"
    """It never existed: it is in no statistic and in no loss."""
    LOSS_ONLY = "loss_only"
    """It counts in the group's statistics and trains nothing."""
    WEIGHT = "weight"
    """It counts in the statistics, and more or less in the loss."""


class OffPolicy(StrEnum):
    """What a ratio compares with, for tokens that were not drawn just now by the policy, under what it reads."""

    RECOMPUTE = "recompute"
    """The policy before the update, in the context that is trained: the ratio begins at 1 (biased, simple)."""
    STORED = "stored"
    """The log-probs kept when the tokens were drawn."""
    TRUNCATED = "truncated"
    """Same as `recompute`, with token weights by the recipe's `importance_correction` and the stored log-probs."""
    CROSS_VIEW = "cross_view"
    """The log-probs kept when the tokens were drawn, under a view that is not trained."""
    MIXTURE = "mixture"
    """For spliced tokens the probability with which they were spliced, for the policy's own `recompute`."""
    NONE = "none"
    """No ratio: a supervised or preference loss."""

    @property
    def kept(self) -> bool:
        """Whether log-probs kept from when they were drawn take the place of the old policy's."""
        return self in (OffPolicy.STORED, OffPolicy.CROSS_VIEW)


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous token sequence that one forward pass sees."""

    trajectory_id: str
    index: int
    """Its place among the segments of its trajectory."""
    tokens: Tokens
    """[T] everything in order."""
    action_mask: tuple[bool, ...]
    """[T] True exactly on tokens that may be trained; see `TRAINABLE`."""
    turns: tuple[int, ...]
    """[T] the turn each token belongs to."""
    advantages: tuple[float, ...] | None = None
    """[T] credit per token, 0 outside the mask; None before credit was given."""

    def __len__(self) -> int:
        return len(self.tokens)


TRAINABLE = frozenset({Author.POLICY, Author.EXPERT, Author.CORRECTED})
"""Authors whose tokens are trained. Spliced ones are too where a log-prob says how likely they were."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was spent on a group, whatever became of it."""

    sampled_tokens: int = 0
    """Drawn from the policy, those of discarded turns and episodes among them."""
    reused_tokens: int = 0
    """Of prefixes that forks share with others, which nobody drew again."""
    tool_calls: int = 0
    environment_steps: int = 0
    """Those that only led an environment back to where an episode parted among them."""

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.sampled_tokens + other.sampled_tokens,
            self.reused_tokens + other.reused_tokens,
            self.tool_calls + other.tool_calls,
            self.environment_steps + other.environment_steps,
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The path of turns from reset to end, with the reason it ended."""

    id: str
    task_id: str
    opening: tuple[Message, ...]
    """The messages the episode began with."""
    turns: tuple[Turn, ...]
    ended: EndReason
    error: str | None = None
    """For `error`, `infrastructure`, `timeout` and the like: the cause, in one line."""
    score: Score | None = None
    """None before rewards, and for ever where the ending is not valid."""
    removal: RemovalScope | None = None
    """Where the trajectory was taken out of training, and how."""
    parent: str | None = None
    """The trajectory it was forked from."""
    fork_turn: int | None = None
    """How many first turns it shares with its parent."""
    greedy: bool = False
    """Whether it was played without chance, to compare others with; it is in no other statistic and in no loss."""
    marks: tuple[str, ...] = ()
    """Flags that describe how the episode was played: the rule that stopped it, `hinted`, `view_dropped`, …"""
    declared: tuple[tuple[str, str], ...] = ()
    """By name, how its world works where models get used to it, such as `python: persistent`."""
    role: str = ""
    """Which seat of a game with several it played; empty where there is only one."""
    member: str = ""
    """Member of `policies` that sampled the trajectory; empty if the recipe has only `policy`."""
    final: Mapping[str, Any] = field(default_factory=dict)
    """What the environment said of itself when the episode was over: `success`, `score`, what it counted; JSON values.
    Empty where it says nothing. Rewards judge by this and by the turns, so they can be computed again."""
    off_policy: OffPolicy = OffPolicy.RECOMPUTE
    """What the ratios of its tokens compare with."""
    seconds: float = 0.0
    """From reset to end."""
    closing: Tokens | None = None
    """What the model would have read next, where a limit ended the episode behind an answer of the environment: from
    there a critic says what was still to come. None where nothing came behind the last action, or the template rewrote
    history there."""
    provenance: Provenance = Provenance.SAMPLED
    """Where the trajectory comes from."""

    @property
    def final_text(self) -> str:
        """The text of the last action; empty where there was none."""
        return self.turns[-1].message.text if self.turns else ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole episode as a conversation."""
        spoken = chain.from_iterable((turn.message, *turn.observation) for turn in self.turns)
        return (*self.opening, *spoken)

    @property
    def action_tokens(self) -> int:
        """How many tokens the model produced."""
        return sum(len(turn.action) for turn in self.turns)

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """Every tool call in order."""
        return tuple(chain.from_iterable(turn.calls for turn in self.turns))

    @property
    def solved(self) -> bool:
        """Whether the reward called it a success; False before there was a reward."""
        return self.score is not None and bool(self.score.success)

    def segments(self, *, observations: bool = False) -> tuple[Segment, ...]:
        """The token sequences to train on: one, or more where the context was rewritten on the way.

        A turn whose `training_context` differs stands in a segment of its own, since no other turn
        was generated behind that context. Segments without a trainable token are left out.

        Args:
            observations: Whether tokens that came back between the actions of a segment are trained, too: what tools
                answered, with what the template writes around it. Nobody drew them, so they have no log-prob.
        """
        built: list[list[tuple[int, Tokens]]] = []
        open_segments: dict[int, list[tuple[int, Tokens]]] = {}
        for index, turn in enumerate(self.turns):
            if turn.opens_segment:
                open_segments[turn.conversation] = []
                built.append(open_segments[turn.conversation])
            running = open_segments.setdefault(turn.conversation, [])
            running += [(index, turn.context), (index, turn.action)]
            if turn.training_context is not None:
                running[-1] = (index, _without_author(turn.action))
                built.append([(index, turn.training_context), (index, turn.action)])
        segments = (_segment(self.id, i, pieces, observations) for i, pieces in enumerate(built))
        return tuple(segment for segment in segments if any(segment.action_mask))

    def _repr_html_(self) -> str:
        """Its conversation, in a notebook."""
        score = "none" if self.score is None else f"{self.score.value:g}"
        parts = {name: f"{value:g}" for name, value in self.score.parts.items()} if self.score is not None else {}
        ended = f"{self.ended} ({self.error})" if self.error else str(self.ended)
        facts = {"task": self.task_id, "ended": ended, "turns": str(len(self.turns)), "reward": score, **parts}
        return notebook_html.box(self.id, facts, notebook_html.conversation(self.messages))


def turns_of_segment(turns: Sequence[Turn], conversation: int) -> list[Turn]:
    """Return the turns that the next action of a conversation extends, in order.

    Args:
        turns: All turns so far, of every conversation.
    """
    own = [turn for turn in turns if turn.conversation == conversation]
    opened = max((number for number, turn in enumerate(own) if turn.opens_segment), default=0)
    return own[opened:]


def _without_author(action: Tokens) -> Tokens:
    """The action as something to read, not to train: in this segment it is context."""
    return Tokens.written(action.sequence, Author.INSERTED)


def _segment(trajectory_id: str, index: int, pieces: Sequence[tuple[int, Tokens]], observations: bool) -> Segment:
    tokens = Tokens.joined(piece for _, piece in pieces)
    prompt = len(pieces[0][1]) if observations else len(tokens)
    mask = tuple(
        author in TRAINABLE
        or (author is Author.INSERTED and not math.isnan(logprob))
        or (author is Author.ENVIRONMENT and place >= prompt)
        for place, (author, logprob) in enumerate(zip(tokens.authors, tokens.logprobs, strict=True))
    )
    turns = tuple(chain.from_iterable((turn,) * len(piece) for turn, piece in pieces))
    return Segment(trajectory_id, index, tokens, mask, turns)


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one task sampled together."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    number: int = 0
    """Its place among the groups of a run, in the order they were started."""
    costs: Costs = Costs()
    """What was spent on it."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """[N] the outcome of each trajectory that has one and was not removed before the baseline."""
        return tuple(t.score.value for t in self.counted if t.score is not None)

    @property
    def counted(self) -> tuple[Trajectory, ...]:
        """The trajectories that enter the group's statistics."""
        return tuple(
            t for t in self.trajectories if t.score is not None and t.removal is not RemovalScope.BEFORE_BASELINE
        )

    def _repr_html_(self) -> str:
        """Its trajectories side by side and their conversations, in a notebook."""
        rows = [
            (t.id, f"{t.score.value:g}" if t.score else "none", str(t.ended), str(len(t.turns)), str(t.action_tokens))
            for t in self.trajectories
        ]
        overview = notebook_html.table(("trajectory", "reward", "ended", "turns", "tokens"), rows)
        each = "".join(notebook_html.folded(t.id, notebook_html.conversation(t.messages)) for t in self.trajectories)
        facts = {"trajectories": str(len(self.trajectories)), "number": str(self.number)}
        return notebook_html.box(self.task.id, facts, overview + each)
