"""Engine of several replicas: routes requests by cached prefix and load, and repeats those of replicas that died.

    generate → the episode's replica, or the one with the lowest cost → response
             → gone → another replica, from the same tokens → response

The requests of a replica that dies go to another one, which computes the prompt again and samples the same tokens: a
sample depends only on its seed and position. The replica receives requests again when it is ready.

Note:
    A replica that restarted has its initial weights. It serves no requests until it received the current ones. Its
    status (`ready`) is checked before it receives requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

from whetstone.errors import InfrastructureError
from whetstone.inference.engine_capabilities import check_media
from whetstone.inference.protocol import (
    EngineCapabilities,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    Scores,
    Weights,
)
from whetstone.scaling.protocol import ActorUnavailable, Replica, ReplicaStatus
from whetstone.scaling.routing import SentPrefixes, hash_prefixes, routing_cost
from whetstone.tokens import TokenSequence

T = TypeVar("T")
Routing = Literal["prefix", "load"]
"""Criterion for choosing a replica. `prefix`: the cached prefix of the prompt and the load; an episode stays with its
replica. `load`: only the load, for each request."""

LOOK_SECONDS = 0.5
"""Interval between two status requests to a replica, in seconds."""
REPORT_SECONDS = 2.0
"""Seconds for which a reported load of other callers is used."""


@dataclass(slots=True, eq=False)
class ReplicaHandle:
    """Knowledge of one calling process about a replica: availability, load and estimated KV cache."""

    replica: Replica
    up: bool = False
    """Whether the replica can receive requests."""
    own_requests: int = 0
    """Number of requests of this process in the replica."""
    other_requests: int = 0
    """Number of requests of other callers in the replica, when it last responded."""
    reported_at: float = 0.0
    """Time of the replica's last response."""
    episodes: set[str] = field(default_factory=set)
    """Episodes whose KV cache the replica may hold."""
    sent: SentPrefixes = field(default_factory=SentPrefixes)
    """Prefixes of prompts that were recently sent to the replica."""
    status: ReplicaStatus | None = None
    """Last status of the replica; None before the first one."""
    earlier_statistics: EngineStatistics = field(default_factory=EngineStatistics)
    """Summed statistics of the replica's earlier processes."""
    died: int = 0
    """Number of times that the replica's process was replaced."""

    @property
    def load(self) -> tuple[int, int]:
        """(number of requests in the replica, number of episodes that may send it their next request)."""
        known = time.perf_counter() - self.reported_at < REPORT_SECONDS
        return self.own_requests + (self.other_requests if known else 0), len(self.episodes)

    def update_load(self, num_requests: int) -> None:
        """Store the number of requests in the replica, of all callers."""
        self.other_requests, self.reported_at = max(0, num_requests - self.own_requests), time.perf_counter()

    def update_status(self, status: ReplicaStatus) -> None:
        """Store the replica's status; a new process adds to `died`."""
        if self.status is not None and (self.status.process, self.status.node) != (status.process, status.node):
            self.earlier_statistics = add_statistics(self.earlier_statistics, self.status.statistics)
            self.died += 1
        self.status = status
        self.update_load(status.num_requests)


