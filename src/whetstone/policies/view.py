"""How can sampling and training see one set of weights, each with an attention and a mode of its own?"""

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
