"""Builds the contexts of one episode: those that the policy reads, and those that its actions are trained on.

    environment's messages → context transforms, in order → context;  without transforms → training context

Note:
    A context transform that makes the context too long must not end the episode, nor be dropped silently. Depending on
    `rollout.on_context_overflow` it is dropped for the episode, which is marked, or the task is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whetstone.chat import Chat, Context, Message, ToolSpec
from whetstone.environments.protocol import MAX_BRANCH_POINTS
from whetstone.errors import PromptTooLong
from whetstone.rollout.protocol import ContextTransform, EpisodeState
from whetstone.trajectory import Author, OffPolicy, Tokens, Turn

Overflow = Literal["drop", "refuse"]
"""Handling of context transforms that do not fit: `drop` them for the episode, or `refuse` the task."""


@dataclass(frozen=True, slots=True)
class _Left:
    """Suspended conversation of an episode that continues in another conversation."""

    place: _Place
    turn: Turn
    """Last turn of the suspended conversation; its observation arrives when the episode returns to it."""
    messages: tuple[Message, ...]
    """All messages of the suspended conversation, including its last turn."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Contexts of the next action in the current conversation."""

    seen: Context
    """Context that the policy reads."""
    plain: Context | None
    """Context without the transforms, if actions are trained on it; None: trained on `seen`."""
    num_messages: int
    """Number of messages of the conversation so far."""
    number: int = 0
    """Number of the conversation."""


