"""Engines: tokens in, tokens out."""

from whetstone.inference.local import LocalEngine
from whetstone.inference.protocol import Engine, EngineStatistics, Generation, InFlight, Sampling, Scores, Weights

__all__ = ["Engine", "EngineStatistics", "Generation", "InFlight", "LocalEngine", "Sampling", "Scores", "Weights"]
