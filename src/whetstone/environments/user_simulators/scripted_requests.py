"""User simulator with a list of requests: sends the next request after each answer of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.environments.protocol import Reply
from whetstone.tools.protocol import Episode


class Requests:
    """Simulated user that sends the requests of the task in order.

    The texts are under `requests` in the task's private data. After the answer to the last request, the episode ends.
    """

    def __init__(self) -> None:
        self.requests: Sequence[str] = ()
        self.said = 0

    def open(self, episode: Episode) -> Reply:
        """Load the requests of the task and return the first."""
        self.requests, self.said = episode.task.private["requests"], 1
        return Reply(self.requests[0])

    def answer(self, text: str) -> Reply:
        """Return the next request, or a last message if there is none."""
        if self.said >= len(self.requests):
            return Reply("Thank you, that was all.", ended=True)
        self.said += 1
        return Reply(self.requests[self.said - 1])

    def verdict(self) -> Mapping[str, Any]:
        """Return the number of requests that were sent (`requests`)."""
        return {"requests": self.said}

    def close(self) -> None:
        """Do nothing; the user has no resources."""
