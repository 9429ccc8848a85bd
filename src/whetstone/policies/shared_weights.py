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
    """Return a view of a model with another attention implementation, in evaluation mode.

    Parameters and buffers are shared: gradients through the view are those of the model's parameters.

    Args:
        model: Transformers model, which is not changed.
        attention: Name of the attention implementation in Transformers.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    view: Any = copy.deepcopy(model, memo=shared)
    view.set_attn_implementation(attention)
    return view.eval()  # type: ignore[no-any-return]


def on_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model if it is on the CPU, otherwise a full copy on the CPU."""
    copies = {
        id(tensor): torch.nn.Parameter(tensor.detach().cpu(), requires_grad=tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter)
        else tensor.cpu()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.device.type != "cpu"
    }
    return copy.deepcopy(model, memo=copies) if copies else model


def clone_trainable(model: torch.nn.Module, *, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """Return a copy of a model with separate trainable parameters; frozen ones and buffers are shared.

    Args:
        model: Model to copy.
        dtype: Data type of the copy; frozen parameters of another type are copied too. None: unchanged.
    """
    known = {id(tensor): tensor for tensor in model.buffers()}
    for parameter in model.parameters():
        if dtype is not None and parameter.dtype != dtype:
            known[id(parameter)] = torch.nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
        elif not parameter.requires_grad:
            known[id(parameter)] = parameter
    return copy.deepcopy(model, memo=known)
