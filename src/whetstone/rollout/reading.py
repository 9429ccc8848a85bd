"""The contexts of an episode: what the policy reads, and what its actions are trained on if that differs.

    environment's messages → views, in order → context;  without them → training context

Easy to get wrong: a view that makes the context too long must not end the episode, nor vanish unseen. It is dropped for
the episode and said so, or the task is refused, depending on the recipe.
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
    """A conversation that waits while the episode continues in another one."""

    place: _Place
    turn: Turn
    """The last turn of the conversation, without an answer so far."""
    said: tuple[Message, ...]
    """Everything said in the conversation, the turn included."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The contexts of the next action."""

    seen: Context
    plain: Context | None
    said: int
    """Messages of the conversation so far."""
    number: int = 0
    """The number of its conversation."""
    left: Mapping[int, _Left] = field(default_factory=dict)
    """The other conversations, by number."""


class Reading:
    """The contexts of one episode.

    Args:
        views: Applied in this order; each sees what those before it made.
        context_length: Tokens the model can have in view.
        overflow: What becomes of a view that does not fit.
        history: Whether `back_to` may be asked for; else only the last context is held.
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
        """Everything said in the current conversation, as the policy saw it."""
        self.dropped = False
        """Whether a view did not fit and was left out."""
        self.off_policy = OffPolicy.RECOMPUTE
        self._places: list[_Place] = []

    @property
    def begun(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._places)

    @property
    def seen(self) -> Context:
        """The context of the next action."""
        return self._places[-1].seen

    @property
    def number(self) -> int:
        """The number of the conversation that the next action belongs to."""
        return self._places[-1].number

    @property
    def training_context(self) -> Tokens | None:
        """What its action is trained behind, where that is something else."""
        plain = self._places[-1].plain
        return Tokens.written(plain.tokens, Author.ENVIRONMENT) if plain is not None else None

    def open(
        self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """The beginning; returns the messages as they are read.

        Raises:
            PromptTooLong: They leave no room for an answer: with the views, where those are not to be dropped.
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
        shown, seen = messages, plain
        for view in self.views:
            shown = view.opening(shown, so_far)
        if shown != messages:
            seen = self.chat.open(shown, tools)
            if len(seen.ids) >= self.context_length > len(plain.ids):
                shown, seen = self._left_out(so_far, len(seen.ids), messages, plain)
        if len(seen.ids) >= self.context_length:
            raise PromptTooLong(
                f"task {so_far.occasion.task.id}: its prompt is {len(seen.ids)} tokens, the context "
                f"{self.context_length}; shorten the prompt or use a model with a longer context"
            )
        self.conversation[:] = shown
        self._stand(seen, plain if self._differs(shown != messages) else None, number, left)
        return shown

    def answer(self, turn: Turn, so_far: EpisodeState) -> tuple[Message, ...]:
        """Add a turn and its observation; return the observation as it is read."""
        self.conversation.append(turn.message)
        return self._answered(turn, turn.observation, self._places[-1], so_far)

    def _answered(
        self, turn: Turn, messages: tuple[Message, ...], place: _Place, so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """Add the messages that answer a turn of this place."""
        ids = turn.action.ids
        shown = messages
        for view in self.views:
            shown = view.observation(shown, so_far)
        seen = self.chat.extend(place.seen, ids, shown)
        if shown != messages and len(seen.ids) >= self.context_length:
            without = self.chat.extend(place.seen, ids, messages)
            if len(without.ids) < self.context_length:
                shown, seen = self._left_out(so_far, len(seen.ids), messages, without)
        plain = place.plain
        if plain is None and self._differs(shown != messages):
            plain = place.seen
        self.conversation += shown
        extended = None if plain is None else self.chat.extend(plain, ids, messages)
        self._stand(seen, extended, place.number, place.left)
        return shown

    def as_it_was(self, turn: Turn) -> None:
        """A turn and what came back, as it was read before."""
        place, ids = self._places[-1], turn.action.ids
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(turn.message, turn.observation, self.chat.extend(place.seen, ids, turn.observation), plain)

    def reopen(self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState) -> None:
        """Nothing but these messages, and what views make of them, is read from here on."""
        place = self._places.pop()  # what stood in front of the next action is replaced
        self._opened(messages, tools, so_far, place.number, place.left)

    def switch(
        self, turn: Turn, number: int, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState
    ) -> tuple[Message, ...]:
        """Continue in another conversation after a turn of the current one, or start one.

        Args:
            turn: The last turn of the current conversation.
            number: The other conversation; below 0: a new one.
            messages: The new messages of it.
            tools: The tools of it.

        Returns:
            The messages as they are read.
        """
        here = self._places[-1]
        left = dict(here.left)
        if number < 0:
            number = 1 + max([here.number, *left])
        left[here.number] = _Left(here, turn, (*self.conversation, turn.message))
        if number not in left:
            return self._opened(messages, tools, so_far, number, left)
        back = left.pop(number)
        self.conversation[:] = back.said
        return self._answered(back.turn, messages, replace(back.place, left=left), so_far)

    def instead(self, turn: Turn, ids: Sequence[int], message: Message) -> None:
        """A turn and what came back, as if this had been said in its place; the action itself is not in the history."""
        place = self._places[-1]
        seen = self.chat.extend(place.seen, ids, turn.observation)
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(message, turn.observation, replace(seen, new=seen.tokens, opens_segment=True), plain)

    def back_to(self, number: int) -> None:
        """What stood in front of action `number` stands in front of the next."""
        del self._places[number + 1 :]
        del self.conversation[self._places[-1].said :]

    def _left_out(
        self, so_far: EpisodeState, tokens: int, messages: tuple[Message, ...], context: Context
    ) -> tuple[tuple[Message, ...], Context]:
        if self.overflow == "refuse":
            names = ", ".join(type(view).__name__ for view in self.views)
            raise PromptTooLong(
                f"task {so_far.occasion.task.id}: with what {names} shows it reads {tokens} tokens, the context is "
                f"{self.context_length}; show less, or set rollout.on_context_overflow: drop"
            )
        self.dropped = True
        return messages, context

    def _differs(self, shown_something: bool) -> bool:
        """Whether actions are to be trained behind something else than what they are drawn behind."""
        untrained = [view for view in self.views if view.trained_on == "original"]
        if not untrained or not shown_something:
            return False
        self.off_policy = untrained[0].off_policy
        return True

    def _add(self, said: Message, messages: Sequence[Message], seen: Context, plain: Context | None) -> None:
        self.conversation += [said, *messages]
        self._stand(seen, plain, self._places[-1].number, self._places[-1].left)

    def _stand(self, seen: Context, plain: Context | None, number: int, left: Mapping[int, _Left]) -> None:
        """This stands in front of the next action. Contexts grow: those before are held only where they are needed."""
        if not self.history:
            self._places.clear()
        self._places.append(_Place(seen, plain, len(self.conversation), number, left))
