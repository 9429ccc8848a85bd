"""Dynamic sampling: selection of the groups of an update."""

from whetstone.rollout.dynamic_sampling.nonzero_variance import NonzeroVariance as NonzeroVariance

DYNAMIC_SAMPLING = {"nonzero_variance": NonzeroVariance}
