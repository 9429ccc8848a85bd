"""Data model: tasks, turns, trajectories, groups and the segments that are trained.

Tokens are the primary data; messages, masks and branches are derived from them. Every object is frozen: a step that
adds information returns a new object (`replace(trajectory, score=…)`).

Note:
    A forked trajectory holds the *same* `Turn` objects as its parent up to the fork. Turns therefore compare by
    identity, and a set of trajectories is a tree without a second data type.
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
from whetstone.provenance import Provenance as Provenance
from whetstone.tokens import Author as Author
from whetstone.tokens import Media as Media
from whetstone.tokens import Tokens as Tokens
from whetstone.tokens import TokenSequence as TokenSequence


class EndReason(StrEnum):
    """Reason why an episode ended. Every possible end has a name here."""

    TERMINATED = "terminated"
    """The environment ended the episode: answered, solved or lost."""
    TRUNCATED = "truncated"
    """A limit of the environment cut the episode short."""
    MAX_TURNS = "max_turns"
    """The episode used up its turns."""
    MAX_TOKENS = "max_tokens"
    """A turn used up its tokens before it was finished."""
    CONTEXT_FULL = "context_full"
    """The model's context has no room for another turn."""
    MALFORMED_ACTION = "malformed_action"
    """The action could not be parsed, and the environment allows no retry."""
    TOOL_STOPPED = "tool_stopped"
    """A tool ended the episode."""
    EARLY_STOPPED = "stopped"
    """A rule of the rollout ended it, such as one for void turns; its name is in `Trajectory.marks`."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""
    ABORTED = "aborted"
    """The run was stopped, or the episode cancelled."""
    INFRASTRUCTURE = "infrastructure"
    """An engine, server or sandbox failed; the episode is not trained."""
    ERROR = "error"
    """An exception in the environment, a reward or Whetstone; `Trajectory.error` holds the cause."""

    @property
    def valid(self) -> bool:
        """Whether the episode is a result of the policy.

        Other episodes are left out of all statistics.
        """
        return self not in (EndReason.ABORTED, EndReason.INFRASTRUCTURE, EndReason.ERROR)

    @property
    def cut_short(self) -> bool:
        """Whether a limit ended the episode, rather than the environment or a failure."""
        return self in (
            EndReason.TRUNCATED,
            EndReason.MAX_TURNS,
            EndReason.MAX_TOKENS,
            EndReason.CONTEXT_FULL,
            EndReason.TIMEOUT,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One problem for the policy, as a task source returns it."""

    id: str
    """Identifier, unique within the source; the same id is the same problem in every run."""
    prompt: str
    """Text of the request; empty if the environment creates the initial messages from the seed. A list of messages in
    the OpenAI format is accepted: `prompt` is then the text of the last one, and `messages` has all of them."""
    private: Mapping[str, Any] = field(default_factory=dict)
    """Data for the verifier and the expert; the policy never sees it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags by which results are broken down: `kind`, `difficulty`, `domain`, …"""
    messages: tuple[Message, ...] = ()
    """Messages that the episode starts with, if the prompt is a list of messages; empty: one user message, `prompt`."""

    def __post_init__(self) -> None:
        values: Any = self.prompt if not isinstance(self.prompt, str) else self.messages
        if not isinstance(values, list | tuple):
            raise TypeError(f"the prompt of a task must be a text or a list of messages, got {type(values).__name__}")
        messages = tuple(each if isinstance(each, Message) else Message.from_openai(each) for each in values)
        object.__setattr__(self, "messages", messages)
        if isinstance(self.prompt, str):
            return
        if not messages or messages[-1].role == "assistant":
            raise ValueError("a prompt of messages must end with a user message")
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
    """Record of one executed or refused tool call."""

    name: str
    """Name of the called tool; empty if the call could not be parsed."""
    outcome: str
    """Outcome: `ok`, `tool_error`, `tool_failed` (a bug of the tool), `unavailable` (its backend failed),
    `invalid_arguments`, `unknown_tool`, `malformed_call`, `too_many_calls`, `timeout`, `stopped`, `budget_exhausted`,
    `refused_by_policy`, `not_called` (its effect is not permitted)."""
    seconds: float
    """Run time of the tool in seconds; 0 if it did not run."""
    truncated: bool = False
    """Whether the result was truncated to the environment's limit."""
    cost: float = 0.0
    """Cost of the call, in the unit of the budget; 0 without a budget."""
    error: str = ""
    """Error message of a failed call, in one line; empty if it succeeded."""
    inner: tuple[InnerCall, ...] = ()
    """Calls of other tools that the code of this call made, in order; see `Python`."""

    @property
    def well_formed(self) -> bool:
        """Whether the call named an offered tool with valid arguments, regardless of the result."""
        return self.outcome in _READ


