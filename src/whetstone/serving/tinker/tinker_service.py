"""Requests of the Tinker API: sessions, training clients, samplers, saved states and futures.

A request that computes returns the id of a future at once. Requests of one training client run in the order of their
`seq_id`; those of several clients share the base model and take turns in the compute thread.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whetstone.chat.api.requests import RefusedError
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RecipeError, WhetstoneError, summarize_exception
from whetstone.inference import Engine, GenerateRequest, Sampling
from whetstone.inference.engine_factory import local
from whetstone.policies import Policy, has_adapters
from whetstone.seeding import derive_seed
from whetstone.serving.tinker.protobuf_format import (
    TrainingRequest,
    encode_sample_response,
    encode_training_output,
)
from whetstone.serving.tinker.state_files import StateFiles
from whetstone.serving.tinker.training_client import TrainingModel, restore_training_model
from whetstone.tokens import TokenSequence

WIRE_VERSION = "0.38"
"""Version of the client whose wire format this server implements."""
_MAX_FUTURES, _MAX_ENGINES, _MAX_SEQUENCES = 4096, 2, 64
_LOST_SECONDS = 30.0
"""Time after which a request that has not arrived no longer delays those after it."""
_MAX_LOST_AGE_SECONDS = 600.0
"""Time in which a request that was refused without its position explains a missing one."""
_UNSUPPORTED_SAMPLING = ("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs",
                         "prompt_alt_tokens_k", "prompt_logprobs_last_n")  # fmt: skip

Result = bytes | dict[str, Any]
"""Result of a future: Protocol Buffers or a JSON object."""


@dataclass(frozen=True, slots=True)
class SamplerWeights:
    """Weights that samplers read."""

    path: str
    """Path of the saved weights; the base model's name for the base model."""
    policy: Policy | None
    """Policy with a copy of the adapters; None: the base model."""


