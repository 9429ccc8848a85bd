"""Human intervention (takeover) in an episode: a person's message replaces an answer or tool call of the policy.

    the policy's answer ── stored with its tokens ───────────┐
    conversation ──────── the person's answer ── the conversation continues from here

The person's tokens are not sampled: they are the tokens that the model would sample for the message by its template,
without log-probs. The recipe specifies how to train on both (`live.intervention`).

Note:
    An answer that the conversation has continued from cannot be replaced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from whetstone.chat import Chat, Message
from whetstone.chat.api.requests import RefusedError
from whetstone.data.demonstrations import messages_equal
from whetstone.errors import PolicyError
from whetstone.serving.conversation_matching import RecordedAnswer, ServerEpisode, count_previous_answers
from whetstone.trajectory import Author, Tokens


def take_over(
    episode: ServerEpisode, number: int, message: Message, *, chat: Chat, context_length: int, by: str
) -> RecordedAnswer:
    """Replace an answer of the policy by a person's message.

    Args:
        episode: Episode of the answer.
        number: Index of the answer, from 0.
        message: Message of the assistant with text, tool calls, or both.
        chat: Tokenizer and chat template, in which the message must be expressible.
        context_length: Maximum number of tokens of the context with the message.
        by: Name of the person.

    Raises:
        RefusedError: The answer does not exist, was continued or replaced already, or the chat template would parse
            the message differently.
    """
    if not 0 <= number < len(episode.answers):
        range_text = f"the episode has {len(episode.answers)} answers, from 0"
        raise RefusedError(f"answer {number}: {range_text}", param="answer")
    answer = episode.answers[number]
    if answer.by or answer.replaced is not None:
        raise RefusedError(f"answer {number} was taken over already", status=409, code="taken_over")
    if answer.num_continued:
        raise RefusedError(
            f"answer {number}: the conversation has continued from it; take over a later one, or rate it",
            status=409,
            code="went_on",
        )
    if answer.text is not None:
        raise RefusedError(f"answer {number}: is a text completion; only answers in conversations can be taken over")
    tools = answer.context.tools
    try:
        ids = chat.write(message, tools)
        parsed = chat.read(ids, tools, turn=count_previous_answers(answer.before, answer.new_messages))
    except (PolicyError, ValueError) as error:
        raise RefusedError(f"message: {str(error).partition(chr(10))[0]}", param="message") from None
    if not messages_equal(parsed, message):
        raise RefusedError("message: this model's template would parse it differently", param="message")
    if messages_equal(parsed, answer.message):
        raise RefusedError(f"message: equals answer {number}; rate it instead", param="message")
    if len(answer.context.ids) + len(ids) > context_length:
        raise RefusedError(
            f"message: {len(answer.context.ids)} + {len(ids)} tokens; the context length is {context_length}",
            param="message",
            code="context_length_exceeded",
        )
    return episode.take_over(number, Tokens.from_ids(ids, Author.EXPERT), parsed, by=by, at=time.time())


def message_from(body: Mapping[str, Any]) -> Message:
    """Parse a person's message in the format of OpenAI's API.

    The body is `{"content": …, "tool_calls": […]}`.

    Raises:
        RefusedError: The body is not a message of the assistant with text or tool calls.
    """
    try:
        message = Message.from_openai({"role": "assistant", **body})
    except (ValueError, TypeError) as error:
        raise RefusedError(f"message: {error}", param="message") from None
    if message.role != "assistant" or message.malformed:
        raise RefusedError("message: must be a message of the assistant", param="message")
    if not message.text.strip() and not message.tool_calls:
        raise RefusedError("message: has neither text nor tool calls", param="message")
    return message
