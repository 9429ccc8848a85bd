"""How does a worker know the policy's tokenizer and shape without holding its weights? By a model of empty tensors.

Easy to get wrong: parameters without memory cannot be placed anywhere. Where it arrives they are given memory that
nobody writes to, which the system does not count before somebody does.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from whetstone.policies import Policy


def shape_of(policy: Policy) -> Policy:
    """The policy with a model whose parameters have no memory, and without a critic. They are of float32, which nobody
    casts then: a cast would write to them."""
    model = policy.model
    empty = {
        id(parameter): torch.nn.Parameter(
            torch.empty_like(parameter, device="meta", dtype=torch.float32), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    buffers = {id(buffer): buffer.cpu() for buffer in model.buffers()}
    return replace(policy, model=copy.deepcopy(model, {**empty, **buffers}), critic=None, dtype=torch.float32)


def with_room(policy: Policy) -> Policy:
    """The policy of `shape_of` on the CPU, its numbers anything at all."""
    model: Any = policy.model
    model._apply(lambda tensor: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor)
    model.tie_weights()  # of one tensor that modules share two were made
    return policy
