"""How can sampling and training see one set of weights, each with an attention and a mode of its own?

Easy to get wrong: whoever goes on reading while weights are trained needs a copy, of those that are trained and of no
others: a frozen model with adapters is held in memory once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


def view_of(model: torch.nn.Module, *, attention: str) -> torch.nn.Module:
    """The same parameters and buffers, under another attention of Transformers' interface, in evaluation mode.

    Gradients that flow through the view are those of the model's parameters.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    view: Any = copy.deepcopy(model, memo=shared)
    view.set_attn_implementation(attention)
    return view.eval()  # type: ignore[no-any-return]


def copy_of_trained(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with trained parameters of its own, at their present values; all others are shared."""
    shared = {id(tensor): tensor for tensor in model.buffers()}
    shared |= {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, memo=shared)
