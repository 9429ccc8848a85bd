"""Client of `whetstone serve` and `live`: opens an episode, names its task and reports its reward.

    async with whetstone.episode(task) as ep:
        client = AsyncOpenAI(base_url=ep.base_url, api_key=ep.api_key)
        ...
        ep.reward(1.0)

Note:
    If the agent raises an exception, the episode still ends. It has the reward that was reported before, or none; none
    is not a reward of 0.
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
from whetstone.strict_json import to_plain_values
from whetstone.trajectory import Task

_DEFAULT_URL = "http://127.0.0.1:8000/v1"
_SECONDS = 60.0
_EPISODE_URL = re.compile(r"(?P<root>.*)/episodes/(?P<id>[^/]+)/v1")


class ServedEpisode:
    """Episode on a server of `whetstone serve` or `live`, used as `with` or `async with`; created by `episode`.

    If `base_url` is that of one episode, as agents receive it in training, it is that episode.

    Args:
        task: Name that groups the episodes of a task. A `Task` lets a server with `--judge` score an episode that
            receives no reward.
        base_url: URL of the server; defaults to `OPENAI_BASE_URL`, otherwise port 8000 of this machine.
        api_key: Defaults to `OPENAI_API_KEY`.
        id: Id of the episode; the server assigns one by default.
        seed: Seed of sampling; the native loop samples the same answers for an episode of this seed.
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
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL).rstrip("/")
        """URL for an OpenAI client; inside `with`, that of this episode."""
        self.api_key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        self._url_match = _EPISODE_URL.fullmatch(self.base_url)
        self.id = self._url_match["id"] if self._url_match is not None else id or ""
        self._seed = seed
        self._reward: float | None = None
        self._turns: dict[int, float] = {}
        if self._url_match is not None and (id is not None or seed is not None):
            raise EngineError(f"{self.base_url}: already names an episode; leave out id and seed")

    @property
    def anthropic_base_url(self) -> str:
        """Return the base URL for an Anthropic client, without `/v1`, which that client appends."""
        return self.base_url.removesuffix("/v1")

    def reward(self, value: float, *, turn: int | None = None) -> None:
        """Set the reward of the episode or of one of its answers, counted from 0.

        The reward is sent when the episode ends. If it is set several times, the last value counts.

        Args:
            value: A finite number.
            turn: Index of the answer, from 0; None: the reward is that of the whole episode.

        Raises:
            ValueError: The value is not a finite number.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"reward: a finite number, got {value!r}; write float(solved) for a boolean")
        if turn is None:
            self._reward = float(value)
        else:
            self._turns[turn] = float(value)

    def __enter__(self) -> ServedEpisode:
        """Open the episode.

        Raises:
            EngineError: The server is unreachable or rejects the episode.
        """
        if self._url_match is None:
            with self._client(httpx2.Client) as client:
                self._set_opened(_post(client.post, f"{self.base_url}/episodes", self._opening_body()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the episode and send its rewards.

        Raises:
            EngineError: The server is unreachable or rejects the rewards.
        """
        body = self._final_body()
        if body:
            with self._client(httpx2.Client) as client:
                _post(client.post, f"{self.base_url}/reward", body)

    async def __aenter__(self) -> ServedEpisode:
        """Open the episode without blocking the event loop; see `__enter__`."""
        if self._url_match is None:
            async with self._client(httpx2.AsyncClient) as client:
                self._set_opened(await _post_async(client.post, f"{self.base_url}/episodes", self._opening_body()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the episode and send its rewards without blocking the event loop; see `__exit__`."""
        body = self._final_body()
        if body:
            async with self._client(httpx2.AsyncClient) as client:
                await _post_async(client.post, f"{self.base_url}/reward", body)

    def _client(self, kind: Any) -> Any:
        headers = {"authorization": f"Bearer {self.api_key}", "accept-encoding": "identity"}
        return kind(headers=headers, timeout=_SECONDS)

    def _opening_body(self) -> dict[str, Any]:
        task = self.task
        if isinstance(task, Task):
            task_json: Any = {"id": task.id, "prompt": task.prompt, "private": to_plain_values(dict(task.private))}
        else:
            task_json = task
        body = {"id": self.id or None, "task": task_json or None, "seed": self._seed}
        return {name: value for name, value in body.items() if value is not None}

    def _set_opened(self, opened: Mapping[str, Any]) -> None:
        self.id = str(opened["id"])
        self.base_url = f"{self.base_url.removesuffix('/v1')}/episodes/{self.id}/v1"

    def _final_body(self) -> dict[str, Any]:
        """Return the request body with the rewards; empty if the training run of the agent ends the episode itself."""
        body: dict[str, Any] = {}
        if self._reward is not None:
            body["reward"] = self._reward
        if self._turns:
            body["turns"] = {str(turn): value for turn, value in self._turns.items()}
        if self._url_match is None and self._reward is None:
            body["final"] = True
        return body


def episode(
    task: str | Task = "",
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    id: str | None = None,
    seed: int | None = None,
) -> ServedEpisode:
    """Return an episode on a server, for `with` or `async with`; see `ServedEpisode`.

    >>> with episode("sum-17", base_url="http://127.0.0.1:8000/v1") as ep:  # doctest: +SKIP
    ...     completion = OpenAI(base_url=ep.base_url, api_key=ep.api_key).chat.completions.create(...)
    ...     ep.reward(float("17" in completion.choices[0].message.content))
    """
    return ServedEpisode(task, base_url=base_url, api_key=api_key, id=id, seed=seed)


def _post(post: Any, url: str, body: Mapping[str, Any]) -> Any:
    try:
        return _parse_response(url, post(url, json=body))
    except httpx2.HTTPError as error:
        raise EngineError(f"{url}: {error}") from None


async def _post_async(post: Any, url: str, body: Mapping[str, Any]) -> Any:
    try:
        return _parse_response(url, await post(url, json=body))
    except httpx2.HTTPError as error:
        raise EngineError(f"{url}: {error}") from None


def _parse_response(url: str, response: httpx2.Response) -> Any:
    try:
        content = response.json()
        problem = "" if response.is_success else content["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise EngineError(f"{url}: status {response.status_code}; not a server of Whetstone") from None
    if problem:
        raise EngineError(f"{url}: {problem}")
    return content
