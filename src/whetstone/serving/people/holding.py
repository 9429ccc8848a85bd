"""How does a person step in before an agent hears an answer? Each answer of an episode that is held waits in the queue.

    agent asks → policy's draft → seat → a person lets it stand, or says something else → agent hears that

Easy to get wrong: an agent waits meanwhile, and nobody may come. At the deadline the policy's own answer goes out;
nobody looked at it, so it does not count as one that was let stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.chat.api.asked import Answer, RefusedError
from whetstone.chat.api.asked import told as as_told
from whetstone.serving.app import Server
from whetstone.serving.interventions import message_from, take_over
from whetstone.serving.people.queue import PeopleQueue
from whetstone.serving.recording import Episode, Said, conversation

_WAIT = 30.0


class Holding:
    """Answers that wait for a person.

    Args:
        server: Whose episodes are held.
        queue: Where they wait.
    """

    def __init__(self, server: Server, queue: PeopleQueue) -> None:
        self.server, self.queue = server, queue
        self._waiting: dict[str, tuple[Episode, int]] = {}
        """By seat."""

    async def held(self, episode: Episode, number: int, answer: Answer) -> Answer:
        """The answer that goes out: this one, or a person's."""
        said, queue = episode.said[number], self.queue
        about = f'Answer {number} of the episode "{episode.id}": let it stand, or say something else.'
        seat = queue.open(kind="policy", about=about, seconds=episode.hold_seconds, episode=episode.record_id)
        self._waiting[seat.id] = (episode, number)
        try:
            queue.ask(seat.id, 0, [shown_to_people(message) for message in (*conversation(said), said.message)])
            while not seat.over:
                await queue.words(seat.id, 0, wait=_WAIT)
        finally:  # also where the agent hangs up
            del self._waiting[seat.id]
            if seat.id in queue.seats:  # the episode may be forgotten meanwhile
                queue.close(seat.id, "the agent went on")
        if not seat.said:
            episode.unseen.add(number)
        return answer if said.replaced is None else _answer(said.replaced, answer)

    def decide(self, id: str, by: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a person says of a held answer: `{"accept": true}`, or `{"message": …}`; the message that goes out.

        Raises:
            RefusedError: It is neither, or cannot be said; the answer goes on waiting.
        """
        if id not in self._waiting:
            raise RefusedError("the agent does not wait for it any more", status=409, code="seat_over")
        episode, number = self._waiting[id]
        if body.get("accept") is True:
            return shown_to_people(episode.said[number].message)
        message, speaker = body.get("message"), self.server.speaker
        if not isinstance(message, Mapping):
            raise RefusedError("accept: true, or a message with content or tool_calls is asked for", param="message")
        room = speaker.context_length
        person = take_over(episode, number, message_from(message), chat=speaker.chat, room=room, by=by)
        self.server.episodes.taken_over(episode, number)
        return shown_to_people(person.message)


def shown_to_people(message: Any) -> dict[str, Any]:
    """A message as people and clients see it: without what the policy thought."""
    shown = as_told(message)[1] if message.role == "assistant" else message
    return dict(shown.to_openai())


def _answer(person: Said, own: Answer) -> Answer:
    """A person's words as the answer of the policy they stand for; nobody drew them."""
    thought, message = as_told(person.message)
    ids = person.action.ids
    finish = "tool_calls" if message.tool_calls else "stop"
    return Answer(message, thought, ids, (math.nan,) * len(ids), finish, own.prompt_tokens)
