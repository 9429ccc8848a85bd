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
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from whetstone.errors import PolicyError, did_you_mean
from whetstone.extras import install_command


def add_adapters(
    model: torch.nn.Module, *, rank: int, alpha: float, target_modules: Sequence[str] | str, dora: bool, seed: int
) -> None:
    """Adapters beside a model's linear layers; they are trained, the rest is frozen. At first they change nothing.

    Args:
        target_modules: Names of modules, or `all-linear`.

    Raises:
        PolicyError: PEFT is not installed, no layer has such a name, or a layer shares its weights with the embedding.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise PolicyError(f"adapters need PEFT: {install_command('lora')}") from error
    if not isinstance(target_modules, str):
        linear = {name.split(".")[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        for name in target_modules:
            if name not in linear:
                raise PolicyError(f'target_modules: no layer is named "{name}"{did_you_mean(name, linear)}')
        _check_untied(model, target_modules)
        target_modules = list(target_modules)
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=target_modules, use_dora=dora, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _add(model, config)
    _train_adapters_alone(model)


def _check_untied(model: Any, target_modules: Sequence[str]) -> None:
    """Reject adapters of an output layer that is also the embedding: merging them would change the embedding, too."""
    output = model.get_output_embeddings()
    if output is None or output.weight is not model.get_input_embeddings().weight:
        return
    (name,) = (name.rpartition(".")[2] for name, module in model.named_modules() if module is output)
    if name in target_modules:
        raise PolicyError(
            f"target_modules: {name} shares its weights with the embedding (tie_word_embeddings), so a merged model "
            "would differ from the trained one; name other layers"
        )


def load_adapters(model: torch.nn.Module, folder: Path) -> None:
    """Put the adapters in a folder, in PEFT's layout, beside the layers of the model they were trained on.

    Raises:
        PolicyError: PEFT is not installed, or they are another model's.
    """
    try:
        from peft import LoraConfig, set_peft_model_state_dict
    except ImportError as error:
        raise PolicyError(f"{folder}: its adapters need PEFT: {install_command('lora')}") from error
    with torch.random.fork_rng(devices=[]):
        _add(model, LoraConfig.from_pretrained(str(folder)))
    kept = load_file(folder / "adapter_model.safetensors")
    state = {name.removeprefix("base_model.model."): tensor for name, tensor in kept.items()}
    found = set_peft_model_state_dict(model, state)
    amiss = [*found.unexpected_keys, *(name for name in found.missing_keys if "lora_" in name)]
    if amiss:
        raise PolicyError(f"{folder}: its adapters do not fit the model they stand on: {amiss[0]}")
    _train_adapters_alone(model)


def _add(model: torch.nn.Module, config: Any) -> None:
    with warnings.catch_warnings():  # the libraries' remarks on each other's new names
        warnings.simplefilter("ignore", FutureWarning)
        model.add_adapter(config)  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # whatever the layers beside them are held in
            parameter.data = parameter.data.float()


def _train_adapters_alone(model: torch.nn.Module) -> None:
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
    """Return a copy of the model without adapters, in evaluation mode; a model that has none is returned as it is.

    Args:
        merge: Whether to merge the adapters into the base weights; otherwise they are dropped.
    """
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    taken: Any = copy.deepcopy(model)
    for name, module in list(taken.named_modules()):
        if isinstance(module, BaseTunerLayer):
            if merge:
                module.merge()
            above, _, last = name.rpartition(".")
            setattr(taken.get_submodule(above), last, module.get_base_layer())
    # a model of the same class has no trace of PEFT; on the meta device its weights are not initialized first
    with torch.device("meta"):
        plain: Any = type(taken)(copy.deepcopy(taken.config))
    plain.load_state_dict(taken.state_dict(), assign=True)
    for name, buffer in taken.named_buffers():  # a buffer that is computed is not in the state
        owner, _, last = name.rpartition(".")
        setattr(plain.get_submodule(owner), last, buffer)
    plain.tie_weights()
    return plain.eval()  # type: ignore[no-any-return]


def adapter_alpha(model: torch.nn.Module) -> float:
    """What a model's adapters are scaled by, over their rank."""
    (config,) = model.peft_config.values()  # type: ignore[operator]
    return float(config.lora_alpha)


def adapter_shape(model: torch.nn.Module) -> dict[str, Any]:
    """`rank`, `alpha` and `dora` of a model's adapters."""
    (config,) = model.peft_config.values()  # type: ignore[operator]
    return {"rank": int(config.r), "alpha": float(config.lora_alpha), "dora": bool(config.use_dora)}


def can_merge(model: torch.nn.Module) -> bool:
    """Whether a model's adapters are sums that weights can take in (`merged_weights`): DoRA's are none."""
    if not has_adapters(model):
        return False
    (config,) = model.peft_config.values()  # type: ignore[operator]
    return not config.use_dora


@torch.no_grad()
def merged_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights that adapters stand beside, with what these learned; by the names of a model without adapters.

    Args:
        dtype: What they are rounded to, once; the sum is in float32.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    merged: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            (adapter,) = layer.active_adapters
            base = layer.get_base_layer().weight
            merged[f"{name}.weight"] = (base.float() + layer.get_delta_weight(adapter).float()).to(dtype)
    return merged