class ContextBuilder:
    """Builds the contexts of one episode turn by turn. The runner creates one for each episode.

    Args:
        chat: Renders messages to tokens.
        views: Context transforms, applied in this order; each receives the output of the previous one.
        context_length: Maximum number of tokens in the model's context.
        overflow: Handling of a context transform that does not fit.
        history: Whether `rewind_to` can be called; if not, only the last context is stored.
    """

    def __init__(
        self,
        chat: Chat,
        views: Sequence[ContextTransform] = (),
        *,
        context_length: int,
        overflow: Overflow = "drop",
        history: bool = False,
    ) -> None:
        self.chat, self.views, self.context_length, self.overflow = chat, tuple(views), context_length, overflow
        self.history = history
        self.conversation: list[Message] = []
        """All messages of the current conversation, as the policy read them."""
        self.dropped = False
        """Whether a context transform did not fit and was left out."""
        self.off_policy = OffPolicy.RECOMPUTE
        self._places: list[_Place] = []
        self._suspended: dict[int, _Left] = {}
        """Conversations that wait for their next messages, by number."""
        self._sampling: dict[int, tuple[_Place, tuple[Message, ...]]] = {}
        """Conversations whose next action is being sampled, with their messages, by number."""
        self._branch_points: dict[int, dict[int, _Left]] = {}
        """By conversation and number of an action in it, the places after its last actions."""

    @property
    def has_context(self) -> bool:
        """Return whether `open_context` was called, so that a next context exists."""
        return bool(self._places)

    @property
    def next_context(self) -> Context:
        """Return the context in which the next action is sampled."""
        return self._places[-1].seen

    @property
    def conversation_number(self) -> int:
        """Return the number of the current conversation, from 0.

        An agent can hold several conversations.
        """
        return self._places[-1].number

    @property
    def training_context(self) -> Tokens | None:
        """Return the tokens of the context that the next action is trained on.

        Returns None if actions are trained on the sampled context.
        """
        plain = self._places[-1].plain
        return Tokens.from_ids(plain.tokens, Author.ENVIRONMENT) if plain is not None else None

    def open_context(
        self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], state: EpisodeState
    ) -> tuple[Message, ...]:
        """Render the initial messages of the environment as the first context.

        Returns:
            The initial messages after the context transforms.

        Raises:
            PromptTooLong: If the messages leave no room for a response, or the transformed ones with `overflow:
                refuse`.
        """
        self._places.clear()
        return self._opened(messages, tools, state)

    def _opened(
        self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], state: EpisodeState, number: int = 0
    ) -> tuple[Message, ...]:
        plain = self.chat.open(messages, tools)
        transformed, seen = messages, plain
        for view in self.views:
            transformed = view.opening(transformed, state)
        if transformed != messages:
            seen = self.chat.open(transformed, tools)
            if len(seen.ids) >= self.context_length > len(plain.ids):
                transformed, seen = self._drop_transforms(state, len(seen.ids), messages, plain)
        if len(seen.ids) >= self.context_length:
            raise PromptTooLong(
                f"task {state.episode_key.task.id}: its prompt has {len(seen.ids)} tokens, and the model's context "
                f"{self.context_length}; shorten the prompt or use a model with a longer context"
            )
        self.conversation[:] = transformed
        self._stand(seen, plain if self._differs(transformed != messages) else None, number)
        return transformed

    def add_turn(self, turn: Turn, state: EpisodeState) -> tuple[Message, ...]:
        """Append a turn and its observation to the context.

        Returns:
            The messages of the observation after the context transforms.
        """
        self.conversation.append(turn.message)
        return self._answered(turn, turn.observation, self._places[-1], state)

    def _answered(
        self, turn: Turn, messages: tuple[Message, ...], place: _Place, state: EpisodeState
    ) -> tuple[Message, ...]:
        """Append the messages that follow a turn to the contexts at `place`, and return the transformed messages."""
        ids = turn.action.ids
        transformed = messages
        for view in self.views:
            transformed = view.observation(transformed, state)
        seen = self.chat.extend(place.seen, ids, transformed)
        if transformed != messages and len(seen.ids) >= self.context_length:
            without = self.chat.extend(place.seen, ids, messages)
            if len(without.ids) < self.context_length:
                transformed, seen = self._drop_transforms(state, len(seen.ids), messages, without)
        plain = place.plain
        if plain is None and self._differs(transformed != messages):
            plain = place.seen
        self.conversation += transformed
        extended = None if plain is None else self.chat.extend(plain, ids, messages)
        self._stand(seen, extended, place.number)
        return transformed

    def restore_turn(self, turn: Turn) -> None:
        """Append a recorded turn and its observation without applying context transforms again."""
        place, ids = self._places[-1], turn.action.ids
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(turn.message, turn.observation, self.chat.extend(place.seen, ids, turn.observation), plain)

    def replace_context(self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], state: EpisodeState) -> None:
        """Replace the context by these messages, transformed as initial messages; used after a context rewrite."""
        place = self._places.pop()  # replaces the context of the next action
        self._opened(messages, tools, state, place.number)

    def switch_context(
        self, turn: Turn, number: int, messages: tuple[Message, ...], tools: Sequence[ToolSpec], state: EpisodeState
    ) -> tuple[Message, ...]:
        """Continue the episode in another conversation after a turn of the current one.

        Args:
            turn: Last turn of the current conversation.
            number: Number of the other conversation; below 0: a new one.
            messages: New messages of the other conversation.
            tools: Tools of the other conversation.
            state: State of the episode that context transforms receive.

        Returns:
            The new messages after the context transforms.
        """
        self.suspend_conversation(turn)
        return self.continue_conversation(number, messages, tools, state)

    def suspend_conversation(self, turn: Turn, *, branches: bool = False) -> None:
        """Suspend the current conversation after its action, until its next messages arrive.

        Args:
            turn: Turn with the action.
            branches: Whether a new conversation can start after this action (`continue_conversation`). The last
                `MAX_BRANCH_POINTS` actions of a conversation are stored for this.
        """
        place = self._places[-1]
        left = self._suspended[place.number] = _Left(place, turn, (*self.conversation, turn.message))
        if branches:
            points = self._branch_points.setdefault(place.number, {})
            last = 1 + max(points, default=-1)
            points[last] = left
            points.pop(last - MAX_BRANCH_POINTS, None)

    def continue_conversation(
        self,
        number: int,
        messages: tuple[Message, ...],
        tools: Sequence[ToolSpec],
        state: EpisodeState,
        branch: tuple[int, int] | None = None,
    ) -> tuple[Message, ...]:
        """Make a suspended or a new conversation the current one, with these new messages.

        Args:
            number: Number of the conversation; below 0: a new one.
            messages: New messages of the conversation.
            tools: Tools of a new conversation.
            state: State of the episode that context transforms receive.
            branch: (conversation, number of its action) after which a new conversation starts; see
                `Observation.branch`. Its context starts with the sampled tokens of that conversation.

        Returns:
            The new messages after the context transforms.
        """
        if number < 0:
            number = 1 + max([self._places[-1].number, *self._suspended, *self._sampling])
        if branch is not None:
            point = self._branch_points[branch[0]][branch[1]]
            self.conversation[:] = point.messages
            transformed = self._answered(point.turn, messages, replace(point.place, number=number), state)
            place = self._places[-1]
            self._places[-1] = replace(place, seen=replace(place.seen, new=place.seen.tokens, opens_segment=True))
            return transformed
        if number not in self._suspended:
            return self._opened(messages, tools, state, number)
        back = self._suspended.pop(number)
        self.conversation[:] = back.messages
        return self._answered(back.turn, messages, back.place, state)

    def begin_sampling(self) -> None:
        """Store the current conversation while its action is sampled, so that others can be continued meanwhile."""
        place = self._places[-1]
        self._sampling[place.number] = (place, tuple(self.conversation))

    def select_conversation(self, number: int) -> None:
        """Make a conversation whose action was sampled the current one; see `begin_sampling`."""
        place, messages = self._sampling.pop(number)
        self._places[-1:] = [place]
        self.conversation[:] = messages

    def replace_turn(self, turn: Turn, ids: Sequence[int], message: Message) -> None:
        """Append a turn whose history contains another message than its sampled action, and start a new segment.

        Used if the environment executed a modified action.

        Args:
            turn: Turn with its observation.
            ids: Tokens of `message`.
            message: Message that the history contains instead of the sampled action.
        """
        place = self._places[-1]
        seen = self.chat.extend(place.seen, ids, turn.observation)
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(message, turn.observation, replace(seen, new=seen.tokens, opens_segment=True), plain)

    def rewind_to(self, number: int) -> None:
        """Restore the context of the action with this number, from 0, as the next context.

        Requires `history`.
        """
        del self._places[number + 1 :]
        del self.conversation[self._places[-1].num_messages :]

    def _drop_transforms(
        self, state: EpisodeState, tokens: int, messages: tuple[Message, ...], context: Context
    ) -> tuple[tuple[Message, ...], Context]:
        if self.overflow == "refuse":
            names = ", ".join(type(view).__name__ for view in self.views)
            raise PromptTooLong(
                f"task {state.episode_key.task.id}: with {names} its prompt has {tokens} tokens, and the model's "
                f"context {self.context_length}; shorten these texts, or set rollout.on_context_overflow: drop"
            )
        self.dropped = True
        return messages, context

    def _differs(self, shown_something: bool) -> bool:
        """Return whether actions are trained on another context than they are sampled in."""
        untrained = [view for view in self.views if view.trained_on == "original"]
        if not untrained or not shown_something:
            return False
        self.off_policy = untrained[0].off_policy
        return True

    def _add(self, message: Message, messages: Sequence[Message], seen: Context, plain: Context | None) -> None:
        self.conversation += [message, *messages]
        self._stand(seen, plain, self._places[-1].number)

    def _stand(self, seen: Context, plain: Context | None, number: int) -> None:
        """Store the contexts of the next action; earlier contexts are stored only with `history`."""
        if not self.history:
            self._places.clear()
        self._places.append(_Place(seen, plain, len(self.conversation), number))
