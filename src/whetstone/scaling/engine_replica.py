"""Engine replica: the recipe's engine in another process, which serves requests once it has received weights.

Note:
    The KV cache of an episode saves only the computation of its prompt. Callers name the episode of each request. A
    replica that restarted has lost its KV cache and computes prompts again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.instantiate import build_component
from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import InfrastructureError
from whetstone.inference import ENGINES, Engine, LocalEngine, RestartingEngine, uses_merged_weights
from whetstone.inference.protocol import GenerateRequest, HasTokenizer, InFlight, Scores, SupportsSleep
from whetstone.policies import Policy, clone_trainable, find_device, move_policy
from whetstone.recipe import Part, Resolved
from whetstone.scaling.protocol import ActorUnavailable, GenerationResult, ReplicaStatus, WeightUpdate
from whetstone.scaling.weight_broadcast import SharedBuffer, unpack_weights
from whetstone.tokens import TokenSequence


def get_engine_settings(assembly: RunComponents, number: int) -> Part:
    """Return the engine settings of one replica: the recipe's engine with the replica's address and GPUs.

    Args:
        assembly: Components of the run.
        number: Index of the replica.
    """
    recipe = assembly.resolved.recipe
    options: dict[str, Any] = dict(recipe.engine.options)
    if recipe.scale.engine_addresses:
        options["address"] = recipe.scale.engine_addresses[number]
    if recipe.scale.tensor_parallel > 1:
        word = "tensor_parallel_size" if recipe.engine.name == "vllm" else "tp_size"
        options["options"] = {word: recipe.scale.tensor_parallel, **options.get("options", {})}
    return Part(name=recipe.engine.name, **options)


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Arguments to create an engine replica in any process."""

    resolved: Resolved
    engine: Part
    """Engine settings of the replica; see `get_engine_settings`."""
    on_gpu: bool
    """Whether the replica computes on a GPU."""
    threads: int
    """Number of PyTorch threads."""
    version: int
    """Version of the policy's weights."""
    folders: tuple[str, ...] = ()
    """Folders that are searched for modules that the recipe names."""


class EngineReplica:
    """Engine of the recipe in a replica's process; implements the calls of `Replica`.

    Args:
        making: Settings of the replica.
        policy: Policy with the initial weights; a critic is not needed.
        fetched: Fetches a weight buffer by its reference.
        node: Node id of this process.
    """

    def __init__(
        self, making: ReplicaSpec, policy: Policy, *, fetched: Callable[[Any], Awaitable[SharedBuffer]], node: str
    ) -> None:
        torch.set_num_threads(making.threads)
        self._fetched, self._node = fetched, node
        policy = move_policy(policy, find_device("auto")) if making.on_gpu else policy
        if not uses_merged_weights(policy) and any(p.dtype != policy.dtype for p in policy.model.parameters()):
            policy = _with_model(policy, clone_trainable(policy.model, dtype=policy.dtype))
        recipe = making.resolved.recipe
        options = {"policy": policy, "max_sequences": recipe.rollout.max_episodes, "heard": lambda line: None}

        def create_engine(version: int) -> Engine:
            new_engine: Engine = build_component(
                making.resolved,
                "engine",
                "engine",
                making.engine,
                ENGINES,
                {**options, "version": version},
                protocol=Engine,
            )
            return new_engine

        first = create_engine(making.version)
        self._policy, self._in_place = policy, isinstance(first, LocalEngine)
        self._kept: dict[str, torch.Tensor] = {}
        """Weights received since, if the engine does not write them into the policy's own parameters."""
        self._engine = first if isinstance(first, RestartingEngine) else RestartingEngine(create_engine, first=first)
        self._ready = self._fell = False
        self._num_requests = 0

    @property
    def alive(self) -> bool:
        """Whether the engine can respond, now or after a restart."""
        return self._engine.alive

    async def generate(self, request: GenerateRequest) -> GenerationResult:
        """Sample one generation; see `Replica.generate`.

        Raises:
            ActorUnavailable: The replica has received no weights yet, or its engine died.
        """
        self._check_ready()
        self._num_requests += 1
        try:
            generation = await self._engine.generate(request)
        except InfrastructureError as failure:
            raise self._convert_failure(failure) from None
        finally:
            self._num_requests -= 1
        return GenerationResult(generation, self._num_requests)

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """Compute the log-probs of given tokens; see `Replica.score`.

        Raises:
            ActorUnavailable: The replica has received no weights yet, or its engine died.
        """
        self._check_ready()
        try:
            return await self._engine.score(tokens, start=start)
        except InfrastructureError as failure:
            raise self._convert_failure(failure) from None

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Tokenize a text with the engine's tokenizer.

        Returns None if the engine does not accept text.
        """
        return await self._engine.tokenize(text) if implements_protocol(self._engine, HasTokenizer) else None

    async def load(self, update: WeightUpdate, in_flight: InFlight) -> float:
        """Fetch, check and load a weight update; see `Replica.load`."""
        if update.base_version is not None and not (self._ready and self._engine.version == update.base_version):
            raise ActorUnavailable(
                f"the replica is not at version {update.base_version}, which the weight update changes"
            )
        began = time.perf_counter()
        buffers = [await self._fetched(reference) for reference in update.buffers]
        weights = await run_in_compute_thread(unpack_weights, update, buffers)
        took = time.perf_counter() - began
        if weights or self._fell or update.version != self._engine.version:
            full_weights = {**dict(self._policy.model.named_parameters()), **self._kept, **weights}
            await self._engine.load_weights(full_weights, update.version, in_flight=in_flight)
        if not self._in_place:
            self._kept.update({name: tensor.clone() for name, tensor in weights.items()})
        self._ready, self._fell = True, False
        return took

    async def sleep(self) -> None:
        """Release the engine's memory until the next weights.

        No effect if the engine does not support sleeping.
        """
        if implements_protocol(self._engine, SupportsSleep):
            await self._engine.sleep()

    async def status(self) -> ReplicaStatus:
        """Return the current status of the replica."""
        engine = self._engine
        return ReplicaStatus(
            ready=self._ready and engine.alive,
            version=engine.version,
            statistics=engine.statistics,
            capabilities=engine.capabilities,
            num_requests=self._num_requests,
            node=self._node,
            process=os.getpid(),
        )

    def abort(self, episode: str) -> None:
        """Abort the running generation of an episode."""
        self._engine.abort(episode)

    def forget(self, episode: str) -> None:
        """Release the KV cache of an episode."""
        self._engine.forget(episode)

    async def close(self) -> None:
        """Close the engine, and an inference server that it started."""
        await self._engine.close()

    def _check_ready(self) -> None:
        if not self._ready:
            raise ActorUnavailable("the replica restarted and has received no weights yet")

    def _convert_failure(self, failure: InfrastructureError) -> Exception:
        """Return the error that the caller receives for a failure of the engine.

        If the engine or its server died, the replica serves no requests until the engine was restarted and received the
        current weights.
        """
        if self._engine.is_engine_alive:
            return failure
        self._ready, self._fell = False, True
        return ActorUnavailable(str(failure))


def _with_model(policy: Policy, model: torch.nn.Module) -> Policy:
    return Policy(model, policy.tokenizer, None, policy.dtype)
