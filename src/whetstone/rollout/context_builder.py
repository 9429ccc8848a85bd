"""Builds the contexts of an episode: those the policy reads, and those its actions are trained on if they differ.

    environment's messages → views, in order → context;  without them → training context

Note:
    A context transform that makes the context too long must not end the episode, nor be dropped silently. Depending on
    the recipe it is dropped for the episode, which is marked, or the task is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from whetstone.chat import Chat, Context, Message, ToolSpec
from whetstone.errors import PromptTooLong
from whetstone.rollout.protocol import ContextTransform, EpisodeState
from whetstone.trajectory import Author, OffPolicy, Tokens, Turn

Overflow = Literal["drop", "refuse"]


@dataclass(frozen=True, slots=True)
class _Left:
    """A suspended conversation, while the episode continues in another one."""

    place: _Place
    turn: Turn
    """Last turn of the conversation, without an observation so far."""
    messages: tuple[Message, ...]
    """All messages of the conversation, including the turn."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Contexts of the next action."""

    seen: Context
    plain: Context | None
    num_messages: int
    """Number of messages of the conversation so far."""
    number: int = 0
    """Number of its conversation."""
    left: Mapping[int, _Left] = field(default_factory=dict)
    """Suspended conversations, by number."""


class ContextBuilder:
    """Builder of the contexts of one episode.

    Args:
        views: Context transforms, applied in this order; each receives the output of the previous one.
        context_length: Maximum number of tokens in the model's context.
        overflow: Action if a context transform does not fit.
        history: Whether `back_to` can be called; otherwise only the last context is stored.
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

    @property
    def has_context(self) -> bool:
        """Return whether the episode has a context."""
        return bool(self._places)

    @property
    def seen(self) -> Context:
        """Return the context of the next action."""
        return self._places[-1].seen

    @property
    def number(self) -> int:
        """Return the number of the conversation that the next action belongs to."""
        return self._places[-1].number

    @property
    def training_context(self) -> Tokens | None:
        """Return the context that the next action is trained in, if it differs."""
        plain = self._places[-1].plain
        return Tokens.from_ids(plain.tokens, Author.ENVIRONMENT) if plain is not None else None

    def open(
        self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """Start the context; return the initial messages as the policy reads them.

        Raises:
            PromptTooLong: If they leave no room for a response: with the transforms, if those may not be dropped.
        """
        self._places.clear()
        return self._opened(messages, tools, so_far)

    def _opened(
        self,
        messages: tuple[Message, ...],
        tools: Sequence[ToolSpec],
        so_far: EpisodeState,
        number: int = 0,
        left: Mapping[int, _Left] = MappingProxyType({}),
    ) -> tuple[Message, ...]:
        plain = self.chat.open(messages, tools)
        transformed, seen = messages, plain
        for view in self.views:
            transformed = view.opening(transformed, so_far)
        if transformed != messages:
            seen = self.chat.open(transformed, tools)
            if len(seen.ids) >= self.context_length > len(plain.ids):
                transformed, seen = self._drop_transforms(so_far, len(seen.ids), messages, plain)
        if len(seen.ids) >= self.context_length:
            raise PromptTooLong(
                f"task {so_far.occasion.task.id}: its prompt is {len(seen.ids)} tokens, the context "
                f"{self.context_length}; shorten the prompt or use a model with a longer context"
            )
        self.conversation[:] = transformed
        self._stand(seen, plain if self._differs(transformed != messages) else None, number, left)
        return transformed

    def answer(self, turn: Turn, so_far: EpisodeState) -> tuple[Message, ...]:
        """Add a turn and its observation; return the observation as the policy reads it."""
        self.conversation.append(turn.message)
        return self._answered(turn, turn.observation, self._places[-1], so_far)

    def _answered(
        self, turn: Turn, messages: tuple[Message, ...], place: _Place, so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """Add the messages that follow a turn of this place."""
        ids = turn.action.ids
        transformed = messages
        for view in self.views:
            transformed = view.observation(transformed, so_far)
        seen = self.chat.extend(place.seen, ids, transformed)
        if transformed != messages and len(seen.ids) >= self.context_length:
            without = self.chat.extend(place.seen, ids, messages)
            if len(without.ids) < self.context_length:
                transformed, seen = self._drop_transforms(so_far, len(seen.ids), messages, without)
        plain = place.plain
        if plain is None and self._differs(transformed != messages):
            plain = place.seen
        self.conversation += transformed
        extended = None if plain is None else self.chat.extend(plain, ids, messages)
        self._stand(seen, extended, place.number, place.left)
        return transformed

    def as_it_was(self, turn: Turn) -> None:
        """Add a recorded turn and its observation unchanged."""
        place, ids = self._places[-1], turn.action.ids
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(turn.message, turn.observation, self.chat.extend(place.seen, ids, turn.observation), plain)

    def replace_context(self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState) -> None:
        """Replace the context by these messages, transformed."""
        place = self._places.pop()  # replaces the context of the next action
        self._opened(messages, tools, so_far, place.number, place.left)

    def switch_context(
        self, turn: Turn, number: int, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """Continue in another conversation after a turn of the current one, or start one.

        Args:
            turn: Last turn of the current conversation.
            number: Number of the other conversation; below 0: a new one.
            messages: New messages of the other conversation.
            tools: Tools of the other conversation.

        Returns:
            The messages as the policy reads them.
        """
        current = self._places[-1]
        left = dict(current.left)
        if number < 0:
            number = 1 + max([current.number, *left])
        left[current.number] = _Left(current, turn, (*self.conversation, turn.message))
        if number not in left:
            return self._opened(messages, tools, so_far, number, left)
        back = left.pop(number)
        self.conversation[:] = back.messages
        return self._answered(back.turn, messages, replace(back.place, left=left), so_far)

    def replace_turn(self, turn: Turn, ids: Sequence[int], message: Message) -> None:
        """Add a turn and its observation, with `message` instead of the action, which is not in the history."""
        place = self._places[-1]
        seen = self.chat.extend(place.seen, ids, turn.observation)
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(message, turn.observation, replace(seen, new=seen.tokens, opens_segment=True), plain)

    def back_to(self, number: int) -> None:
        """Restore the context of action `number` as that of the next action."""
        del self._places[number + 1 :]
        del self.conversation[self._places[-1].num_messages :]

    def _drop_transforms(
        self, so_far: EpisodeState, tokens: int, messages: tuple[Message, ...], context: Context
    ) -> tuple[tuple[Message, ...], Context]:
        if self.overflow == "refuse":
            names = ", ".join(type(view).__name__ for view in self.views)
            raise PromptTooLong(
                f"task {so_far.occasion.task.id}: with {names} its prompt is {tokens} tokens, the context "
                f"{self.context_length}; shorten these texts, or set rollout.on_context_overflow: drop"
            )
        self.dropped = True
        return messages, context

    def _differs(self, shown_something: bool) -> bool:
        """Return whether actions are trained in another context than they are sampled in."""
        untrained = [view for view in self.views if view.trained_on == "original"]
        if not untrained or not shown_something:
            return False
        self.off_policy = untrained[0].off_policy
        return True

    def _add(self, message: Message, messages: Sequence[Message], seen: Context, plain: Context | None) -> None:
        self.conversation += [message, *messages]
        self._stand(seen, plain, self._places[-1].number, self._places[-1].left)

    def _stand(self, seen: Context, plain: Context | None, number: int, left: Mapping[int, _Left]) -> None:
        """Store the context of the next action. Contexts grow, so earlier ones are stored only if needed."""
        if not self.history:
            self._places.clear()
        self._places.append(_Place(seen, plain, len(self.conversation), number, left))
