"""Engines by name: `local`, `vllm` or `sglang`, the values of a recipe's `engine`, in addition to
`package.module:Class`.

A factory receives by keyword, if it has these parameters, the policy, the number of concurrent sequences, the version
of the weights and a callback for restarts (`heard`). All other keywords are options of the recipe.
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
from whetstone.inference.local_engine import LocalEngine
from whetstone.inference.merged_lora_engine import MergedLoraEngine
from whetstone.inference.protocol import Engine, InFlight, Weights
from whetstone.inference.restarting_engine import RestartingEngine
from whetstone.inference.server_engine import ServerEngine, build_restarting_engine
from whetstone.inference.sglang import SGLangEngine
from whetstone.inference.vllm import VLLMEngine
from whetstone.policies import (
    Policy,
    adapter_alpha,
    can_merge,
    free_memory,
    has_adapters,
    is_quantized,
    save_policy,
    without_adapters,
)
from whetstone.policies.precision import SMALL


def local(
    *, policy: Policy, max_sequences: int, version: int = 0, cache_gib: Annotated[float, Gt(0)] | None = None
) -> Engine:
    """Engine in this process, which samples from the model in training.

    If the model computes in a lower precision than its weights have, the engine samples from a copy.

    Args:
        cache_gib: Maximum size of the KV cache; it limits the number of concurrent episodes. null: half of the free
            memory of a GPU when the engine is created, and unlimited on a CPU, where memory is allocated on use.

    Raises:
        EngineError: If one episode does not fit.
    """
    room = cache_bytes(policy.device, cache_gib)
    try:
        if uses_merged_weights(policy):
            return MergedLoraEngine(policy, rows=max_sequences, version=version, cache_bytes=room)
        return LocalEngine(
            policy.model,
            context_length=policy.context_length,
            rows=max_sequences,
            cache_bytes=room,
            version=version,
            detokenize=policy.tokenizer.decode,
        )
    except ValueError as error:
        raise EngineError(
            f"the KV cache does not fit on {policy.device}: {error}; "
            "increase engine.cache_gib, or free memory of the device"
        ) from None


def cache_bytes(device: torch.device, gib: float | None) -> int | None:
    """Return the maximum size of an engine's KV cache in bytes, or None if it is unlimited.

    Args:
        device: Device of the cache.
        gib: Size that the recipe sets, in GiB; None: half of the free memory of a GPU, and unlimited on a CPU.
    """
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
    """vLLM server: an existing one at an address, or one that is started in another Python environment and supervised.

    Args:
        address: URL of an existing server: `http://127.0.0.1:8000`.
        python: Instead, interpreter of an environment with vLLM: the server is started with the policy.
        port: Port of a server that is started; 0 picks a free one.
        options: Further command-line options: `{max_model_len: 4096}`. The server computes in the policy's dtype unless
            they set another.
        environment: Environment variables of a server that is started.
        key: API key.
        transfer: How weights are transferred; `ipc`: by handles of the GPU that both processes use.
        weights_folder: Folder for weight transfer; null: in memory.
        seconds: Timeout of one request.
        start_seconds: Timeout of the start.

    Raises:
        EngineError: If options contradict each other.
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
    """SGLang server; the options are the same as those of `vllm`."""
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


def uses_merged_weights(policy: Policy) -> bool:
    """Return whether a local engine samples a policy's LoRA adapters from a copy with merged weights.

    In SmolLM2 with 135 million parameters in float32, separate adapters of rank 16 take a third more time than its
    products without them. Small models keep separate adapters, so that runs of earlier releases resume bit-exactly;
    quantized ones too, because the copy would need the memory that quantization saves.
    """
    large = sum(parameter.numel() for parameter in policy.model.parameters()) >= SMALL
    return (large or policy.dtype != torch.float32) and can_merge(policy.model) and not is_quantized(policy.model)


ENGINES: Mapping[str, Callable[..., Engine]] = {"local": local, "vllm": vllm, "sglang": sglang}
"""Factory of each engine, by its name in recipes."""


async def sync_weights(weights: Weights, engine: Engine, version: int, *, in_flight: InFlight = "drain") -> None:
    """Load weights into an engine as a new policy version.

    When the call returns, the engine samples from them. The training loop calls it after each update.

    Args:
        weights: Parameters by name.
        engine: Engine that receives the weights.
        version: Policy version of the weights.
        in_flight: How running generations are treated; see `InFlight`.
    """
    await engine.load_weights(weights, version, in_flight=in_flight)


def _dtype(policy: Policy) -> str:
    """Return the learner's dtype by name: by default, a server rounds float32 weights to half precision."""
    return str(policy.dtype).removeprefix("torch.")


def _served(
    kind: type[ServerEngine],
    policy: Policy,
    heard: Callable[[str], None],
    python: str | None,
    weights_folder: str | None,
    **options: Any,
) -> RestartingEngine:
    """Create the restarting engine of a server.

    If the engine starts the server (`python`), the policy's base model is saved to a temporary folder that the server
    loads. The folder is removed with the engine.
    """
    model_folder = None
    if python is not None:  # adapters are transferred separately
        model_folder = tempfile.TemporaryDirectory(prefix="whetstone-model-")
        save_policy(replace(policy, model=without_adapters(policy.model, merge=False)), Path(model_folder.name))
    engine = build_restarting_engine(
        kind,
        heard=heard,
        begin=dict(policy.model.named_parameters()),
        weights_folder=weights_folder,
        lora_alpha=adapter_alpha(policy.model) if has_adapters(policy.model) else None,
        python=python,
        model=model_folder.name if model_folder is not None else None,
        detokenize=policy.tokenizer.decode,
        **options,
    )
    if model_folder is not None:
        weakref.finalize(engine, model_folder.cleanup)
    return engine