class TinkerService:
    """State of the Tinker API of a server.

    Args:
        base: Served policy, the base model of all training clients.
        engine: Engine that samples the base model.
        name: Name of the base model for clients.
        states: Folder of saved states and sampler weights.
        seed: Random seed of requests without one.

    Raises:
        RecipeError: If the policy has adapters, or the folder cannot be created.
    """

    def __init__(self, base: Policy, engine: Engine, *, name: str, states: Path, seed: int = 0) -> None:
        if has_adapters(base.model):
            raise RecipeError("--tinker: the model has adapters; export it with merged adapters, and serve the export")
        self.base, self.engine, self.name, self.seed = base, engine, name, seed
        self.models: dict[str, TrainingModel] = {}
        self._turns: dict[str, asyncio.Condition] = {}
        self._lost: list[float] = []
        self.states = StateFiles(states, base)
        self._samplers: dict[str, SamplerWeights] = {}
        self._loaded: dict[str, SamplerWeights] = {}
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._busy: dict[str, int] = {}
        self._futures: OrderedDict[str, asyncio.Task[Result]] = OrderedDict()
        self._ids: dict[tuple[str, int], str] = {}
        self._sessions: set[str] = set()
        self._count = itertools.count()

    def check_version(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check the version of the client in a request of its configuration; return the configuration.

        Raises:
            RefusedError: If the client has another wire format.
        """
        version = str(body.get("sdk_version", "unknown"))
        if version.split(".")[:2] != WIRE_VERSION.split("."):
            raise RefusedError(
                f"tinker {version[:20]}: this server implements the wire format of {WIRE_VERSION}; "
                f"pip install 'tinker=={WIRE_VERSION}.*'"
            )
        return {"parallel_fwdbwd_chunks": False, "sample_max_concurrent_requests": 256}

    def create_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session; see `check_version`."""
        self.check_version(body)
        session = uuid.uuid4().hex
        self._sessions.add(session)
        return {"type": "create_session", "session_id": session}

    def describe_capabilities(self) -> dict[str, Any]:
        """Return the base model with its context length."""
        model = {"model_name": self.name, "max_context_length": self.base.context_length}
        return {"supported_models": [{**model, "trainable": True, "sampleable": True}]}

    def create_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start to create a training client; return its future.

        Raises:
            RefusedError: If the base model is not served, or the optimizer or adapters are not supported.
        """
        self._check_base(body, "create_model")
        optimizer = (body.get("optimizer_config") or {}).get("type", "adamw")
        if optimizer != "adamw":
            raise RefusedError(f"create_model: optimizer {optimizer} is not supported; this server has adamw")
        config = body.get("lora_config")
        if not isinstance(config, Mapping):
            raise RefusedError("create_model: full training is not supported; set lora_config")
        rank = config.get("rank")
        if not isinstance(rank, int) or not 1 <= rank <= 1024:
            raise RefusedError(f"create_model: lora_config.rank must be from 1 to 1024, got {rank!r}")
        id = self._model_id(body)
        layers = {name: bool(config.get(name, True)) for name in ("train_attn", "train_mlp")}
        seed = config.get("seed") or 0

        async def create() -> Result:
            self.models[id] = await run_in_compute_thread(TrainingModel, self.base, rank=rank, seed=seed, **layers)
            self._turns[id] = asyncio.Condition()
            return {"type": "create_model", "model_id": id}

        return self._start(create(), model=id)

    def describe_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return base model, tokenizer and rank of a training client."""
        id = str(body.get("model_id"))
        tokenizer = self.base.tokenizer.name_or_path or self.name
        data = {"arch": self.base.model.config.model_type, "model_name": self.name, "tokenizer_id": tokenizer}  # type: ignore[union-attr]
        info = {"type": "get_info", "model_data": data, "model_id": id, "model_name": self.name}
        return {**info, "is_lora": True, "lora_rank": self._model(id).rank}

    def forward_backward(self, request: TrainingRequest) -> dict[str, Any]:
        """Start a forward pass, with a backward pass unless it is `forward_only`; return the future."""
        model = self._model(request.model_id)

        async def compute() -> Result:
            logprobs, metrics = await run_in_compute_thread(model.forward_backward, request)
            return encode_training_output(logprobs, metrics)

        return self._start_in_order(request.model_id, request.seq_id, compute)

    def optim_step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start an optimizer step; return the future."""
        model, params = self._model(body.get("model_id")), body.get("adam_params")

        async def step() -> Result:
            if not isinstance(params, Mapping):
                raise RefusedError("optim_step: has no adam_params; other optimizers than AdamW are not supported")
            return {"metrics": await run_in_compute_thread(model.optim_step, params)}

        return self._start_in_order(str(body["model_id"]), body.get("seq_id"), step)

    def save_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start to save the state of a training client in a file; return the future."""
        id, model = str(body.get("model_id")), self._model(body.get("model_id"))

        async def save() -> Result:
            path = self._free_path(id, "weights", body)
            await run_in_compute_thread(lambda: self.states.save(path, model.state_dict()))
            return {"type": "save_weights", "path": path}

        return self._start_in_order(id, body.get("seq_id"), save)

    def load_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start to load a saved state into a training client, or into a new one; return the future."""
        path, optimizer = str(body.get("path")), bool(body.get("optimizer"))
        if body.get("model_id") is not None:
            id, model = str(body["model_id"]), self._model(body["model_id"])

            async def load() -> Result:
                await run_in_compute_thread(lambda: model.load_state_dict(self._read_state(path), optimizer=optimizer))
                return {"type": "load_weights", "path": path, "model_id": id}

            return self._start_in_order(id, body.get("seq_id"), load)
        if body.get("base_model") is not None:
            self._check_base(body, "load_weights")
        id = self._model_id(body)

        async def create() -> Result:
            model = await run_in_compute_thread(
                lambda: restore_training_model(self.base, self._read_state(path), optimizer=optimizer)
            )
            self.models[id], self._turns[id] = model, asyncio.Condition()
            return {"type": "load_weights", "path": path, "model_id": id}

        return self._start(create(), model=id)

    def save_sampler_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start to copy the adapters of a training client for samplers, named ones into a file; return the future."""
        id, model = str(body.get("model_id")), self._model(body.get("model_id"))

        async def save() -> Result:
            named = body.get("path") is not None
            path = self._free_path(id, "sampler_weights", body)
            weights = SamplerWeights(path, await run_in_compute_thread(model.snapshot_policy))
            if named:
                await run_in_compute_thread(lambda: self.states.save(path, {**model.state_dict(), "optimizers": None}))
                self._loaded[path] = weights
                return {"type": "save_weights_for_sampler", "path": path}
            sampler = f"{id.split(':')[0]}:sample:{body.get('sampling_session_seq_id')}"
            self._samplers[sampler] = weights
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler}

        return self._start_in_order(id, body.get("seq_id"), save)

    async def describe_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the base model and rank of a saved state."""
        path = str(body.get("tinker_path") or body.get("path"))
        state = await run_in_compute_thread(self.states.load, path, "weights_info", "weights", "sampler_weights")
        return {"base_model": self.name, "is_lora": True, "lora_rank": state["rank"]}

    async def create_sampler(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a sampler of saved weights or of the base model.

        Raises:
            RefusedError: If the weights or the base model are unknown.
        """
        path = body.get("model_path")
        if path is not None:
            weights = await self._load_sampler(str(path))
        else:
            self._check_base(body, "create_sampling_session")
            weights = SamplerWeights(self.name, None)
        id = f"{body.get('session_id')}:sample:{body.get('sampling_session_seq_id')}"
        self._samplers[id] = weights
        return {"type": "create_sampling_session", "sampling_session_id": id}

    def describe_sampler(self, id: str) -> dict[str, Any]:
        """Return base model and path of a sampler."""
        weights = self._sampler(id)
        path = {"model_path": weights.path} if weights.policy is not None else {}
        return {"sampler_id": id, "base_model": self.name, **path}

    def sample_tokens(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start to sample; return the future.

        Raises:
            RefusedError: If an option is not supported, or a value is out of range.
        """
        weights = self._sampler(str(body.get("sampling_session_id")))
        for name in _UNSUPPORTED_SAMPLING:
            if body.get(name):
                raise RefusedError(f"sample: {name} is not supported; prompt_logprobs and log-probs of samples are")
        prompt = TokenSequence(_read_prompt(body.get("prompt") or {}))
        count = int(body.get("num_samples", 1))
        if not 1 <= count <= 1024:
            raise RefusedError(f"sample: num_samples must be from 1 to 1024, got {count}")
        if not 0 < len(prompt) < self.base.context_length:
            limit = self.base.context_length
            raise RefusedError(f"sample: {len(prompt)} prompt tokens do not fit the context of {limit} tokens")
        sampling = self._read_sampling(body.get("sampling_params") or {}, len(prompt))
        request = next(self._count)
        seed = (body.get("sampling_params") or {}).get("seed")
        of_request = derive_seed(self.seed, "tinker", request) if seed is None else int(seed)
        ids = [f"{uuid.uuid4().hex}" for _ in range(count)]

        async def sample() -> Result:
            key = str(id(weights))
            self._busy[key] = self._busy.get(key, 0) + 1
            try:
                engine = await self._engine(key, weights)
                calls = []
                for n in range(count):
                    each = replace(sampling, seed=derive_seed(of_request, "sample", n))
                    calls.append(engine.generate(GenerateRequest(prompt, each, f"tinker {request} {n}")))
                generations = await asyncio.gather(*calls)
                for n in range(count):
                    engine.forget(f"tinker {request} {n}")
                scored = None
                if body.get("prompt_logprobs"):
                    scored = [math.nan, *((await engine.score(prompt)).logprobs if len(prompt) > 1 else ())]
                return encode_sample_response([(g.tokens, g.logprobs, g.finish == "stop") for g in generations], scored)
            finally:
                self._busy[key] -= 1

        return {**self._start(sample()), "sample_sequence_ids": ids}

    async def skip_lost_request(self) -> None:
        """Record that a request was refused before its client and position were read.

        The first client that lacks a request does not wait for it. Clients send their requests one after another, so a
        request that is missing when a later one arrives was refused or lost.
        """
        self._lost.append(time.monotonic())
        for turn in self._turns.values():
            async with turn:
                turn.notify_all()

    async def retrieve_result(self, id: str, *, seconds: float = 20.0) -> Result | None:
        """Return the result of a future, or None if it is not complete in time.

        A failed request is an object with `error` and `category`.

        Raises:
            RefusedError: If the future is unknown.
        """
        task = self._futures.get(id)
        if task is None:
            raise RefusedError(f"retrieve_future: {id[:80]} is unknown; the server may have restarted", status=404)
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            return None
        error = task.exception()
        if error is None:
            return task.result()
        is_user = isinstance(error, RefusedError | WhetstoneError)
        line = str(error) if is_user else f"the server failed: {summarize_exception(error)}"
        return {"error": line, "category": "user" if is_user else "server"}

    async def close(self) -> None:
        """Cancel all requests and close the engines of samplers; the base model's engine stays open."""
        for task in self._futures.values():
            task.cancel()
        for engine in self._engines.values():
            await engine.close()

    async def _engine(self, key: str, weights: SamplerWeights) -> Engine:
        """Return the engine of a sampler, created when it is first used; idle engines are closed beyond a few."""
        if weights.policy is None:
            return self.engine
        if key not in self._engines:
            self._engines[key] = local(policy=weights.policy, max_sequences=_MAX_SEQUENCES)
        self._engines.move_to_end(key)
        idle = [each for each in self._engines if not self._busy.get(each)]
        for each in idle[: max(0, len(self._engines) - _MAX_ENGINES)]:
            await self._engines.pop(each).close()
        return self._engines[key]

    def _read_sampling(self, params: Mapping[str, Any], length: int) -> Sampling:
        room = self.base.context_length - length
        stop = params.get("stop")
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        strings = tuple(each for each in stops if isinstance(each, str))
        ids = frozenset(each for each in stops if isinstance(each, int))
        if stop is None and self.base.tokenizer.eos_token_id is not None:
            ids = frozenset([self.base.tokenizer.eos_token_id])
        try:
            return Sampling(
                min(int(params.get("max_tokens") or room), room),
                temperature=float(params.get("temperature", 1.0)),
                top_k=max(0, int(params.get("top_k", -1))),
                top_p=float(params.get("top_p", 1.0)),
                stop_ids=ids,
                stop_strings=strings,
            )
        except (ValueError, TypeError) as error:
            raise RefusedError(f"sample: sampling_params: {error}") from None

    def _check_base(self, body: Mapping[str, Any], place: str) -> None:
        name = str(body.get("base_model"))
        if name != self.name:
            raise RefusedError(f"{place}: base_model {name[:80]} is not served; this server has {self.name}")

    def _model_id(self, body: Mapping[str, Any]) -> str:
        session = str(body.get("session_id"))
        if session not in self._sessions:
            raise RefusedError(f"session {session[:80]}: is unknown; the server may have restarted", status=404)
        return f"{session}:train:{body.get('model_seq_id')}"

    def _model(self, id: object) -> TrainingModel:
        model = self.models.get(str(id))
        if model is None:
            raise RefusedError(f"model_id {str(id)[:80]}: is unknown; the server may have restarted", status=404)
        return model

    def _sampler(self, id: str) -> SamplerWeights:
        weights = self._samplers.get(id)
        if weights is None:
            raise RefusedError(f"sampling_session_id {id[:80]}: is unknown; create a sampling client", status=404)
        return weights

    def _free_path(self, id: str, kind: str, body: Mapping[str, Any]) -> str:
        name = body.get("path") or f"unnamed-{next(self._count)}"
        path = f"tinker://{id}/{kind}/{name}"
        self.states.check_name(path)
        if kind == "weights" and not body.get("overwrite") and self.states.has_state(path, kind):
            raise RefusedError(f"save: {path} exists; use overwrite=True or another name")
        return path

    def _read_state(self, path: str) -> dict[str, Any]:
        return self.states.load(path, "load_weights", "weights")

    async def _load_sampler(self, path: str) -> SamplerWeights:
        """Return the sampler weights of a path, read from their file when they are first used."""

        def load() -> Policy:
            state = self.states.load(path, "create_sampling_session", "sampler_weights")
            return restore_training_model(self.base, state, optimizer=False).snapshot_policy()

        if path not in self._loaded:
            policy = await run_in_compute_thread(load)
            self._loaded.setdefault(path, SamplerWeights(path, policy))
        return self._loaded[path]

    def _start_in_order(self, model: str, seq_id: object, work: Callable[[], Awaitable[Result]]) -> dict[str, Any]:
        """Start work when all requests of a training client before `seq_id` have ended; repeated ones have one future.

        A request that was refused before its position was read never arrives: those after it start at once if
        `skip_lost_request` was called, and otherwise after `_LOST_SECONDS`.
        """
        if not isinstance(seq_id, int) or seq_id < 1:
            raise RefusedError(f"seq_id: must be a positive integer, got {seq_id!r}")
        known = self._ids.get((model, seq_id))
        if known is not None:
            return {"request_id": known, "model_id": model}
        state, turn = self.models[model], self._turns[model]
        if seq_id < state.next_seq:
            raise RefusedError(f"seq_id {seq_id}: arrived after later requests, which did not wait for it any longer")

        async def run() -> Result:
            async with turn:
                while state.next_seq != seq_id:
                    is_missing = (model, state.next_seq) not in self._ids
                    if not (is_missing and self._take_lost_request()):
                        try:
                            await asyncio.wait_for(turn.wait(), _LOST_SECONDS)
                            continue
                        except TimeoutError:
                            is_missing = (model, state.next_seq) not in self._ids
                    state.next_seq += is_missing
                    turn.notify_all()
            try:
                return await work()
            finally:
                async with turn:
                    state.next_seq += 1
                    turn.notify_all()

        started = self._start(run(), model=model)
        self._ids[model, seq_id] = started["request_id"]
        return started

    def _take_lost_request(self) -> bool:
        """Return whether a request was lost recently, and count it as skipped."""
        self._lost = [each for each in self._lost if time.monotonic() - each < _MAX_LOST_AGE_SECONDS]
        return bool(self._lost) and bool(self._lost.pop(0))

    def _start(self, work: Any, *, model: str | None = None) -> dict[str, Any]:
        id = uuid.uuid4().hex
        self._futures[id] = asyncio.ensure_future(work)
        while len(self._futures) > _MAX_FUTURES and next(iter(self._futures.values())).done():
            self._futures.popitem(last=False)
        return {"request_id": id, **({"model_id": model} if model is not None else {})}


def _read_prompt(prompt: Mapping[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for chunk in prompt.get("chunks", ()):
        if chunk.get("type") != "encoded_text":
            raise RefusedError(f"sample: chunks of type {chunk.get('type')} are not supported; send encoded_text")
        ids += chunk["tokens"]
    return tuple(ids)
