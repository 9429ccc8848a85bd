"""How does what stands in a file become what a learner imitates? As episodes an expert would have played, in tokens.

Easy to get wrong: a template may write a message otherwise than it reads it (a call's arguments reordered, thinking
dropped). What would not survive is said, and not learned from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from whetstone.chat import Chat, Message
from whetstone.data.conversations import Chosen, Conversation, everything
from whetstone.data.order import Shuffled
from whetstone.errors import PolicyError
from whetstone.trajectory import Author, EndReason, Provenance, Score, Segment, Tokens, Trajectory, Turn


class Drawn(Protocol):
    """What a stage imitates: the n-th of an endless row of episodes."""

    def episode(self, draw: int) -> Trajectory:
        """The episode of the n-th draw; one that cannot be learned from has no score, and says why."""
        ...


class Demonstrations:
    """Conversations in a shuffled order, again when all were seen.

    Args:
        chosen: Which messages of the assistant are learned from.
        context_length: Tokens a conversation may have.
        seed: Of the order.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        chat: Chat,
        *,
        chosen: Chosen = everything,
        context_length: int,
        seed: int = 0,
    ) -> None:
        self._conversations, self._chat, self._chosen = conversations, chat, chosen
        self._context_length = context_length
        self._order = Shuffled(len(conversations), seed=seed)

    def all(self) -> Iterator[Trajectory]:
        """Return every conversation as an episode, in the order of the file, also if it is longer than the context."""
        return (written(each, self._chat, chosen=self._chosen) for each in self._conversations)

    def episode(self, draw: int) -> Trajectory:
        """See `Drawn`."""
        conversation = self._conversations[self._order[draw]]
        return written(conversation, self._chat, chosen=self._chosen, context_length=self._context_length)


def written(
    conversation: Conversation, chat: Chat, *, chosen: Chosen = everything, context_length: float = math.inf
) -> Trajectory:
    """A conversation as an episode: what the assistant said in the tokens a model would have to sample for it.

    Args:
        chosen: Which of the assistant's messages are learned from; the others are read.
        context_length: Tokens it may have.

    Returns:
        With a score of 1; without one, and with `error` in a line, where it cannot be learned from.
    """
    try:
        turns = _turns(conversation, chat, frozenset(conversation.learned(chosen)))
    except (PolicyError, ValueError) as error:
        return _left_out(conversation, str(error).partition("\n")[0])
    episode = _episode(conversation, turns)
    if not episode.segments():
        reasons = ", ".join(conversation.count_exclusions(chosen))
        if reasons != "train_on":
            return _left_out(conversation, f"all of its turns are excluded from training ({reasons})")
        return _left_out(conversation, "train_on selects none of its turns")
    longest = max(map(len, episode.segments()))
    if longest > context_length:
        return _left_out(conversation, f"it has {longest:,} tokens, the context {context_length:,.0f}")
    return replace(episode, score=Score(1.0, success=True))


def _turns(conversation: Conversation, chat: Chat, learned: frozenset[int]) -> tuple[Turn, ...]:
    messages, tools = conversation.messages, conversation.tools
    spoken = [place for place, message in enumerate(messages) if message.role == "assistant"]
    context = chat.open(messages[: spoken[0]], tools)
    turns = []
    for number, place in enumerate(spoken):
        ids = chat.write(messages[place], tools)
        read = chat.read(ids, tools, turn=number)
        if place in learned and not same(read, messages[place]):
            unknown = {call.name for call in messages[place].tool_calls} - {tool.name for tool in tools}
            hint = f"; no tool {', '.join(sorted(unknown))} is declared: add a column `tools`" if unknown else ""
            raise ValueError(f"message {place + 1} would not survive the template: it is read as {_shown(read)}{hint}")
        author = Author.EXPERT if place in learned else Author.INSERTED
        following = spoken[number + 1] if number + 1 < len(spoken) else len(messages)
        answered = messages[place + 1 : following]
        turns.append(
            Turn(
                context=Tokens.written(context.new, Author.ENVIRONMENT),
                action=Tokens.written(ids, author),
                message=read,
                observation=answered,
                opens_segment=context.opens_segment,
            )
        )
        if number + 1 < len(spoken):
            context = chat.extend(context, ids, answered)
    return tuple(turns)


def same(read: Message, given: Message) -> bool:
    """Whether a message that was written and read again is what was given, up to space around its text."""
    if read.malformed or _thought_and_answer(read) != _thought_and_answer(given):
        return False
    if len(read.tool_calls) != len(given.tool_calls):
        return False
    return all(
        one.name == other.name and _parsed(one.arguments) == _parsed(other.arguments)
        for one, other in zip(read.tool_calls, given.tool_calls, strict=True)
    )


def _thought_and_answer(message: Message) -> tuple[str, str]:
    """Split a text at the end of its thought; templates differ in the space around the signs of a thought."""
    thought, _, answer = message.text.rpartition("</think>")
    return thought.strip().removeprefix("<think>").strip(), answer.strip()


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _shown(message: Message) -> str:
    said = message.malformed[0] if message.malformed else message.text or ", ".join(c.name for c in message.tool_calls)
    return repr(said if len(said) <= 80 else f"{said[:79]}…")


def _episode(conversation: Conversation, turns: tuple[Turn, ...]) -> Trajectory:
    first = next(place for place, message in enumerate(conversation.messages) if message.role == "assistant")
    opening = conversation.messages[:first]
    where, demonstrated = conversation.where, Provenance.DEMONSTRATED
    return Trajectory(where, where, opening, turns, EndReason.TERMINATED, provenance=demonstrated)


def _left_out(conversation: Conversation, why: str) -> Trajectory:
    episode = _episode(conversation, ())
    return replace(episode, opening=episode.opening[:1], ended=EndReason.ERROR, error=f"{conversation.where}  {why}")


class Texts:
    """Windows of plain text, one text behind the other, each ended by the tokenizer's token for that.

    Args:
        window: Tokens in one.
        seed: Of the order of texts within each pass over all of them.
    """

    def __init__(self, texts: Sequence[str], chat: Chat, *, window: int, seed: int = 0) -> None:
        end = chat.tokenizer.eos_token_id
        end = end if end is not None else min(chat.stop_ids)
        order = Shuffled(len(texts), seed=seed)
        ids = [token for place in range(len(texts)) for token in (*chat.encode(texts[order[place]]), end)]
        self._windows = [ids[start : start + window] for start in range(0, len(ids), window)]
        self._windows = [each for each in self._windows if len(each) > 1]
        self._order = Shuffled(len(self._windows), seed=seed)

    def __len__(self) -> int:
        """Windows there are."""
        return len(self._windows)

    def segment(self, draw: int) -> Segment:
        """The window of the n-th draw; every token but its first is learned from."""
        ids = self._windows[self._order[draw]]
        count = len(ids)
        mask = (False, *(True,) * (count - 1))
        return Segment(f"text/{draw}", 0, Tokens.written(ids, Author.EXPERT), mask, (0,) * count)
