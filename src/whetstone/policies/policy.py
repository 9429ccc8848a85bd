"""Policy: a causal language model with its tokenizer, in Hugging Face format."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from whetstone.errors import PolicyError, did_you_mean
from whetstone.policies.adapters import has_adapters, load_adapters, without_adapters
from whetstone.policies.check_tokenizer import check_ids
from whetstone.policies.critic import Critic
from whetstone.policies.devices import CPU
from whetstone.policies.hub import download_snapshot, is_hub_name
from whetstone.policies.precision import Precision, in_dtype
from whetstone.policies.quantized_linear import (
    BLOCK_SIZE,
    KIND,
    count_quantized,
    is_quantized,
    quantize_linears,
    set_compute_dtype,
)
from whetstone.policies.resolve_model import resolve_model_folder
from whetstone.policies.shared_weights import on_cpu

logging.disable_progress_bar()  # a bar for writing a megabyte would interrupt the run's own

ADAPTERS = "adapter_config.json"
QUANTIZATION = "quantization.json"
"""File next to adapters whose base model is quantized when it is loaded."""
_SETS = ("target_modules", "exclude_modules", "modules_to_save")
_BOUNDS = ("max_position_embeddings", "max_seq_len", "seq_length", "model_max_length")
"""Names of the context length in configurations."""
_UNBOUNDED, _ENDLESS = 8192, 2**24
"""Context length of a model without a limit; smallest value with which tokenizers express "no limit"."""
BESIDE = "base"
"""Name of the folder for the adapters' base model, if the base was not loaded from a folder."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Causal language model with its tokenizer and, optionally, a critic.

    Created by `load_policy` or `build_tiny`.
    """

    model: torch.nn.Module
    """Transformers causal language model."""
    tokenizer: Any
    """Transformers tokenizer of the model."""
    critic: Critic | None = None
    """Value heads, [R, hidden] → [R, heads], trained with the model; None: credit assignment needs none."""
    dtype: torch.dtype = torch.float32
    """Precision in which sampling and learning compute; see `cast_policy`."""

    @property
    def context_length(self) -> int:
        """Context length in tokens: that of the model, else of its tokenizer, else 8,192."""
        text: Any = self.model.config.get_text_config()  # type: ignore[union-attr,operator]
        bounds = (getattr(text, name, None) for name in _BOUNDS)
        tokenizer_length = getattr(self.tokenizer, "model_max_length", None)
        of_tokenizer = tokenizer_length if tokenizer_length is not None and tokenizer_length < _ENDLESS else _UNBOUNDED
        return int(next((bound for bound in bounds if bound is not None), of_tokenizer))

    @property
    def device(self) -> torch.device:
        """Device of the model; inputs must be on it."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of parameters of the model; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters()) + count_quantized(self.model)

    def trainable_parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters of model and critic that require a gradient."""
        critic = list(self.critic.parameters()) if self.critic is not None else []
        return [p for p in (*self.model.parameters(), *critic) if p.requires_grad]

    @property
    def non_body_parameters(self) -> set[int]:
        """`id()` of the parameters of the embedding, the output layer and the critic."""
        anything: Any = self.model
        ends = (anything.get_input_embeddings(), anything.get_output_embeddings(), self.critic)
        return {id(p) for end in ends if end is not None for p in end.parameters()}


def freeze_parameters(policy: Policy, patterns: Sequence[str]) -> None:
    """Exclude parameters of a policy from training.

    Args:
        policy: Policy, changed in place.
        patterns: Parameter names in which `*` matches any text: `model.embed_tokens.*`.

    Raises:
        PolicyError: If a pattern matches no name, or no trainable parameter remains.
    """
    names = dict(policy.model.named_parameters())
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise PolicyError(f'no parameter is named "{pattern}"{did_you_mean(pattern, names)}')
        for name in fitting:
            names[name].requires_grad_(False)
    if not policy.trainable_parameters():
        raise PolicyError(f"{', '.join(patterns)}: leaves nothing to train; freeze fewer parameters")


def move_policy(policy: Policy, device: torch.device) -> Policy:
    """Move model and critic of a policy to a device, in place; return the policy."""
    if policy.device == device:
        return policy
    model: Any = policy.model
    model.to(device)
    model.tie_weights()  # moving can split a tensor that modules share
    return replace(policy, critic=policy.critic.to(device) if policy.critic is not None else None)


def load_policy(
    path: Path | str,
    *,
    revision: str | None = None,
    as_stored: bool = False,
    trust_remote_code: bool = False,
    device: torch.device = CPU,
    base_path: Path | None = None,
) -> Policy:
    """Load a policy from a Hugging Face folder, or adapters together with their base model.

    Args:
        path: Folder, name of a stored model, or name on the hub; see `resolve_model_folder`.
        revision: Branch, tag or commit on the hub; None: the main branch.
        as_stored: Whether to keep the weights in their stored precision, for `cast_policy`; otherwise they are
            converted to float32.
        trust_remote_code: Whether Python code of the model folder may run.
        device: Device of the model; see `find_device`.
        base_path: Folder of the base model of adapters, if it was moved.

    Raises:
        PolicyError: If the folder is missing or incomplete, model and tokenizer do not belong together, or they require
            code that is not trusted.
    """
    folder = resolve_model_folder(path, revision=revision, trust_remote_code=trust_remote_code)
    base = _base(folder, base_path, trust_remote_code=trust_remote_code)
    if not (base / "config.json").is_file():
        run = sorted((folder / "checkpoints").glob("step-*")) if (folder / "recipe.yaml").is_file() else []
        of_run = f"; it contains a run, whose last checkpoint is {run[-1]}" if run else ""
        raise PolicyError(f"{base}: not a model folder: config.json is missing{of_run}")
    try:
        # without these, Transformers asks on the terminal
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        config = AutoConfig.from_pretrained(base, **options)
        _check_kind(folder, config)
        if not trust_remote_code:
            _check_attention(folder, config)
        model, info = AutoModelForCausalLM.from_pretrained(
            base,
            config=config,
            **options,
            dtype="auto" if as_stored else torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, in a line instead of in a table
        )
    except (
        OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, ImportError, RecursionError,
        SafetensorError,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())
        if "trust_remote_code" in reason:
            raise PolicyError(
                f"{folder}: its model or tokenizer is code that comes with it (auto_map), which is run only with "
                "`trust_remote_code: true`"
            ) from None
        if isinstance(error, KeyError | AttributeError | TypeError):  # whose text is not sufficient
            reason = f"{type(error).__name__}: {reason}"
        raise PolicyError(f"{folder}: could not be loaded: {reason[:300]}") from error
    if info["mismatched_keys"]:
        name, stored, wanted = sorted(info["mismatched_keys"])[0]
        raise PolicyError(
            f"{base}: config.json does not fit the weights: {name} is {list(stored)} in the file and {list(wanted)} by "
            "the configuration"
        )
    if info["missing_keys"]:  # they would be random numbers
        raise PolicyError(
            f"{base}: weights are missing: {', '.join(sorted(info['missing_keys'])[:3])}; "
            "copy or download the model again"
        )
    if base != folder:
        if (folder / QUANTIZATION).is_file():
            quantize_linears(model)
        load_adapters(model, folder)
    check_ids(folder, model, tokenizer)
    return move_policy(Policy(model, tokenizer), device)


def save_policy(policy: Policy, folder: Path, *, at: Path | None = None) -> None:
    """Write model and tokenizer into an existing folder in Hugging Face format; adapters in PEFT format.

    If the model is on a device, a copy on the CPU is written. Adapters refer to their base model by its absolute path,
    so that they load from any working directory. A base model that was not loaded from a folder is written next to
    them, as `base`.

    Args:
        policy: Policy to write.
        folder: Existing folder.
        at: Later path of the folder, if it is to be renamed.
    """
    model: Any = on_cpu(policy.model)
    save_tokenizer(policy.tokenizer, folder)
    if not has_adapters(model):
        model.save_pretrained(folder)
        _make_readable(folder)
        return
    (config,) = model.peft_config.values()
    named = config.base_model_name_or_path
    writes_base = not named or Path(named).name == BESIDE
    config.base_model_name_or_path = None  # PEFT would look the name up on the hub
    model.save_pretrained(folder)
    config.base_model_name_or_path = named
    if writes_base:
        without: Any = without_adapters(model, merge=False)
        without.save_pretrained(folder / BESIDE)
    base = (at or folder) / BESIDE if writes_base else Path(named)
    written = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
    # PEFT stores names in sets, whose order differs between processes
    names = {key: sorted(written[key]) for key in _SETS if isinstance(written.get(key), list)}
    text = json.dumps({**written, **names, "base_model_name_or_path": str(base.resolve())}, indent=1)
    (folder / ADAPTERS).write_text(text, encoding="utf-8")
    if is_quantized(model):
        text = json.dumps({"kind": KIND, "block_size": BLOCK_SIZE})
        (folder / QUANTIZATION).write_text(text, encoding="utf-8")
    _make_readable(folder)


def _make_readable(folder: Path) -> None:
    """Set mode 0644 on weights: safetensors creates files that only their owner can read."""
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into an existing folder, with reproducible bytes.

    Transformers adds how the tokenizer was loaded (`is_local`, `local_files_only`) to its configuration. Both keys are
    removed, so that a resumed run, whose tokenizer comes from a checkpoint, writes the same bytes as an uninterrupted
    run.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in written.items() if key not in ("is_local", "local_files_only")}
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_kind(folder: Path, config: Any) -> None:
    """Check that a configuration is of a causal language model.

    Raises:
        PolicyError: If it has an encoder, or Transformers does not support its type.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise PolicyError(
            f"{folder}: models of type {kind} are an encoder and a decoder; only decoders can be sampled and trained"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "auto_map", None):
        raise PolicyError(
            f"{folder}: models of type {kind} are not causal language models; use a decoder such as Llama or Qwen"
        )


