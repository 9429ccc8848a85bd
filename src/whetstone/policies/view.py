"""How can sampling and training see one set of weights, each with an attention and a mode of its own?

Easy to get wrong: whoever goes on reading while weights are trained needs a copy, of those that are trained and of no
others: a frozen model with adapters is held in memory once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


def with_attention(model: torch.nn.Module, *, attention: str) -> torch.nn.Module:
    """The same parameters and buffers, under another attention of Transformers' interface, in evaluation mode.

    Gradients that flow through the view are those of the model's parameters.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    view: Any = copy.deepcopy(model, memo=shared)
    view.set_attn_implementation(attention)
    return view.eval()  # type: ignore[no-any-return]


def on_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """The model where it lies on the CPU, else a copy there, of all of it."""
    copies = {
        id(tensor): torch.nn.Parameter(tensor.detach().cpu(), requires_grad=tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter)
        else tensor.cpu()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.device.type != "cpu"
    }
    return copy.deepcopy(model, memo=copies) if copies else model


def clone_trainable(model: torch.nn.Module, *, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """The same model with trained parameters of its own, at their present values; all others are shared.

    Args:
        dtype: What the copy is held in; parameters in another are its own, too. None: as they are.
    """
    known = {id(tensor): tensor for tensor in model.buffers()}
    for parameter in model.parameters():
        if dtype is not None and parameter.dtype != dtype:
            known[id(parameter)] = torch.nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
        elif not parameter.requires_grad:
            known[id(parameter)] = parameter
    return copy.deepcopy(model, memo=known)