class ReplicatedEngine:
    """Engine that distributes requests over replicas. Environment workers use it; the learner uses `WeightSyncEngine`.

    Args:
        replicas: One or more started replicas.
        late: Replicas that receive requests once they are ready.
        capabilities: Capabilities of all replicas.
        patience_seconds: Maximum number of seconds that a request waits if all replicas are gone.
        version: Version of the replicas' weights.
        routing: Criterion for choosing a replica.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        late: Sequence[Replica] = (),
        capabilities: EngineCapabilities,
        patience_seconds: float,
        version: int = 0,
        routing: Routing = "prefix",
    ) -> None:
        self.capabilities, self.patience_seconds, self.routing = capabilities, patience_seconds, routing
        self.version = version
        """See `Engine.version`."""
        self.rerouted = 0
        """Number of requests that were sent to another replica because one was gone."""
        self.handles = [ReplicaHandle(replica, up=True) for replica in replicas] + [
            ReplicaHandle(replica) for replica in late
        ]
        self._at: dict[str, ReplicaHandle] = {}
        self._changed = asyncio.Event()
        self._looking: dict[ReplicaHandle, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests: True until `close`."""
        return not self._closed

    @property
    def statistics(self) -> EngineStatistics:
        """Sum of the last known statistics of all replicas."""
        total = EngineStatistics()
        for handle in self.handles:
            total = add_statistics(total, handle.earlier_statistics)
            if handle.status is not None:
                total = add_statistics(total, handle.status.statistics)
        return total

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one generation on a replica; see `Engine.generate`.

        If the replica dies, another one repeats the request and samples the same tokens.

        Raises:
            ValueError: The request has `on_tokens`: replicas return whole generations only.
            InfrastructureError: No replica was available in time.
        """
        if request.on_tokens is not None:
            raise ValueError("on_tokens: an engine of replicas returns whole generations; leave it out")
        check_media(request.prompt, self.capabilities, engine="of replicas")

        async def ask(handle: ReplicaHandle) -> Generation:
            answer = await handle.replica.generate(request)
            handle.update_load(answer.num_requests)
            return answer.generation

        return await self._request(ask, request.prompt.keys, request.episode)

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Compute the log-probs of given tokens on a replica; see `Engine.score`."""
        check_media(tokens, self.capabilities, engine="of replicas")
        return await self._request(lambda handle: handle.replica.score(tokens, start=start), (), None)

    def abort(self, episode: str) -> None:
        """Abort the running generation of an episode on its replicas; see `Engine.abort`."""
        for handle in self.handles:
            if episode in handle.episodes:
                handle.replica.abort(episode)

    def forget(self, episode: str) -> None:
        """Release the KV cache of an episode on its replicas; see `Engine.forget`."""
        self._at.pop(episode, None)
        for handle in self.handles:
            if episode in handle.episodes:
                handle.episodes.discard(episode)
                handle.replica.forget(episode)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Raise an error: only the learner's process sends weights to replicas.

        Raises:
            InfrastructureError: Always.
        """
        raise InfrastructureError("weights are sent to replicas by the learner's process")

    async def close(self) -> None:
        """Stop sending requests; the replicas continue to run for other processes."""
        self._closed = True
        self._changed.set()
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    @property
    def count(self) -> int:
        """Number of replicas that can receive requests."""
        return sum(handle.up for handle in self.handles)

    def look_for_late_ones(self) -> None:
        """Start to poll replicas that are not up until they are ready.

        Requires a running event loop.
        """
        for handle in self.handles:
            if not handle.up:
                self._lose(handle)

    async def _request(
        self, ask: Callable[[ReplicaHandle], Awaitable[T]], keys: Sequence[int], episode: str | None
    ) -> T:
        while True:
            handle = await self._select_handle(keys, episode)
            handle.own_requests += 1
            try:
                return await ask(handle)
            except ActorUnavailable:
                self.rerouted += 1
                self._lose(handle)
            finally:
                handle.own_requests -= 1

    async def _select_handle(self, keys: Sequence[int], episode: str | None) -> ReplicaHandle:
        """Choose the replica of an episode, or the one with the lowest cost.

        Raises:
            InfrastructureError: No replica is up, and none returned in time.
        """
        handle = self._at.get(episode) if episode is not None else None
        if handle is not None and handle.up and self.routing == "prefix":
            if len(self.handles) > 1:  # other prompts may start with this one
                handle.sent.note(hash_prefixes(keys))
            return handle
        began = time.perf_counter()
        while not (up := [handle for handle in self.handles if handle.up]):
            left = self.patience_seconds - (time.perf_counter() - began)
            if self._closed or left <= 0:
                raise InfrastructureError(
                    f"none of {len(self.handles)} engine replicas was available within {self.patience_seconds:g} s "
                    "(scale.start_timeout_seconds)"
                )
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        best = self._best(up, keys)
        if episode is not None:
            if handle is not None and not handle.up:
                handle.episodes.discard(episode)
            self._at[episode] = best
            best.episodes.add(episode)
        return best

    def _best(self, up: Sequence[ReplicaHandle], keys: Sequence[int]) -> ReplicaHandle:
        """Return the replica with the lowest routing cost for a prompt, of those that are up."""
        if self.routing == "load" or len(up) == 1 or not keys:
            return min(up, key=lambda handle: handle.load)
        chain, fewest = hash_prefixes(keys), min(len(handle.episodes) for handle in up)

        def done_soonest(handle: ReplicaHandle) -> tuple[int, int]:
            num_requests, episodes = handle.load
            matched = handle.sent.count_matched_tokens(chain)
            return routing_cost(len(keys), matched, num_requests=num_requests, more=episodes - fewest), episodes

        best = min(up, key=done_soonest)
        best.sent.note(chain)
        return best

    def _lose(self, handle: ReplicaHandle) -> None:
        """Mark a replica as gone and poll it until it is ready; its KV cache is lost."""
        handle.up = False
        handle.sent.forget()
        if handle not in self._looking and not self._closed:
            looking = self._looking[handle] = asyncio.ensure_future(self._back(handle))
            looking.add_done_callback(lambda _: self._looking.pop(handle, None))

    async def _back(self, handle: ReplicaHandle) -> None:
        """Poll a replica until it is ready, then let it receive requests."""
        while not handle.up:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                status = await handle.replica.status()
            except ActorUnavailable:
                continue
            if status.ready:
                handle.update_status(status)
                handle.up = True
                self._changed.set()


def add_statistics(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """Add the statistics of two engines, field by field."""
    return replace(one, **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)})
