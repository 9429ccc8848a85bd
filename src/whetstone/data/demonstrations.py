"""Imitation data: conversations as expert episodes in tokens, for SFT, and windows of plain text, for pretraining.

Note:
    A chat template can render a message differently from how it is parsed (reordered arguments, dropped reasoning). A
    message that does not survive this round trip is reported and not trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from whetstone.chat import Chat, Message
from whetstone.data.conversations import Chosen, Conversation, all_assistant_turns
from whetstone.data.shuffle import ShuffledIndices
from whetstone.errors import PolicyError
from whetstone.trajectory import Author, EndReason, Provenance, Score, Segment, Tokens, Trajectory, Turn


class ImitationSource(Protocol):
    """Endless sequence of expert episodes, from which a supervised stage takes its batches."""

    def get_episode(self, draw: int) -> Trajectory:
        """Return the episode at an index of the sequence, from 0.

        An episode that cannot be trained (too long, changed by the chat template) has no score, and an `error`.
        """
        ...


class Demonstrations:
    """Conversations in shuffled order, repeated endlessly.

    Args:
        conversations: The conversations.
        chat: Tokenizer and chat template.
        chosen: Assistant messages that are trained.
        context_length: Maximum number of tokens of a conversation.
        seed: Seed of the order.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        chat: Chat,
        *,
        chosen: Chosen = all_assistant_turns,
        context_length: int,
        seed: int = 0,
    ) -> None:
        self._conversations, self._chat, self._chosen = conversations, chat, chosen
        self._context_length = context_length
        self._order = ShuffledIndices(len(conversations), seed=seed)

    def iterate_episodes(self) -> Iterator[Trajectory]:
        """Return every conversation as an episode, in file order; the context length is not checked."""
        return (tokenize_conversation(each, self._chat, chosen=self._chosen) for each in self._conversations)

    def get_episode(self, draw: int) -> Trajectory:
        """Return the episode at an index of the shuffled, endless sequence; see `ImitationSource.get_episode`."""
        conversation = self._conversations[self._order[draw]]
        return tokenize_conversation(conversation, self._chat, chosen=self._chosen, context_length=self._context_length)


def tokenize_conversation(
    conversation: Conversation, chat: Chat, *, chosen: Chosen = all_assistant_turns, context_length: float = math.inf
) -> Trajectory:
    """Tokenize a conversation as an episode, with the tokens that a model would sample for the assistant messages.

    Args:
        conversation: The conversation.
        chat: Tokenizer and chat template.
        chosen: Assistant messages that are trained; the others are context.
        context_length: Maximum number of tokens.

    Returns:
        The episode with a score of 1; without a score and with `error` if it cannot be trained.
    """
    try:
        turns = _turns(conversation, chat, frozenset(conversation.get_trained_turns(chosen)))
    except (PolicyError, ValueError) as error:
        return _as_skipped(conversation, str(error).partition("\n")[0])
    episode = _episode(conversation, turns)
    if not episode.segments():
        reasons = ", ".join(conversation.count_exclusions(chosen))
        if reasons != "train_on":
            return _as_skipped(conversation, f"all of its turns are excluded from training ({reasons})")
        return _as_skipped(conversation, "train_on selects none of its turns")
    longest = max(map(len, episode.segments()))
    if longest > context_length:
        return _as_skipped(conversation, f"it has {longest:,} tokens, the context length is {context_length:,.0f}")
    return replace(episode, score=Score(1.0, success=True))


def _turns(conversation: Conversation, chat: Chat, learned: frozenset[int]) -> tuple[Turn, ...]:
    messages, tools = conversation.messages, conversation.tools
    spoken = [place for place, message in enumerate(messages) if message.role == "assistant"]
    context = chat.open(messages[: spoken[0]], tools)
    turns = []
    for number, place in enumerate(spoken):
        ids = chat.write(messages[place], tools)
        read = chat.read(ids, tools, turn=number)
        if place in learned and not messages_equal(read, messages[place]):
            unknown = {call.name for call in messages[place].tool_calls} - {tool.name for tool in tools}
            hint = f"; no tool {', '.join(sorted(unknown))} is declared: add a column `tools`" if unknown else ""
            raise ValueError(
                f"message {place + 1} does not survive the chat template: it is parsed as {_format_message(read)}{hint}"
            )
        author = Author.EXPERT if place in learned else Author.INSERTED
        following = spoken[number + 1] if number + 1 < len(spoken) else len(messages)
        answered = messages[place + 1 : following]
        turns.append(
            Turn(
                context=Tokens.from_ids(context.new, Author.ENVIRONMENT),
                action=Tokens.from_ids(ids, author),
                message=read,
                observation=answered,
                opens_segment=context.opens_segment,
            )
        )
        if number + 1 < len(spoken):
            context = chat.extend(context, ids, answered)
    return tuple(turns)


def messages_equal(read: Message, original: Message) -> bool:
    """Return whether a message is unchanged after rendering and parsing, except for whitespace around its text."""
    if read.malformed or _thought_and_answer(read) != _thought_and_answer(original):
        return False
    if len(read.tool_calls) != len(original.tool_calls):
        return False
    return all(
        one.name == other.name and _parse(one.arguments) == _parse(other.arguments)
        for one, other in zip(read.tool_calls, original.tool_calls, strict=True)
    )


def _thought_and_answer(message: Message) -> tuple[str, str]:
    """Split text into reasoning and answer; templates differ in the whitespace around the tags."""
    thought, _, answer = message.text.rpartition("</think>")
    return thought.strip().removeprefix("<think>").strip(), answer.strip()


def _parse(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _format_message(message: Message) -> str:
    text = message.malformed[0] if message.malformed else message.text or ", ".join(c.name for c in message.tool_calls)
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _episode(conversation: Conversation, turns: tuple[Turn, ...]) -> Trajectory:
    first = next(place for place, message in enumerate(conversation.messages) if message.role == "assistant")
    opening = conversation.messages[:first]
    where, demonstrated = conversation.where, Provenance.DEMONSTRATED
    return Trajectory(where, where, opening, turns, EndReason.TERMINATED, provenance=demonstrated)


def _as_skipped(conversation: Conversation, why: str) -> Trajectory:
    episode = _episode(conversation, ())
    return replace(episode, opening=episode.opening[:1], ended=EndReason.ERROR, error=f"{conversation.where}  {why}")


class Texts:
    """Windows of concatenated plain texts, each text followed by the end-of-sequence token.

    Args:
        texts: The texts.
        chat: Tokenizer.
        window: Number of tokens per window.
        seed: Seed of the order of texts within each pass.
    """

    def __init__(self, texts: Sequence[str], chat: Chat, *, window: int, seed: int = 0) -> None:
        end = chat.tokenizer.eos_token_id
        end = end if end is not None else min(chat.stop_ids)
        order = ShuffledIndices(len(texts), seed=seed)
        ids = [token for place in range(len(texts)) for token in (*chat.encode(texts[order[place]]), end)]
        self._windows = [ids[start : start + window] for start in range(0, len(ids), window)]
        self._windows = [each for each in self._windows if len(each) > 1]
        self._order = ShuffledIndices(len(self._windows), seed=seed)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def get_segment(self, draw: int) -> Segment:
        """Return the window at an index; all its tokens except the first are trained."""
        ids = self._windows[self._order[draw]]
        count = len(ids)
        mask = (False, *(True,) * (count - 1))
        return Segment(f"text/{draw}", 0, Tokens.from_ids(ids, Author.EXPERT), mask, (0,) * count)
