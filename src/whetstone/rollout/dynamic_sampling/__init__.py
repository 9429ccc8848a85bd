"""Which groups count towards those an update takes."""

from whetstone.rollout.dynamic_sampling.informative import Informative

DYNAMIC_SAMPLING = {"nonzero_variance": Informative}

__all__ = ["DYNAMIC_SAMPLING", "Informative"]
