"""Engines: tokens in, tokens out."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.inference.factory import ENGINES, publish
    from whetstone.inference.forward import rows_are_summed_alike
    from whetstone.inference.local import LocalEngine
    from whetstone.inference.protocol import Engine, EngineStatistics, Generation, InFlight, Sampling, Scores, Weights
    from whetstone.inference.restarting import RestartingEngine

__getattr__, __dir__ = window(__name__)

__all__ = [
    "ENGINES",
    "Engine",
    "EngineStatistics",
    "Generation",
    "InFlight",
    "LocalEngine",
    "RestartingEngine",
    "Sampling",
    "Scores",
    "Weights",
    "publish",
    "rows_are_summed_alike",
]