def _check_attention(folder: Path, config: Any) -> None:
    """Check that the configuration names no attention code that would be downloaded and run.

    Raises:
        PolicyError: If it does.
    """
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        named = getattr(part, "_attn_implementation", None)
        if named not in (None, "eager", "sdpa", "flex_attention"):
            raise PolicyError(
                f"{folder}: config.json names attention {str(named)[:80]!r}, which may be third-party code: it is "
                "used only with `trust_remote_code: true`"
            )


def contains_adapters(folder: Path) -> bool:
    """Return whether a folder contains adapters in PEFT format."""
    return (folder / ADAPTERS).is_file()


def _base(folder: Path, other: Path | None = None, *, trust_remote_code: bool) -> Path:
    """Return the folder of the base model of adapters, or the folder itself without adapters.

    Raises:
        PolicyError: If the base model does not exist.
    """
    if not contains_adapters(folder):
        return folder
    written = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
    named = written.get("base_model_name_or_path") or BESIDE
    # if the folder was moved, its base model is still next to it
    for base in (folder / named, Path(named), folder / BESIDE, *([other] if other is not None else [])):
        if base.is_dir():
            return base
    if is_hub_name(str(named)):
        return download_snapshot(str(named), written.get("revision"), trust_remote_code=trust_remote_code)
    raise PolicyError(
        f"{folder}: the base model of its adapters, {named}, does not exist; "
        f"restore it, or put it next to the adapters as `{BESIDE}`"
    )


