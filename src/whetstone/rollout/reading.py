"""What does the policy read in an episode, and behind what is it trained where that differs?

    environment's messages → views, one after the other → context;  beside it, without them → training context

Easy to get wrong: a view that makes the context too long must not end the episode, nor vanish unseen. It is dropped for
the episode and said so, or the task is refused, as the recipe says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whetstone.chat import Chat, Context, Message, ToolSpec
from whetstone.errors import PromptTooLong
from whetstone.rollout.protocol import ContextTransform, EpisodeState
from whetstone.trajectory import Author, OffPolicy, Tokens, Turn

Overflow = Literal["drop", "refuse"]


@dataclass(frozen=True, slots=True)
class _Place:
    """All there is to know in front of an action."""

    seen: Context
    plain: Context | None
    said: int
    """Messages of the conversation so far."""


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
        """Everything said, as the policy saw it."""
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
        """What stands in front of the next action."""
        return self._places[-1].seen

    @property
    def training_context(self) -> Tokens | None:
        """What its action is trained behind, where that is something else."""
        plain = self._places[-1].plain
        return Tokens.written(plain.ids, Author.ENVIRONMENT) if plain is not None else None

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
        self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState
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
        self._begin(seen, plain if self._differs(shown != messages) else None, shown)
        return shown

    def answer(self, turn: Turn, so_far: EpisodeState) -> tuple[Message, ...]:
        """A turn and what came back; returns what came back as it is read."""
        messages, ids, place = turn.observation, turn.action.ids, self._places[-1]
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
        self._add(turn.message, shown, seen, None if plain is None else self.chat.extend(plain, ids, messages))
        return shown

    def as_it_was(self, turn: Turn) -> None:
        """A turn and what came back, as it was read before."""
        place, ids = self._places[-1], turn.action.ids
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(turn.message, turn.observation, self.chat.extend(place.seen, ids, turn.observation), plain)

    def reopen(self, messages: tuple[Message, ...], tools: Sequence[ToolSpec], so_far: EpisodeState) -> None:
        """Nothing but these messages, and what views make of them, is read from here on."""
        del self._places[-1:]  # what stood in front of the next action is replaced
        self._opened(messages, tools, so_far)

    def afresh(self, turn: Turn, tools: Sequence[ToolSpec], so_far: EpisodeState) -> None:
        """A turn, and behind it nothing but what came back, in a segment of its own."""
        self.as_it_was(turn)
        self.reopen(turn.observation, tools, so_far)

    def instead(self, turn: Turn, ids: Sequence[int], message: Message) -> None:
        """A turn and what came back, as if this had been said in its place; the action itself is not in the history."""
        place = self._places[-1]
        seen = self.chat.extend(place.seen, ids, turn.observation)
        plain = self.chat.extend(place.plain, ids, turn.observation) if place.plain is not None else None
        self._add(message, turn.observation, replace(seen, new=seen.ids, opens_segment=True), plain)

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

    def _begin(self, seen: Context, plain: Context | None, messages: Sequence[Message]) -> None:
        self.conversation[:] = messages
        self._stand(seen, plain)

    def _add(self, said: Message, messages: Sequence[Message], seen: Context, plain: Context | None) -> None:
        self.conversation += [said, *messages]
        self._stand(seen, plain)

    def _stand(self, seen: Context, plain: Context | None) -> None:
        """This stands in front of the next action. Contexts grow: those before are held only where they are needed."""
        if not self.history:
            self._places.clear()
        self._places.append(_Place(seen, plain, len(self.conversation)))
