"""Engines: tokens in, tokens out."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.inference.abilities import require
    from whetstone.inference.compiled import lacking
    from whetstone.inference.engine_check import Finding, check_engine
    from whetstone.inference.factory import ENGINES, cache_bytes, merges, publish
    from whetstone.inference.local import LocalEngine
    from whetstone.inference.products import matmul_is_batch_invariant
    from whetstone.inference.protocol import (
        Engine,
        EngineAbilities,
        EngineStatistics,
        GenerateRequest,
        Generation,
        InFlight,
        ReadsText,
        Sampling,
        Scores,
        Weights,
    )
    from whetstone.inference.restarting import RestartingEngine
    from whetstone.inference.served import restarting_engine
    from whetstone.inference.sglang import SGLangEngine
    from whetstone.inference.vllm import VLLMEngine
    from whetstone.inference.weight_folder import WeightFolder

__getattr__, __dir__ = window(__name__)

__all__ = [
    "ENGINES",
    "Engine",
    "EngineAbilities",
    "EngineStatistics",
    "Finding",
    "GenerateRequest",
    "Generation",
    "InFlight",
    "LocalEngine",
    "ReadsText",
    "RestartingEngine",
    "SGLangEngine",
    "Sampling",
    "Scores",
    "VLLMEngine",
    "WeightFolder",
    "Weights",
    "cache_bytes",
    "check_engine",
    "lacking",
    "matmul_is_batch_invariant",
    "merges",
    "publish",
    "require",
    "restarting_engine",
]
