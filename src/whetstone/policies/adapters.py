"""How is a large model trained with few weights? With adapters beside its layers (LoRA, DoRA), by PEFT.

With the adapters off the model is what it was, so one copy of the weights serves as policy and as its reference.

Easy to get wrong: switching adapters off is a property of a view (`view.py`), switching their gradients off one of
the weights; both are put back.

Source: Hu et al. 2021, arXiv:2106.09685 (LoRA); Liu et al. 2024, arXiv:2402.09353 (DoRA); one copy of the weights
for both: Chen et al. 2025, arXiv:2502.01600.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from whetstone.errors import PolicyError, did_you_mean


def add_adapters(
    model: torch.nn.Module, *, rank: int, alpha: float, targets: Sequence[str] | str, dora: bool, seed: int
) -> None:
    """Adapters beside a model's linear layers; they are trained, the rest is frozen. At first they change nothing.

    Args:
        targets: Names of layers, or `all-linear`.

    Raises:
        PolicyError: PEFT is not installed, or no layer has such a name.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise PolicyError("adapters need PEFT: pip install 'whetstone[lora]'") from error
    if not isinstance(targets, str):
        linear = {name.split(".")[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        for name in targets:
            if name not in linear:
                raise PolicyError(f'targets: no layer is named "{name}"{did_you_mean(name, linear)}')
        targets = list(targets)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, use_dora=dora, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config)  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def has_adapters(model: torch.nn.Module) -> bool:
    """Whether a model carries adapters."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


@contextlib.contextmanager
def adapters_off(model: torch.nn.Module, *, when: bool = True) -> Iterator[None]:
    """The model without its adapters, as long as the block lasts."""
    if not (when and has_adapters(model)):
        yield
        return
    anything: Any = model
    trained = [p for p in model.parameters() if p.requires_grad]
    anything.disable_adapters()
    try:
        yield
    finally:
        anything.enable_adapters()
        for parameter in trained:
            parameter.requires_grad_(True)


def without_adapters(model: torch.nn.Module, *, merge: bool) -> torch.nn.Module:
    """A copy of the model that knows nothing of adapters.

    Args:
        merge: Whether what they learned goes into the weights; otherwise it is left behind.
    """
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    plain: Any = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, BaseTunerLayer):
            if merge:
                module.merge()
            above, _, last = name.rpartition(".")
            setattr(plain.get_submodule(above), last, module.get_base_layer())
    plain._hf_peft_config_loaded = False
    del plain.peft_config
    return plain.requires_grad_(True)  # type: ignore[no-any-return]
