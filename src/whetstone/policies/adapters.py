"""LoRA and DoRA adapters of a model, by PEFT.

With adapters disabled the model is the base model, so one copy of the weights serves as the policy and as its
reference.

Note:
    Adapters are disabled on a view (`shared_weights.py`), but their gradients are disabled on the shared weights; both
    are restored.

Source: Hu et al. 2021, arXiv:2106.09685 (LoRA); Liu et al. 2024, arXiv:2402.09353 (DoRA); one copy of the weights for
both: Chen et al. 2025, arXiv:2502.01600.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from whetstone.errors import PolicyError, did_you_mean
from whetstone.optional_dependencies import install_command
from whetstone.policies.quantized_linear import KIND, dequantize_linears, is_quantized


def add_adapters(
    model: torch.nn.Module, *, rank: int, alpha: float, target_modules: Sequence[str] | str, dora: bool, seed: int
) -> None:
    """Add trainable LoRA or DoRA adapters to linear layers and freeze the base model.

    The initial adapters change no output.

    Args:
        model: Model, changed in place.
        rank: Rank of the adapters.
        alpha: LoRA alpha: adapters are scaled by alpha / rank.
        target_modules: Names of modules, with or without the end of their path; `all-linear`; or a regular expression
            that matches the whole path of a module.
        dora: Whether to use DoRA.
        seed: Random seed of the initialization.

    Raises:
        PolicyError: If PEFT is not installed, no linear layer has such a name, or a layer shares its weights with the
            embedding.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise PolicyError(f"adapters need PEFT: {install_command('lora')}") from error
    if target_modules != "all-linear":
        paths, names = _find_layers(model, target_modules)
        _check_untied(model, paths)
        target_modules = names
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=target_modules, use_dora=dora, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _add(model, config)
    _train_adapters_alone(model)


def _find_layers(model: torch.nn.Module, target_modules: Sequence[str] | str) -> tuple[list[str], list[str]]:
    """Return the paths of the linear layers that PEFT's `target_modules` selects.

    Returns:
        Paths, and names that select only these layers.

    Raises:
        PolicyError: If a name or expression matches no linear layer.
    """
    linear = [path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    last = {path.rpartition(".")[2] for path in linear}
    if isinstance(target_modules, str) and target_modules not in last:
        try:
            expression = re.compile(target_modules)
        except re.error as error:
            raise PolicyError(
                f'target_modules: "{target_modules}" is not a valid regular expression: {error}'
            ) from None
        paths = [path for path in linear if expression.fullmatch(path)]
        if not paths:
            example = linear[0] if linear else "none"
            raise PolicyError(
                f'target_modules: "{target_modules}" matches the path of no linear layer, such as {example}'
                f"{did_you_mean(target_modules, last)}"
            )
        return paths, paths
    names = [target_modules] if isinstance(target_modules, str) else target_modules
    for name in names:
        if not any(_has_name(path, name) for path in linear):
            raise PolicyError(f'target_modules: no layer is named "{name}"{did_you_mean(name, last)}')
    return [path for path in linear if any(_has_name(path, name) for name in names)], list(names)


def _has_name(path: str, name: str) -> bool:
    """Return whether a name is the path of a module, or its end."""
    return path == name or path.endswith(f".{name}")


def _check_untied(model: Any, paths: Sequence[str]) -> None:
    """Reject adapters of an output layer that is also the embedding.

    Merging them would change the embedding, too.
    """
    output = model.get_output_embeddings()
    if output is None or output.weight is not model.get_input_embeddings().weight:
        return
    (path,) = (path for path, module in model.named_modules() if module is output)
    if path in paths:
        raise PolicyError(
            f"target_modules: {path.rpartition('.')[2]} shares its weights with the embedding (tie_word_embeddings), "
            "so a merged model would differ from the trained one; name other layers"
        )


def load_adapters(model: torch.nn.Module, folder: Path) -> None:
    """Load adapters in PEFT format into the model that they were trained on.

    Args:
        model: Base model, changed in place; only its adapters are trainable afterwards.
        folder: Folder with the adapters.

    Raises:
        PolicyError: If PEFT is not installed, or the adapters belong to another model.
    """
    try:
        from peft import LoraConfig, set_peft_model_state_dict
    except ImportError as error:
        raise PolicyError(f"{folder}: its adapters need PEFT: {install_command('lora')}") from error
    with torch.random.fork_rng(devices=[]):
        _add(model, LoraConfig.from_pretrained(str(folder)))
    tensors = load_file(folder / "adapter_model.safetensors")
    state = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
    result = set_peft_model_state_dict(model, state)
    amiss = [*result.unexpected_keys, *(name for name in result.missing_keys if "lora_" in name)]
    if amiss:
        raise PolicyError(
            f"{folder}: its adapters do not fit their base model ({amiss[0]}); "
            "load them with the model that they were trained on"
        )
    _train_adapters_alone(model)


def _add(model: torch.nn.Module, config: Any) -> None:
    with warnings.catch_warnings():  # deprecation warnings between the libraries
        warnings.simplefilter("ignore", FutureWarning)
        model.add_adapter(config)  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # whatever the data type of the base layers
            parameter.data = parameter.data.float()


def _train_adapters_alone(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def has_adapters(model: torch.nn.Module) -> bool:
    """Return whether a model has LoRA or DoRA adapters."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


@contextlib.contextmanager
def adapters_off(model: torch.nn.Module, *, when: bool = True) -> Iterator[None]:
    """Disable the adapters of a model within the `with` block, so that the base model is computed.

    Args:
        model: Model; one without adapters is not changed.
        when: Whether to disable them at all.
    """
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
    """Return a copy of a model without adapters, in evaluation mode; quantized weights are dequantized.

    A model without adapters is returned unchanged.

    Args:
        model: Model, which is not changed.
        merge: Whether to merge the adapters into the base weights; otherwise they are dropped.
    """
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    taken: Any = copy.deepcopy(model)
    dequantize_linears(taken)
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
    """Return the LoRA alpha of a model's adapters."""
    (config,) = model.peft_config.values()  # type: ignore[operator]
    return float(config.lora_alpha)


def adapter_shape(model: torch.nn.Module) -> dict[str, Any]:
    """Return the `rank`, `alpha`, `dora` and `quantization` settings of a model's adapters."""
    (config,) = model.peft_config.values()  # type: ignore[operator]
    shape = {"rank": int(config.r), "alpha": float(config.lora_alpha), "dora": bool(config.use_dora)}
    return {**shape, "quantization": KIND if is_quantized(model) else None}


def can_merge(model: torch.nn.Module) -> bool:
    """Return whether adapters can be merged by addition (`merged_weights`); DoRA cannot."""
    if not has_adapters(model):
        return False
    (config,) = model.peft_config.values()  # type: ignore[operator]
    return not config.use_dora


@torch.no_grad()
def merged_weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights of layers with adapters after merging, by the names of a model without adapters.

    Args:
        model: Model with adapters.
        dtype: Data type of the result, rounded once; the sum is in float32.
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