@dataclass(frozen=True, slots=True)
class InnerCall:
    """Tool call made by the code of another call, such as a search in a loop of `python`."""

    record: CallRecord
    """Outcome, duration, cost and error of the call."""
    arguments: str
    """Arguments as JSON; the middle of long arguments is cut."""
    result: str
    """Text that the code received."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One action of the policy and the observation that follows it.

    Turns are compared by identity: a turn that a fork shares with its parent is one object.
    """

    context: Tokens
    """Tokens before the action that are new in this turn; the whole context if `opens_segment`."""
    action: Tokens
    """Tokens of the action, including the end-of-turn token; empty if the turn was cut off before any token."""
    message: Message
    """Action as a parsed message, with its text and tool calls."""
    observation: tuple[Message, ...] = ()
    """Messages that follow the action; empty if the episode ended with this turn or was cut off in it."""
    reward: float | None = None
    """Reward of the environment for this turn, if it gives one."""
    calls: tuple[CallRecord, ...] = ()
    """Tool calls of this turn, in order."""
    opens_segment: bool = False
    """Whether `context` replaces everything before it: in the first turn, and if a template rewrote the history."""
    training_context: Tokens | None = None
    """Context to train the action under, if it differs from the context of sampling; else None."""
    conversation: int = 0
    """Number of the conversation in the episode. An agent with sub-agents has several at once; the turns of a
    conversation extend each other, and the first one has `opens_segment`."""
    agent: str = ""
    """Name of the acting agent; empty if the episode has one agent, or names none."""
    aside: bool = False
    """Whether the action responds to a question of the rollout, such as for a summary, and not to the environment."""
    generation_seconds: float = 0.0
    """Seconds in the engine, queueing included."""
    queue_seconds: float = 0.0
    """Seconds of `generation_seconds` that the request waited for a slot in a batch."""
    environment_seconds: float = 0.0
    """Seconds that the environment and its tools took."""

    @property
    def is_answer(self) -> bool:
        """Whether the turn is an answer attempt: it has no call, is not malformed, and is part of the conversation."""
        return not self.message.tool_calls and not self.message.malformed and not self.aside


@dataclass(frozen=True, slots=True)
class Judgement:
    """One response of a judge about a trajectory, with the question to the judge."""

    question: str
    """Question to the judge, without the judged text."""
    answer: Mapping[str, Any]
    """Response by field: `met`, `reason`, … as the judge's format defines."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of a reward for one trajectory: value, components, turn rewards, success."""

    value: float
    """Outcome reward that the trainer uses."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components of the reward; each is logged."""
    turns: tuple[float, ...] | None = None
    """[turns] Reward per turn; None if the reward has none."""
    success: bool | None = None
    """Whether the task was solved, if the reward can tell; not the same as `value > 0`."""
    signals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """[turns] Further values per turn, by name, such as the kind of thought or a match; estimators select them by
    name."""
    invalid: str = ""
    """Reason why the trajectory has no score (a judge is down, a sandbox died); empty if it has one. If set, `value` is
    ignored and the trajectory leaves the statistics."""
    judgements: tuple[Judgement, ...] = field(default=(), compare=False)
    """Responses of judges that led to the score, for display; unordered."""

    @classmethod
    def unknown(cls, why: str) -> Score:
        """Return an invalid score, which excludes the trajectory from the statistics.

        Args:
            why: Reason why there is no score.
        """
        return cls(math.nan, invalid=why)


class RemovalScope(StrEnum):
    """Statistics and losses in which a removed trajectory still counts.

    Published methods differ in this, and so do their results.
    """

    BEFORE_BASELINE = "before_baseline"
    """Removed from all statistics and from the loss."""
    LOSS_ONLY = "loss_only"
    """Counts in the group's statistics and is not trained."""
    WEIGHT = "weight"
    """Counts in the statistics, and with a weight in the loss."""


