"""Weight decay applies to matrices only."""

import torch

from whetstone.learning.optimizer import Optimizers
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings


def test_gains_do_not_decay_and_matrices_do():
    policy = build_tiny(["x"], hidden=16, heads=2, layers=1, intermediate=16)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for parameter in policy.trainable_parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizers(policy, OptimizerSettings(learning_rate=0.1, weight_decay=0.5, warmup_fraction=0)).update()
    for name, parameter in policy.model.named_parameters():
        # 1 − 0.1 × 0.5
        assert torch.allclose(parameter, before[name] * (0.95 if parameter.ndim == 2 else 1.0)), name
