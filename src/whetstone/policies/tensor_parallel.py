"""How can ranks compute one layer together? By the model's own plan in Transformers, where it has one.

Products in front of the heads, and of the MLP's units, are cut by their outputs (`colwise`), those behind them by their
inputs (`rowwise`). Each rank then has some heads and some units, and what ranks found is summed once behind attention
and once behind the MLP. Embeddings, output layer and the norms of a layer's states are whole on each.

Easy to get wrong: a norm of a single head lies between the two. It is whole, too, but a rank's gradient of it is only
of the heads that the rank has.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3, for the cuts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from whetstone.errors import PolicyError
from whetstone.policies.plain import kind_of, setting_of

Cut = Literal["outputs", "inputs"]
"""What of a product is divided: the numbers it gives, or those it takes."""
_CUTS: Mapping[str, Cut] = {"colwise": "outputs", "rowwise": "inputs"}
_PARTIAL = "replicated_with_grad_allreduce"
"""What a plan calls a module that is whole, and sees the heads of its rank alone."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Which modules of a model are divided."""

    cuts: Mapping[str, Cut]
    """By the name of a linear module."""
    partial: tuple[str, ...]
    """Names of whole modules of whose gradient each rank has a part."""


def tensor_plan(model: torch.nn.Module, ranks: int) -> TensorPlan:
    """How so many ranks compute each layer of a model together.

    Raises:
        PolicyError: The model says of no such way, of one that is not known here, or its measures cannot be divided by
            the number of ranks; the message says by which they can.
    """
    styles = _styles_of(model)
    named = {
        name: (module, styles[_any_layer(name)]) for name, module in model.named_modules() if _any_layer(name) in styles
    }
    _check_all_named(model, named)
    cuts: dict[str, Cut] = {}
    for name, (module, style) in named.items():
        if style in _CUTS:
            cuts.update(_products(name, module, _CUTS[style]))
    if not cuts:
        raise PolicyError(f"models of type {kind_of(model)}: their plan names no module that is there")
    _check_measures(model, cuts, ranks)
    return TensorPlan(cuts, tuple(name for name, (_, style) in named.items() if style == _PARTIAL))


def _styles_of(model: torch.nn.Module) -> dict[str, str]:
    """By the names of modules with `*` for a layer's number, what the model's plan says of those inside of layers."""
    anything: Any = model
    ends = {id(end) for end in (anything.get_input_embeddings(), anything.get_output_embeddings())}
    outside = {name for name, module in model.named_modules() if id(module) in ends}
    plan: Mapping[str, str] = anything.tp_plan or {}
    styles = {name: style for name, style in plan.items() if name not in outside}
    if not styles:
        raise PolicyError(f"models of type {kind_of(model)} have no plan in Transformers by which ranks share a layer")
    for name, style in styles.items():
        if style not in _CUTS and style != _PARTIAL:
            known = ", ".join([*_CUTS, _PARTIAL])
            raise PolicyError(f'models of type {kind_of(model)}: their plan has {name}: "{style}"; known are {known}')
    return styles


def _check_all_named(model: torch.nn.Module, named: Collection[str]) -> None:
    """See that a plan names all that has weights beside the products it cuts: what it forgot would see parts of states,
    or have parts of a gradient, and nobody would know.

    Raises:
        PolicyError: One is not named.
    """
    beside = {name.rpartition(".")[0] for name in named}
    for name, _ in model.named_parameters():
        over = {name[:end] for end, letter in enumerate(name) if letter == "."}
        if over & beside and not over.intersection(named):
            raise PolicyError(
                f"models of type {kind_of(model)}: {_any_layer(name)} stands beside what their plan divides between "
                "ranks, and is not named there"
            )


def _any_layer(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _products(name: str, module: torch.nn.Module, cut: Cut) -> Iterator[tuple[str, Cut]]:
    """The linear modules of one the plan names: itself, or the layer that adapters stand beside and one of each.

    What is between an adapter's two products is narrow and whole on each rank; the other end is cut as the layer is.
    """
    children = dict(module.named_children())
    if "base_layer" not in children:
        if not isinstance(module, torch.nn.Linear):
            raise PolicyError(f"{name} is a {type(module).__name__}, and ranks share linear layers alone")
        yield name, cut
        return
    if any(True for _ in module.get_submodule("lora_magnitude_vector").children()):
        raise PolicyError(f"{name}: DoRA reads whole columns of a layer's weights, which ranks would have parts of")
    yield from _products(f"{name}.base_layer", children["base_layer"], cut)
    beside = "lora_B" if cut == "outputs" else "lora_A"
    for adapter, _ in children[beside].named_children():
        yield f"{name}.{beside}.{adapter}", cut


def _check_measures(model: torch.nn.Module, cuts: Mapping[str, Cut], ranks: int) -> None:
    """
    Raises:
        PolicyError: See `tensor_plan`.
    """
    anything: Any = model
    config = anything.config.get_text_config()
    heads = setting_of(config, "num_attention_heads")
    if not heads:
        raise PolicyError(f"models of type {kind_of(model)} do not say how many heads all their layers have")
    measures = {"attention heads": heads, "key-value heads": setting_of(config, "num_key_value_heads") or heads}
    for name, cut in cuts.items():
        product = model.get_submodule(name)
        assert isinstance(product, torch.nn.Linear)
        width = product.out_features if cut == "outputs" else product.in_features
        measures[f"{cut} of {_any_layer(name)}"] = width
    uneven = [f"{size} {what}" for what, size in measures.items() if size % ranks]
    if uneven:
        common = math.gcd(*measures.values())
        could = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise PolicyError(f"{ranks} ranks cannot share {', '.join(uneven)} evenly; {' or '.join(could)} could")
