"""A user who is a person: his words come from whoever took the seat on the page of a server, or over HTTP.

    seat → his words are asked for → somebody claims the seat and speaks → the agent hears it → …

Easy to get wrong: a person who went for coffee is no fault of the agent's, and no failure of a server. Where his words
do not come in time the episode is over as one whose deadline passed, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat.endpoint import key_in
from whetstone.environments.protocol import Reply
from whetstone.environments.remote.http_client import Asking
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.plugins import OptionError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import EndReason

_WAIT = 20.0
"""Seconds one question for his words stays open."""
_TRIES = 8
"""How often a server that is away is asked: half a minute, in which it can be started again."""


class HumanUser:
    """A person plays the `scenario` of the task's private data, or where there is none what the task asks.

    He sits at a server with a queue for people (`whetstone live`, `whetstone serve --annotations`).

    Args:
        url: Of the server, without `/v1`, such as `http://127.0.0.1:8000`.
        api_key_env: Environment variable with the API key of the server; empty: none.
        seconds: How long each of his turns is waited for; beside it the episode has `environment.timeout_seconds`.

    Raises:
        OptionError: `seconds` is not above 0.
    """

    replayable = False

    def __init__(self, *, url: str, api_key_env: str = "", seconds: float = 600.0) -> None:
        if not 0 < seconds <= 86_400:
            raise OptionError("seconds", f"above 0, and a day at most, got {seconds:g}")
        self.seconds = seconds
        self._server = Asking(url, seconds=_WAIT + 20, tries=_TRIES, token=key_in(api_key_env))
        self._seat, self._turn = "", 0
        self._left = ""

    async def open(self, episode: Episode) -> Reply:
        """His first words.

        Raises:
            InfrastructureError: The server is away, or nobody took the seat in time: nothing can be said of the agent.
        """
        told: Any = episode.task.private.get("scenario") or episode.task.prompt
        if isinstance(told, Mapping):
            told = "\n".join(f"{name}: {text}" for name, text in told.items() if text)
        body = {"about": str(told), "seconds": self.seconds}
        self._seat = (await self._server.ask("POST", "/v1/people/seats", body))["id"]
        reply = await self._words([])
        if reply.reason is not None:
            raise InfrastructureError(f"nobody at {self._server.url} took the user's seat within {self.seconds:g} s")
        return reply

    async def answer(self, text: str) -> Reply:
        """What he says; where he says nothing in time, the episode is over.

        Raises:
            InfrastructureError: The server is away.
        """
        return await self._words([{"role": "assistant", "content": text}])

    def verdict(self) -> Mapping[str, Any]:
        """Whether he ended the conversation, how often he spoke, and why he left where he did."""
        return {"user_ended": self._left == "ended", "user_answers": self._turn, "user_left": self._left}

    async def close(self) -> None:
        """Give the seat up."""
        try:
            if self._seat:
                await self._server.ask("DELETE", f"/v1/people/seats/{self._seat}")
        except (InfrastructureError, EpisodeError):
            pass  # its deadline closes it
        finally:
            await self._server.close()

    async def _words(self, heard: list[dict[str, Any]]) -> Reply:
        of = f"/v1/people/seats/{self._seat}/turns"
        await self._server.ask("POST", of, {"turn": self._turn, "messages": heard})
        while True:
            told = await self._server.ask("GET", f"{of}/{self._turn}?wait={_WAIT:g}")
            if told["said"] is not None:
                self._turn += 1
                self._left = "ended" if told["said"]["ended"] else ""
                return Reply(str(told["said"]["message"]["content"]), ended=bool(self._left))
            if told["over"]:
                self._left = told["over"]
                return Reply("", ended=True, reason=EndReason.TIMEOUT)
