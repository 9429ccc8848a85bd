"""Policy without weights (meta tensors) for environment workers, which need only its tokenizer and shape.

Note:
    Meta tensors cannot be moved to a device. At their destination they get uninitialized memory, which the system does
    not count until it is written.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from whetstone.policies import Policy


def to_meta_policy(policy: Policy) -> Policy:
    """Return a copy of the policy with meta tensors as its parameters, and without a critic.

    Parameters are float32, because another dtype would cause a cast, which writes to memory.
    """
    model = policy.model
    empty = {
        id(parameter): torch.nn.Parameter(
            torch.empty_like(parameter, device="meta", dtype=torch.float32), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    buffers = {id(buffer): buffer.cpu() for buffer in model.buffers()}
    return replace(policy, model=copy.deepcopy(model, {**empty, **buffers}), critic=None, dtype=torch.float32)


def allocate_parameters(policy: Policy) -> Policy:
    """Allocate uninitialized CPU memory for the parameters of a policy that `to_meta_policy` returned."""
    model: Any = policy.model
    model._apply(lambda tensor: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor)
    model.tie_weights()  # a tensor that two modules share was duplicated
    return policy