class OffPolicy(StrEnum):
    """Log-probs that the importance ratio of off-policy tokens is computed against."""

    RECOMPUTE = "recompute"
    """The policy before the update, in the trained context: the ratio starts at 1 (biased, simple)."""
    STORED = "stored"
    """The log-probs stored when the tokens were sampled."""
    TRUNCATED = "truncated"
    """Same as `recompute`, with token weights by the recipe's `importance_correction` and the stored log-probs."""
    CROSS_VIEW = "cross_view"
    """The log-probs stored when the tokens were sampled, in a context that is not trained."""
    MIXTURE = "mixture"
    """For spliced tokens the probability of the splice, for tokens of the policy same as `recompute`."""
    NONE = "none"
    """No ratio: a supervised or preference loss."""

    @property
    def uses_stored_logprobs(self) -> bool:
        """Whether log-probs stored at sampling time replace the old log-probs of the policy."""
        return self in (OffPolicy.STORED, OffPolicy.CROSS_VIEW)


@dataclass(frozen=True, slots=True)
class Segment:
    """Contiguous token sequence that is trained in one forward pass.

    `Trajectory.segments` creates the segments of an episode.
    """

    trajectory_id: str
    """Id of the trajectory."""
    index: int
    """Index of the segment in its trajectory."""
    tokens: Tokens
    """[T] all tokens of the segment in order."""
    action_mask: tuple[bool, ...]
    """[T] True exactly on tokens that may be trained; see `TRAINABLE`."""
    turns: tuple[int, ...]
    """[T] index of the turn of each token."""
    advantages: tuple[float, ...] | None = None
    """[T] Advantage per token, 0 outside the mask; None before advantages are computed."""

    def __len__(self) -> int:
        return len(self.tokens)


