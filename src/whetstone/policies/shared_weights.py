"""Views of a model: shared weights with separate attention implementations and modes for sampling and training.

Note:
    A reader that continues while weights are trained needs a copy of the trained weights only: the frozen base of
    adapters is in memory once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


def with_attention(model: torch.nn.Module, *, attention: str) -> torch.nn.Module:
    """Return a view with the same parameters and buffers, another attention implementation, and evaluation mode.

    Gradients that flow through the view are those of the model's parameters.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    view: Any = copy.deepcopy(model, memo=shared)
    view.set_attn_implementation(attention)
    return view.eval()  # type: ignore[no-any-return]


def on_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model if it is on the CPU, else a full copy there."""
    copies = {
        id(tensor): torch.nn.Parameter(tensor.detach().cpu(), requires_grad=tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter)
        else tensor.cpu()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.device.type != "cpu"
    }
    return copy.deepcopy(model, memo=copies) if copies else model


def clone_trainable(model: torch.nn.Module, *, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """Return a copy of a model with separate trained parameters at their current values; all others are shared.

    Args:
        model: Model.
        dtype: Data type of the copy; parameters of another one are copied, too. None: unchanged.
    """
    known = {id(tensor): tensor for tensor in model.buffers()}
    for parameter in model.parameters():
        if dtype is not None and parameter.dtype != dtype:
            known[id(parameter)] = torch.nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
        elif not parameter.requires_grad:
            known[id(parameter)] = parameter
    return copy.deepcopy(model, memo=known)