def cast_policy(policy: Policy, wanted: Precision) -> Policy:
    """Convert the weights of a policy to a precision, in place; return the policy with that precision.

    Sampling and learning both compute in it. Trained weights are stored in float32: a learning rate of 1e-6 moves a
    weight by less than bfloat16 can represent. Frozen weights, such as the base model of adapters, are stored in the
    precision in which the policy is computed.

    Args:
        policy: Policy to convert.
        wanted: Precision; `auto` selects one that suits the model and its device.

    Raises:
        PolicyError: If the weights are quantized. Without their scales the numbers have no meaning.
    """
    packed = next(((name, p.dtype) for name, p in policy.model.named_parameters() if p.element_size() == 1), None)
    if packed is not None:
        raise PolicyError(
            f"{policy.tokenizer.name_or_path or 'the model'}: its weights are quantized ({packed[0]} is "
            f"{str(packed[1]).removeprefix('torch.')}); a policy must not be: dequantize it, or use the original "
            "model and policy.lora: {quantization: nf4}"
        )
    of_model = sum(p.numel() for name, p in policy.model.named_parameters() if "lora_" not in name)
    of_model += count_quantized(policy.model)
    adapted = has_adapters(policy.model)
    dtype = in_dtype(of_model, wanted, policy.device)
    for parameter in policy.model.parameters():
        stored = dtype if adapted and not parameter.requires_grad else torch.float32
        parameter.data = parameter.data.to(stored)  # one at a time: never twice the model
    set_compute_dtype(policy.model, dtype)
    return replace(policy, dtype=dtype)
