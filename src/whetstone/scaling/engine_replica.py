"""What runs in the process of an engine replica? The recipe's engine, which draws for nobody before it has its weights.

Easy to get wrong: what is kept for an episode is worth a prompt's computing, so episodes are told apart by whoever
asks. A replica that began again has forgotten all of it, and computes prompts afresh.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch

from whetstone.assembly.instantiate import part_of
from whetstone.compute_thread import run_in_compute_thread
from whetstone.contracts import fulfils
from whetstone.errors import InfrastructureError
from whetstone.inference import ENGINES, Engine, LocalEngine, RestartingEngine, merges
from whetstone.inference.protocol import GenerateRequest, InFlight, ReadsText, Scores, Sleeps
from whetstone.policies import Policy, clone_trainable, find_device, placed
from whetstone.recipe import Part, Resolved
from whetstone.scaling.protocol import Drawn, Gone, Parcel, ReplicaStatus
from whetstone.scaling.published import Shelf, unpacked
from whetstone.tokens import TokenSequence


@dataclass(frozen=True, slots=True)
class ReplicaMaking:
    """All it takes to make a replica, wherever that is."""

    resolved: Resolved
    engine: Part
    """The recipe's, with an address of its own where replicas have some."""
    on_gpu: bool
    threads: int
    """PyTorch may compute with."""
    version: int
    """Of the weights the policy comes with."""
    folders: tuple[str, ...] = ()
    """In which modules of the recipe are looked for."""


class EngineReplica:
    """The engine of one process.

    Args:
        policy: With the weights it begins with; a critic is not needed.
        fetched: Fetches a shelf by its reference.
        node: Where this is.
    """

    def __init__(
        self, making: ReplicaMaking, policy: Policy, *, fetched: Callable[[Any], Awaitable[Shelf]], node: str
    ) -> None:
        torch.set_num_threads(making.threads)
        self._fetched, self._node = fetched, node
        policy = placed(policy, find_device("auto")) if making.on_gpu else policy
        if not merges(policy) and any(p.dtype != policy.dtype for p in policy.model.parameters()):
            policy = _with_model(policy, clone_trainable(policy.model, dtype=policy.dtype))
        recipe = making.resolved.recipe
        given = {"policy": policy, "max_sequences": recipe.rollout.max_in_flight, "heard": lambda line: None}

        def made(version: int) -> Engine:
            engine: Engine = part_of(
                making.resolved,
                "engine",
                "engine",
                making.engine,
                ENGINES,
                {**given, "version": version},
                protocol=Engine,
            )
            return engine

        first = made(making.version)
        self._policy, self._in_place = policy, isinstance(first, LocalEngine)
        self._kept: dict[str, torch.Tensor] = {}
        """What was handed over since, where the engine does not write it into the policy's own parameters."""
        self._engine = first if isinstance(first, RestartingEngine) else RestartingEngine(made, first=first)
        self._ready = self._fell = False
        self._asked = 0

    @property
    def alive(self) -> bool:
        """Whether its engine can answer, now or after it was restarted."""
        return self._engine.alive

    async def generate(self, request: GenerateRequest) -> Drawn:
        """See `Replica.generate`."""
        self._check_ready()
        self._asked += 1
        try:
            generation = await self._engine.generate(request)
        except InfrastructureError as failure:
            raise self._gone(failure) from None
        finally:
            self._asked -= 1
        return Drawn(generation, self._asked)

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """See `Replica.score`."""
        self._check_ready()
        try:
            return await self._engine.score(tokens, start=start)
        except InfrastructureError as failure:
            raise self._gone(failure) from None

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """See `Replica.tokenize`."""
        return await self._engine.tokenize(text) if fulfils(self._engine, ReadsText) else None

    async def load(self, parcel: Parcel, in_flight: InFlight) -> float:
        """See `Replica.load`."""
        if parcel.since is not None and not (self._ready and self._engine.version == parcel.since):
            raise Gone(f"it is not at version {parcel.since}, which the parcel changes")
        began = time.perf_counter()
        shelves = [await self._fetched(reference) for reference in parcel.shelves]
        weights = await run_in_compute_thread(unpacked, parcel, shelves)
        took = time.perf_counter() - began
        if weights or self._fell or parcel.version != self._engine.version:
            whole = {**dict(self._policy.model.named_parameters()), **self._kept, **weights}
            await self._engine.load_weights(whole, parcel.version, in_flight=in_flight)
        if not self._in_place:
            self._kept.update({name: tensor.clone() for name, tensor in weights.items()})
        self._ready, self._fell = True, False
        return took

    async def sleep(self) -> None:
        """See `Replica.sleep`."""
        if fulfils(self._engine, Sleeps):
            await self._engine.sleep()

    async def status(self) -> ReplicaStatus:
        """See `Replica.status`."""
        engine = self._engine
        return ReplicaStatus(
            ready=self._ready and engine.alive,
            version=engine.version,
            statistics=engine.statistics,
            abilities=engine.abilities,
            asked=self._asked,
            node=self._node,
            process=os.getpid(),
        )

    def abort(self, episode: str) -> None:
        """See `Engine.abort`."""
        self._engine.abort(episode)

    def forget(self, episode: str) -> None:
        """See `Engine.forget`."""
        self._engine.forget(episode)

    async def close(self) -> None:
        """Let go of the engine, and of a server it started."""
        await self._engine.close()

    def _check_ready(self) -> None:
        if not self._ready:
            raise Gone("it began again and was given no weights yet")

    def _gone(self, failure: InfrastructureError) -> Exception:
        """What a failure comes to for who asked: with its engine or server dead, a replica draws for nobody before
        another took its place and was given the weights of now."""
        if self._engine.stands:
            return failure
        self._ready, self._fell = False, True
        return Gone(str(failure))


def _with_model(policy: Policy, model: torch.nn.Module) -> Policy:
    return Policy(model, policy.tokenizer, None, policy.dtype)
