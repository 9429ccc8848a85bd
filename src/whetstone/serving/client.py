"""How does somebody else's code say where an episode begins, of what task it is, and what it was worth?

    async with whetstone.episode(task) as ep:
        client = AsyncOpenAI(base_url=ep.base_url, api_key=ep.api_key)
        ...
        ep.reward(1.0)

Easy to get wrong: an agent that falls over must not leave its episode open for an hour, nor be taken for one that was
worth nothing. It is over, and has the reward that was said before, or none.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx2

from whetstone.errors import EngineError
from whetstone.plain_json import plain
from whetstone.trajectory import Task

_HERE = "http://127.0.0.1:8000/v1"
_SECONDS = 60.0
_NAMED = re.compile(r"(?P<root>.*)/episodes/(?P<id>[^/]+)/v1")


class ServedEpisode:
    """An episode at a server of `whetstone serve` or `live`, from `with` or `async with` to its end.

    Where `base_url` is one episode's own already, as an agent in training is given it, that is the episode.

    Args:
        task: A name that groups episodes of one task; or the task, by which a server with `--judge` says what an
            episode was worth that nobody paid.
        base_url: Of the server; `OPENAI_BASE_URL`, or port 8000 of this machine, unless said.
        api_key: `OPENAI_API_KEY` unless said.
        id: A name for it; else it is given one.
        seed: Its answers are drawn as the native loop draws those of an episode of this seed.
    """

    def __init__(
        self,
        task: str | Task = "",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        id: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.task = task
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or _HERE).rstrip("/")
        """What an OpenAI client is given; inside `with`, of this episode."""
        self.api_key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self._given = _NAMED.fullmatch(self.base_url)
        self.id = self._given["id"] if self._given is not None else id or ""
        self._seed = seed
        self._worth: float | None = None
        self._turns: dict[int, float] = {}
        if self._given is not None and (id is not None or seed is not None):
            raise EngineError(f"{self.base_url}: is an episode of its own already; id and seed have no effect")

    @property
    def anthropic_base_url(self) -> str:
        """What an Anthropic client is given; it adds `/v1` itself."""
        return self.base_url.removesuffix("/v1")

    def reward(self, value: float, *, turn: int | None = None) -> None:
        """Say what the episode was worth, or one of its answers, counted from 0. It is told when the episode is over;
        what was said last counts.

        Raises:
            ValueError: It is not a finite number.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"reward: a finite number, got {value!r}; write float(solved) for a boolean")
        if turn is None:
            self._worth = float(value)
        else:
            self._turns[turn] = float(value)

    def __enter__(self) -> ServedEpisode:
        """It begins.

        Raises:
            EngineError: The server is not there, or does not want it.
        """
        if self._given is None:
            with self._client(httpx2.Client) as client:
                self._begun(_answered(client.post, f"{self.base_url}/episodes", self._opening()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over, and paid what was said.

        Raises:
            EngineError: The server is not there any more, or refuses what was said.
        """
        said = self._said()
        if said:
            with self._client(httpx2.Client) as client:
                _answered(client.post, f"{self.base_url}/reward", said)

    async def __aenter__(self) -> ServedEpisode:
        """See `__enter__`."""
        if self._given is None:
            async with self._client(httpx2.AsyncClient) as client:
                self._begun(await _answered_later(client.post, f"{self.base_url}/episodes", self._opening()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `__exit__`."""
        said = self._said()
        if said:
            async with self._client(httpx2.AsyncClient) as client:
                await _answered_later(client.post, f"{self.base_url}/reward", said)

    def _client(self, kind: Any) -> Any:
        headers = {"authorization": f"Bearer {self.api_key}", "accept-encoding": "identity"}
        return kind(headers=headers, timeout=_SECONDS)

    def _opening(self) -> dict[str, Any]:
        task = self.task
        if isinstance(task, Task):
            asked: Any = {"id": task.id, "prompt": task.prompt, "private": plain(dict(task.private))}
        else:
            asked = task
        said = {"id": self.id or None, "task": asked or None, "seed": self._seed}
        return {name: value for name, value in said.items() if value is not None}

    def _begun(self, told: Mapping[str, Any]) -> None:
        self.id = str(told["id"])
        self.base_url = f"{self.base_url.removesuffix('/v1')}/episodes/{self.id}/v1"

    def _said(self) -> dict[str, Any]:
        """What the server is told at the end; nothing where it is told by the agent's own end."""
        said: dict[str, Any] = {}
        if self._worth is not None:
            said["reward"] = self._worth
        if self._turns:
            said["turns"] = {str(turn): value for turn, value in self._turns.items()}
        if self._given is None and self._worth is None:
            said["final"] = True
        return said


def episode(
    task: str | Task = "",
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    id: str | None = None,
    seed: int | None = None,
) -> ServedEpisode:
    """An episode at a server, `with` or `async with`; see `ServedEpisode`.

    >>> with episode("sum-17", base_url="http://127.0.0.1:8000/v1") as ep:  # doctest: +SKIP
    ...     said = OpenAI(base_url=ep.base_url, api_key=ep.api_key).chat.completions.create(...)
    ...     ep.reward(float("17" in said.choices[0].message.content))
    """
    return ServedEpisode(task, base_url=base_url, api_key=api_key, id=id, seed=seed)


def _answered(post: Any, url: str, body: Mapping[str, Any]) -> Any:
    try:
        return _read(url, post(url, json=body))
    except httpx2.HTTPError as error:
        raise EngineError(f"{url}: {error}") from None


async def _answered_later(post: Any, url: str, body: Mapping[str, Any]) -> Any:
    try:
        return _read(url, await post(url, json=body))
    except httpx2.HTTPError as error:
        raise EngineError(f"{url}: {error}") from None


def _read(url: str, answer: httpx2.Response) -> Any:
    try:
        told = answer.json()
        said = "" if answer.is_success else told["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise EngineError(f"{url}: answers {answer.status_code}, and not as a server of Whetstone") from None
    if said:
        raise EngineError(f"{url}: {said}")
    return told
