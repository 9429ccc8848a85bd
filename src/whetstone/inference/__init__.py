"""Engines: tokens in, tokens out."""

from whetstone.inference.local import LocalEngine
from whetstone.inference.protocol import Engine, Generation, Sampling, Weights

__all__ = ["Engine", "Generation", "LocalEngine", "Sampling", "Weights"]