TRAINABLE = frozenset({Author.POLICY, Author.EXPERT, Author.CORRECTED})
"""Authors whose tokens are trained. Inserted tokens are also trained if they have a log-prob."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Tokens, calls and environment steps that the episodes of a group used.

    Discarded episodes are included.
    """

    sampled_tokens: int = 0
    """Tokens sampled from the policy, including those of discarded turns and episodes."""
    reused_tokens: int = 0
    """Tokens of prefixes that forks share with other episodes; they are not sampled again."""
    tool_calls: int = 0
    """Number of tool calls, including those of discarded episodes."""
    environment_steps: int = 0
    """Environment steps, including those that replay an environment to the point of a fork."""

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.sampled_tokens + other.sampled_tokens,
            self.reused_tokens + other.reused_tokens,
            self.tool_calls + other.tool_calls,
            self.environment_steps + other.environment_steps,
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Turns of one episode from reset to end, with end reason and score."""

    id: str
    """Identifier, unique in the run."""
    task_id: str
    """Identifier of the task."""
    opening: tuple[Message, ...]
    """Initial messages of the episode."""
    turns: tuple[Turn, ...]
    """Turns of the episode in order."""
    ended: EndReason
    """Reason why the episode ended."""
    error: str | None = None
    """Cause of an end by `error`, `infrastructure`, `timeout` and similar, in one line."""
    score: Score | None = None
    """Reward; None before it is computed, and for ever if the end reason is invalid."""
    removal: RemovalScope | None = None
    """Statistics that a removed trajectory still counts in; None if it is not removed."""
    parent: str | None = None
    """Id of the trajectory from which this one was forked; None if it is no fork."""
    fork_turn: int | None = None
    """Number of initial turns shared with the parent; None if it is no fork."""
    greedy: bool = False
    """Whether it was sampled greedily, as a baseline for others; it is in no other statistic and in no loss."""
    marks: tuple[str, ...] = ()
    """Flags that describe how the episode was played: the rule that stopped it, `hinted`, `view_dropped`, …"""
    declared: tuple[tuple[str, str], ...] = ()
    """Properties of tools that models adapt to, as (name, value), such as `python: persistent`."""
    role: str = ""
    """Role in a game of several players; empty if there is only one."""
    member: str = ""
    """Member of `policies` that sampled the trajectory; empty if the recipe has only `policy`."""
    final: Mapping[str, Any] = field(default_factory=dict)
    """Final state that the environment reports at the end: `success`, `score`, counters; JSON values. Empty if it
    reports none. Rewards use only this and the turns, so they can be recomputed."""
    off_policy: OffPolicy = OffPolicy.RECOMPUTE
    """Log-probs that the importance ratios of its tokens are computed against."""
    seconds: float = 0.0
    """Seconds from reset to end."""
    closing: Tokens | None = None
    """Bootstrap context: tokens that the model would have read next, if a limit ended the episode after an observation;
    a critic estimates the remaining return there. None if no observation follows the last action, or if the template
    rewrote the history there."""
    provenance: Provenance = Provenance.SAMPLED
    """Origin of the trajectory."""

    @property
    def final_text(self) -> str:
        """Text of the last action; empty if there is none."""
        return self.turns[-1].message.text if self.turns else ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the episode: initial messages, actions and observations in order."""
        spoken = chain.from_iterable((turn.message, *turn.observation) for turn in self.turns)
        return (*self.opening, *spoken)

    @property
    def action_tokens(self) -> int:
        """Number of tokens that the policy wrote in all turns."""
        return sum(len(turn.action) for turn in self.turns)

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """All tool calls of the episode in order; calls made by the code of a call follow that call."""
        calls = chain.from_iterable(turn.calls for turn in self.turns)
        return tuple(record for call in calls for record in (call, *(each.record for each in call.inner)))

    @property
    def solved(self) -> bool:
        """Whether the reward reports success; False before the reward is computed."""
        return self.score is not None and bool(self.score.success)

    def segments(self, *, observations: bool = False) -> tuple[Segment, ...]:
        """Return the token sequences to train on.

        An episode is one segment, or several if its context was rewritten. A turn whose `training_context` differs has
        a separate segment, because no other turn was generated after that context. Segments without a trainable token
        are left out.

        Args:
            observations: Whether tokens between the actions of a segment are trained too: tool results and the text
                that the template writes around them. They are not sampled, so they have no log-prob.
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
        """Render the conversation as HTML for a notebook."""
        score = "none" if self.score is None else f"{self.score.value:g}"
        parts = {name: f"{value:g}" for name, value in self.score.parts.items()} if self.score is not None else {}
        ended = f"{self.ended} ({self.error})" if self.error else str(self.ended)
        facts = {"task": self.task_id, "ended": ended, "turns": str(len(self.turns)), "reward": score, **parts}
        return notebook_html.render_box(self.id, facts, notebook_html.render_conversation(self.messages))


def list_segment_turns(turns: Sequence[Turn], conversation: int) -> list[Turn]:
    """Return the earlier turns that the next action of a conversation extends, in order.

    These are the turns of the conversation since its context was last rewritten.

    Args:
        turns: All turns so far, of every conversation of the episode.
        conversation: Number of the conversation.
    """
    own = [turn for turn in turns if turn.conversation == conversation]
    opened = max((number for number, turn in enumerate(own) if turn.opens_segment), default=0)
    return own[opened:]


def _without_author(action: Tokens) -> Tokens:
    """Return an action as context tokens that are not trained."""
    return Tokens.from_ids(action.sequence, Author.INSERTED)


def _segment(trajectory_id: str, index: int, pieces: Sequence[tuple[int, Tokens]], observations: bool) -> Segment:
    tokens = Tokens.concatenate(piece for _, piece in pieces)
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
    """All trajectories of one task that were sampled together."""

    task: Task
    """Task of all trajectories."""
    trajectories: tuple[Trajectory, ...]
    """[N] trajectories, including forks and removed ones."""
    number: int = 0
    """Index among the groups of a run, in the order of their start."""
    costs: Costs = Costs()
    """Tokens, calls and steps that the group used."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """[N] reward of each trajectory that has a score and was not removed before the baseline."""
        return tuple(t.score.value for t in self.counted if t.score is not None)

    @property
    def counted(self) -> tuple[Trajectory, ...]:
        """Trajectories that count in the statistics of the group, such as the baseline."""
        return tuple(
            t for t in self.trajectories if t.score is not None and t.removal is not RemovalScope.BEFORE_BASELINE
        )

    def _repr_html_(self) -> str:
        """Render a table of the trajectories and their conversations as HTML for a notebook."""
        rows = [
            (t.id, f"{t.score.value:g}" if t.score else "none", str(t.ended), str(len(t.turns)), str(t.action_tokens))
            for t in self.trajectories
        ]
        overview = notebook_html.render_table(("trajectory", "reward", "ended", "turns", "tokens"), rows)
        each = "".join(
            notebook_html.render_collapsible(t.id, notebook_html.render_conversation(t.messages))
            for t in self.trajectories
        )
        facts = {"trajectories": str(len(self.trajectories)), "number": str(self.number)}
        return notebook_html.render_box(self.task.id, facts, overview + each)
