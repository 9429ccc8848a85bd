"""A user with several requests, one after the other: the next when the agent says it is done with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.environments.protocol import Reply
from whetstone.tools.protocol import Episode


class Requests:
    """Says the texts under `requests` in the task's private data; behind the last one he is done."""

    def __init__(self) -> None:
        self.requests: Sequence[str] = ()
        self.said = 0

    def open(self, episode: Episode) -> Reply:
        """The first request."""
        self.requests, self.said = episode.task.private["requests"], 1
        return Reply(self.requests[0])

    def answer(self, text: str) -> Reply:
        """The next one."""
        if self.said >= len(self.requests):
            return Reply("Thank you, that was all.", ended=True)
        self.said += 1
        return Reply(self.requests[self.said - 1])

    def verdict(self) -> Mapping[str, Any]:
        """How many requests were said."""
        return {"requests": self.said}

    def close(self) -> None:
        """Nothing is held."""
