"""Tensor parallelism: the partition of a model's layers among ranks, by the model's own plan in Transformers.

Products before the heads, and before the MLP's units, are divided by their outputs (`colwise`), those after them by
their inputs (`rowwise`). Each rank then has some heads and some units, and the results are summed once after attention
and once after the MLP. Embeddings, output layer and the norms of a layer's states are replicated.

Note:
    A norm of a single head is between the two. It is also replicated, but a rank's gradient covers only the heads of
    the rank.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3, for the partition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from whetstone.errors import PolicyError
from whetstone.policies.reference_forward import get_setting, model_type

Cut = Literal["outputs", "inputs"]
"""Dimension of a product that is divided: its outputs or its inputs."""
_CUTS: Mapping[str, Cut] = {"colwise": "outputs", "rowwise": "inputs"}
_PARTIAL = "replicated_with_grad_allreduce"
"""Style in a plan of a replicated module that sees only the heads of its rank."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Modules of a model that are divided among ranks, from `tensor_plan`."""

    cuts: Mapping[str, Cut]
    """Divided dimension, by name of the linear module."""
    partial: tuple[str, ...]
    """Names of replicated modules for which each rank has only a part of the gradient."""


def tensor_plan(model: torch.nn.Module, ranks: int) -> TensorPlan:
    """Return the plan by which `ranks` ranks compute each layer of a model together.

    Args:
        model: Transformers model with a tensor-parallel plan.
        ranks: Number of ranks.

    Raises:
        PolicyError: If the model has no plan, the plan has an unknown style, or a dimension is not divisible by the
            number of ranks; the message names possible numbers.
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
        raise PolicyError(f"models of type {model_type(model)}: their plan names no existing module")
    _check_measures(model, cuts, ranks)
    return TensorPlan(cuts, tuple(name for name, (_, style) in named.items() if style == _PARTIAL))


def _styles_of(model: torch.nn.Module) -> dict[str, str]:
    """Return the plan's styles of modules within layers, by names with `*` for the layer's number."""
    anything: Any = model
    ends = {id(end) for end in (anything.get_input_embeddings(), anything.get_output_embeddings())}
    outside = {name for name, module in model.named_modules() if id(module) in ends}
    plan: Mapping[str, str] = anything.tp_plan or {}
    styles = {name: style for name, style in plan.items() if name not in outside}
    if not styles:
        raise PolicyError(f"models of type {model_type(model)} have no tensor-parallel plan in Transformers")
    for name, style in styles.items():
        if style not in _CUTS and style != _PARTIAL:
            known = ", ".join([*_CUTS, _PARTIAL])
            raise PolicyError(
                f'models of type {model_type(model)}: their plan has {name}: "{style}"; known are {known}'
            )
    return styles


def _check_all_named(model: torch.nn.Module, named: Collection[str]) -> None:
    """Check that a plan covers all parameters next to the products that it divides.

    A module that the plan omits would silently receive parts of states, or parts of a gradient.

    Raises:
        PolicyError: If one is not named.
    """
    parents = {name.rpartition(".")[0] for name in named}
    for name, _ in model.named_parameters():
        over = {name[:end] for end, letter in enumerate(name) if letter == "."}
        if over & parents and not over.intersection(named):
            raise PolicyError(
                f"models of type {model_type(model)}: {_any_layer(name)} is next to modules that their plan divides, "
                "and is not in the plan"
            )


def _any_layer(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _products(name: str, module: torch.nn.Module, cut: Cut) -> Iterator[tuple[str, Cut]]:
    """Yield the linear modules of a module in the plan: itself, or a layer with adapters and one product of each.

    The dimension between an adapter's two products is narrow and replicated; the other one is divided as the layer is.
    """
    children = dict(module.named_children())
    if "base_layer" not in children:
        if not isinstance(module, torch.nn.Linear):
            raise PolicyError(f"{name} is a {type(module).__name__}, but only linear layers can be divided")
        yield name, cut
        return
    if any(True for _ in module.get_submodule("lora_magnitude_vector").children()):
        raise PolicyError(f"{name}: DoRA reads whole columns of a layer's weights, of which ranks have only parts")
    yield from _products(f"{name}.base_layer", children["base_layer"], cut)
    factor = "lora_B" if cut == "outputs" else "lora_A"
    for adapter, _ in children[factor].named_children():
        yield f"{name}.{factor}.{adapter}", cut


def _check_measures(model: torch.nn.Module, cuts: Mapping[str, Cut], ranks: int) -> None:
    """Check that the number of ranks divides all dimensions.

    Raises:
        PolicyError: See `tensor_plan`.
    """
    anything: Any = model
    config = anything.config.get_text_config()
    heads = get_setting(config, "num_attention_heads")
    if not heads:
        raise PolicyError(f"models of type {model_type(model)} do not specify the number of heads of all layers")
    measures = {"attention heads": heads, "key-value heads": get_setting(config, "num_key_value_heads") or heads}
    for name, cut in cuts.items():
        product = model.get_submodule(name)
        assert isinstance(product, torch.nn.Linear)
        width = product.out_features if cut == "outputs" else product.in_features
        measures[f"{cut} of {_any_layer(name)}"] = width
    uneven = [f"{size} {what}" for what, size in measures.items() if size % ranks]
    if uneven:
        common = math.gcd(*measures.values())
        could = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise PolicyError(f"{ranks} ranks cannot divide {', '.join(uneven)} evenly; use {' or '.join(could)}")
