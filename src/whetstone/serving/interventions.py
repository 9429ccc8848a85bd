"""How does a person take over a turn, or a tool call, of an episode under way? His words stand where the answer stood.

    the policy's answer ── kept beside it, with its tokens ──┐
    conversation ──────── the person's answer ── what follows goes on from here

Nobody drew the person's tokens: they are those the model would have to sample for his words, by its template, and they
have no log-prob. What is learned from the two is the recipe's to say (`live.intervention`).

Easy to get wrong: what somebody has heard cannot be unsaid. An answer the conversation went on from stays.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Chat, Message
from whetstone.chat.api.asked import RefusedError
from whetstone.data.demonstrations import same
from whetstone.errors import PolicyError
from whetstone.serving.recording import Episode, Said, turn_of
from whetstone.trajectory import Author, Tokens


def take_over(episode: Episode, number: int, message: Message, *, chat: Chat, room: int, by: str) -> Said:
    """A person says this in the place of an answer of the policy.

    Args:
        number: Of the answer, from 0.
        message: Of the assistant; its text, its calls, or both.
        room: Tokens the model can have in view.
        by: Who he is.

    Raises:
        RefusedError: There is no such answer, it was heard or replaced already, or the message cannot be said.
    """
    if not 0 <= number < len(episode.said):
        there = f"the episode has {len(episode.said)} answers, from 0"
        raise RefusedError(f"answer {number}: {there}", param="answer")
    own = episode.said[number]
    if own.by or own.replaced is not None:
        raise RefusedError(f"answer {number} was taken over already", status=409, code="taken_over")
    if own.followed:
        raise RefusedError(
            f"answer {number}: the conversation went on from it; take over a later one, or rate it",
            status=409,
            code="went_on",
        )
    if own.text is not None:
        raise RefusedError(f"answer {number} goes on from a prompt; answers in conversations can be taken over")
    tools = own.context.tools
    try:
        ids = chat.write(message, tools)
        read = chat.read(ids, tools, turn=turn_of(own.before, own.heard))
    except (PolicyError, ValueError) as error:
        raise RefusedError(f"message: {str(error).partition(chr(10))[0]}", param="message") from None
    if not same(read, message):
        raise RefusedError("message: would be read as something else behind this model's template", param="message")
    if same(read, own.message):
        raise RefusedError(f"message: is what answer {number} says; rate it instead", param="message")
    if len(own.context.ids) + len(ids) > room:
        raise RefusedError(
            f"message: {len(own.context.ids)} tokens stand before it, and it has {len(ids)}; the model sees {room}",
            param="message",
            code="context_length_exceeded",
        )
    return episode.take_over(number, Tokens.written(ids, Author.EXPERT), read, by=by, at=time.time())


def message_from(said: Mapping[str, Any]) -> Message:
    """What a person says, `{"content": …, "tool_calls": […]}` as OpenAI's API writes it.

    Raises:
        RefusedError: It is nothing an assistant says.
    """
    try:
        message = Message.from_openai({"role": "assistant", **said})
    except (ValueError, TypeError) as error:
        raise RefusedError(f"message: {error}", param="message") from None
    if message.role != "assistant" or message.malformed:
        raise RefusedError("message: what the assistant says is asked for", param="message")
    if not message.text.strip() and not message.tool_calls:
        raise RefusedError("message: has neither words nor calls", param="message")
    return message
