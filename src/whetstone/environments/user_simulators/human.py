"""User simulator with a person: messages come from the page of a server, or over HTTP.

    seat → a message is requested → a person claims the seat and writes → the agent reads it → …

Note:
    A person who is absent is neither a mistake of the agent nor a failure of a server. If there is no message in time,
    the episode ends with the end reason of a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.chat.openai_client import read_api_key
from whetstone.environments.protocol import Reply
from whetstone.environments.remote.http_client import JsonHttpClient
from whetstone.errors import EpisodeError, InfrastructureError
from whetstone.plugins import OptionError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import EndReason

_WAIT = 20.0
"""Seconds that one request for a message stays open."""
_TRIES = 8
"""Maximum number of attempts if the server is unavailable; half a minute, enough for a restart."""


class HumanUser:
    """Simulated user whose messages a person writes on the page of a server.

    The person plays the `scenario` of the task's private data, or the task's prompt if there is none. The server needs
    a queue for people (`whetstone live`, `whetstone serve --annotations`).

    Args:
        url: URL of the server, without `/v1`, such as `http://127.0.0.1:8000`.
        api_key_env: Environment variable with the API key of the server; empty: none.
        seconds: Timeout of each message in seconds, in addition to the episode's `environment.timeout_seconds`.

    Raises:
        OptionError: If `seconds` is not above 0 or more than a day.
    """

    replayable = False

    def __init__(self, *, url: str, api_key_env: str = "", seconds: float = 600.0) -> None:
        if not 0 < seconds <= 86_400:
            raise OptionError("seconds", f"must be above 0 and at most 86400 (a day), got {seconds:g}")
        self.seconds = seconds
        self._server = JsonHttpClient(url, seconds=_WAIT + 20, tries=_TRIES, token=read_api_key(api_key_env))
        self._seat, self._turn = "", 0
        self._left = ""

    async def open(self, episode: Episode) -> Reply:
        """Open a seat on the server and return the person's first message.

        Raises:
            InfrastructureError: If the server is unavailable, or the seat is not taken in time; the episode is invalid.
        """
        scenario: Any = episode.task.private.get("scenario") or episode.task.prompt
        if isinstance(scenario, Mapping):
            scenario = "\n".join(f"{name}: {text}" for name, text in scenario.items() if text)
        body = {"about": str(scenario), "seconds": self.seconds}
        self._seat = (await self._server.send_request("POST", "/v1/people/seats", body))["id"]
        reply = await self._wait_for_message([])
        if reply.reason is not None:
            raise InfrastructureError(f"no person at {self._server.url} took the user's seat within {self.seconds:g} s")
        return reply

    async def answer(self, text: str) -> Reply:
        """Return the person's reply to the agent.

        If there is no reply in time, the episode ends with the end reason `timeout`.

        Raises:
            InfrastructureError: If the server is unavailable.
        """
        return await self._wait_for_message([{"role": "assistant", "content": text}])

    def verdict(self) -> Mapping[str, Any]:
        """Return the number of replies, and whether and why the conversation ended."""
        return {"user_ended": self._left == "ended", "user_answers": self._turn, "user_left": self._left}

    async def close(self) -> None:
        """Release the seat on the server and close the connection."""
        try:
            if self._seat:
                await self._server.send_request("DELETE", f"/v1/people/seats/{self._seat}")
        except (InfrastructureError, EpisodeError):
            pass  # its deadline closes it
        finally:
            await self._server.close()

    async def _wait_for_message(self, messages: list[dict[str, Any]]) -> Reply:
        """Send the agent's messages to the person and poll for the reply."""
        of = f"/v1/people/seats/{self._seat}/turns"
        await self._server.send_request("POST", of, {"turn": self._turn, "messages": messages})
        while True:
            answer = await self._server.send_request("GET", f"{of}/{self._turn}?wait={_WAIT:g}")
            if answer["said"] is not None:
                self._turn += 1
                self._left = "ended" if answer["said"]["ended"] else ""
                return Reply(str(answer["said"]["message"]["content"]), ended=bool(self._left))
            if answer["over"]:
                self._left = answer["over"]
                return Reply("", ended=True, reason=EndReason.TIMEOUT)
