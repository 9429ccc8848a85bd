"""Review of answers by people before an agent receives them: each answer of a held episode waits in the queue.

    request → policy's draft → seat → a person accepts or replaces it → response to the agent

Note:
    The agent waits meanwhile, and possibly no person reviews the answer. At the deadline the policy's own answer is
    sent; it does not count as accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.chat.api.requests import CompletionResponse, RefusedError
from whetstone.chat.api.requests import split_thinking as as_told
from whetstone.serving.app import Server
from whetstone.serving.conversation_matching import RecordedAnswer, ServerEpisode, list_messages_before
from whetstone.serving.human_in_the_loop.queue import PeopleQueue
from whetstone.serving.interventions import message_from, take_over

_WAIT = 30.0


class ReviewQueue:
    """Holds answers until a person has reviewed them, or their deadline passes.

    Args:
        server: Server with the held episodes.
        queue: Queue of seats, in which each held answer is one seat.
    """

    def __init__(self, server: Server, queue: PeopleQueue) -> None:
        self.server, self.queue = server, queue
        self._waiting: dict[str, tuple[ServerEpisode, int]] = {}
        """Episode and number of the answer, by seat."""

    async def wait_for_review(
        self, episode: ServerEpisode, number: int, answer: CompletionResponse
    ) -> CompletionResponse:
        """Wait until a person has reviewed an answer; return the answer to send.

        This is the person's message if the answer was replaced, otherwise the answer of the policy.
        """
        recorded_answer, queue = episode.answers[number], self.queue
        about = f'Answer {number} of the episode "{episode.id}": accept it, or replace it.'
        seat = queue.open_seat(kind="policy", about=about, seconds=episode.hold_seconds, episode=episode.record_id)
        self._waiting[seat.id] = (episode, number)
        try:
            queue.request_message(
                seat.id,
                0,
                [
                    public_message(message)
                    for message in (*list_messages_before(recorded_answer), recorded_answer.message)
                ],
            )
            while not seat.over:
                await queue.wait_for_message(seat.id, 0, wait=_WAIT)
        finally:  # also if the agent disconnects
            del self._waiting[seat.id]
            if seat.id in queue.seats:  # the episode may be deleted meanwhile
                queue.close(seat.id, "the agent continued")
        if not seat.answers:
            episode.unreviewed.add(number)
        return answer if recorded_answer.replaced is None else _answer(recorded_answer.replaced, answer)

    def apply_review(self, id: str, by: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a person's review of a held answer.

        Args:
            id: Id of the seat.
            by: Name of the person.
            body: `{"accept": true}`, or `{"message": …}` with the message that replaces the answer.

        Returns:
            The message that is sent to the agent.

        Raises:
            RefusedError: The body is neither, or the message is invalid; the answer remains in the queue.
        """
        if id not in self._waiting:
            raise RefusedError("the agent no longer waits for this answer", status=409, code="seat_over")
        episode, number = self._waiting[id]
        if body.get("accept") is True:
            return public_message(episode.answers[number].message)
        message, completions = body.get("message"), self.server.completions
        if not isinstance(message, Mapping):
            raise RefusedError(
                "message: requires accept: true, or a message with content or tool_calls", param="message"
            )
        context_length = completions.context_length
        person = take_over(
            episode, number, message_from(message), chat=completions.chat, context_length=context_length, by=by
        )
        self.server.episodes.register_intervention(episode, number)
        return public_message(person.message)


def public_message(message: Any) -> dict[str, Any]:
    """Convert a message into the OpenAI format without the thinking of the policy, for people and clients."""
    visible = as_told(message)[1] if message.role == "assistant" else message
    return dict(visible.to_openai())


def _answer(person: RecordedAnswer, own: CompletionResponse) -> CompletionResponse:
    """Return a person's message as an answer of the policy, without log-probs."""
    thought, message = as_told(person.message)
    ids = person.action.ids
    finish = "tool_calls" if message.tool_calls else "stop"
    return CompletionResponse(message, thought, ids, (math.nan,) * len(ids), finish, own.prompt_tokens)
