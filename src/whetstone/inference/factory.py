"""Which engine does a recipe's `engine:` stand for? A name of ours, or `package.module:Class`.

Whatever makes one takes, by keyword and where it asks for them, the policy, how many sequences it draws for at once,
the version its weights have and whom to tell of restarts (`heard`); every other keyword is an option of the recipe.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt

from whetstone.errors import EngineError
from whetstone.inference.local import LocalEngine
from whetstone.inference.merging import MergingEngine
from whetstone.inference.protocol import Engine, InFlight, Weights
from whetstone.inference.restarting import RestartingEngine
from whetstone.inference.served import ServedEngine, restarting_engine
from whetstone.inference.sglang import SGLangEngine
from whetstone.inference.vllm import VLLMEngine
from whetstone.policies import (
    Policy,
    adapter_alpha,
    can_merge,
    free_memory,
    has_adapters,
    save_policy,
    without_adapters,
)
from whetstone.policies.precision import SMALL


def local(
    *, policy: Policy, max_sequences: int, version: int = 0, cache_gib: Annotated[float, Gt(0)] | None = None
) -> Engine:
    """In this process, from the policy's own model: what is trained is what draws. Where it is computed in shorter
    numbers than its weights have, from a copy.

    Args:
        cache_gib: What keys and values of all episodes may take; fewer run at once where it has to be. null: half of
            what is free on a GPU when the engine is made, and any on a CPU, where memory is taken when it is used.

    Raises:
        EngineError: There is no room for one episode.
    """
    room = cache_bytes(policy.device, cache_gib)
    try:
        if merges(policy):
            return MergingEngine(policy, rows=max_sequences, version=version, cache_bytes=room)
        return LocalEngine(
            policy.model,
            context_length=policy.context_length,
            rows=max_sequences,
            cache_bytes=room,
            version=version,
            detokenize=policy.tokenizer.decode,
        )
    except ValueError as error:
        raise EngineError(f"no room for keys and values on {policy.device}: {error}") from None


def cache_bytes(device: torch.device, gib: float | None) -> int | None:
    """What keys and values of an engine may take on a device; None: any."""
    if gib is not None:
        return int(gib * 2**30)
    free = free_memory(device) if device.type != "cpu" else None
    return free // 2 if free is not None else None


def vllm(
    *,
    policy: Policy,
    max_sequences: int,
    heard: Callable[[str], None] = lambda line: None,
    address: str | None = None,
    python: str | None = None,
    port: int = 0,
    options: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    key: str = "",
    transfer: Literal["folder", "ipc"] = "folder",
    weights_folder: str | None = None,
    seconds: float = 600.0,
    start_seconds: float = 900.0,
) -> Engine:
    """A vLLM server: one at an address, or one that is started in an environment of its own and watched.

    Args:
        address: Where a server is: `http://127.0.0.1:8000`.
        python: Instead, the interpreter of an environment with vLLM: the server is started with the policy.
        port: Where one that is started listens; 0: at one that is free.
        options: More words of its command line: `{max_model_len: 4096}`. It computes in the policy's dtype unless they
            name another.
        environment: Variables one that is started is given.
        key: Of its API.
        transfer: How weights reach it; `ipc`: by handles of the GPU both are on.
        weights_folder: Where weights are written for it to read; null: in memory.
        seconds: How long one answer may take.
        start_seconds: How long it may take to start.

    Raises:
        EngineError: Options contradict each other.
    """
    named = {
        "dtype": _dtype(policy),
        "max_num_seqs": max_sequences,
        "max_model_len": policy.context_length,
        **(options or {}),
    }
    return _served(
        VLLMEngine,
        policy,
        heard,
        python,
        weights_folder,
        address=address,
        port=port,
        options=named,
        environment=environment,
        key=key,
        transfer=transfer,
        seconds=seconds,
        start_seconds=start_seconds,
    )


def sglang(
    *,
    policy: Policy,
    max_sequences: int,
    heard: Callable[[str], None] = lambda line: None,
    address: str | None = None,
    python: str | None = None,
    port: int = 0,
    options: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    key: str = "",
    weights_folder: str | None = None,
    seconds: float = 600.0,
    start_seconds: float = 900.0,
) -> Engine:
    """An SGLang server; options as of `vllm`."""
    named = {
        "dtype": _dtype(policy),
        "max_running_requests": max_sequences,
        "context_length": policy.context_length,
        **(options or {}),
    }
    return _served(
        SGLangEngine,
        policy,
        heard,
        python,
        weights_folder,
        address=address,
        port=port,
        options=named,
        environment=environment,
        key=key,
        seconds=seconds,
        start_seconds=start_seconds,
    )


def merges(policy: Policy) -> bool:
    """Whether a local engine samples a policy's adapters from a copy that has taken them in.

    SmolLM2 with 135 million parameters in float32: adapters of rank 16 beside its weights take a third more than its
    products alone. Small models keep theirs, and with them the bits of their runs.
    """
    large = sum(parameter.numel() for parameter in policy.model.parameters()) >= SMALL
    return (large or policy.dtype != torch.float32) and can_merge(policy.model)


ENGINES: Mapping[str, Callable[..., Engine]] = {"local": local, "vllm": vllm, "sglang": sglang}
"""By the name a recipe has for it."""


async def publish(weights: Weights, engine: Engine, version: int, *, in_flight: InFlight = "drain") -> None:
    """Have an engine draw from these weights from now on, under this version."""
    await engine.load_weights(weights, version, in_flight=in_flight)


def _dtype(policy: Policy) -> str:
    """The learner's numbers: left to choose, a server rounds weights in float32 to half precision."""
    return str(policy.dtype).removeprefix("torch.")


def _served(
    kind: type[ServedEngine],
    policy: Policy,
    heard: Callable[[str], None],
    python: str | None,
    weights_folder: str | None,
    **options: Any,
) -> RestartingEngine:
    """The engine of a server, and where one is started, the folder that it is started with."""
    kept = None
    if python is not None:  # adapters are handed over apart
        kept = tempfile.TemporaryDirectory(prefix="whetstone-model-")
        save_policy(replace(policy, model=without_adapters(policy.model, merge=False)), Path(kept.name))
    engine = restarting_engine(
        kind,
        heard=heard,
        begin=dict(policy.model.named_parameters()),
        weights_folder=weights_folder,
        lora_alpha=adapter_alpha(policy.model) if has_adapters(policy.model) else None,
        python=python,
        model=kept.name if kept is not None else None,
        detokenize=policy.tokenizer.decode,
        **options,
    )
    if kept is not None:
        weakref.finalize(engine, kept.cleanup)
    return engine
