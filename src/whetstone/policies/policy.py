"""What is a policy? A causal language model with its tokenizer, in a folder any Hugging Face tool opens."""

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
from whetstone.policies.belonging import check_ids
from whetstone.policies.critic import Critic
from whetstone.policies.devices import CPU
from whetstone.policies.finding import found_model
from whetstone.policies.hub import fetched, is_hub_name
from whetstone.policies.precision import Precision, in_dtype
from whetstone.policies.view import on_cpu

logging.disable_progress_bar()  # a bar for writing a megabyte, in the middle of the run's own

ADAPTERS = "adapter_config.json"
_SETS = ("target_modules", "exclude_modules", "modules_to_save")
_BOUNDS = ("max_position_embeddings", "max_seq_len", "seq_length", "model_max_length")
"""What configurations call how many tokens a model can have in view."""
_UNBOUNDED, _ENDLESS = 8192, 2**24
"""Tokens in view of a model that has no such bound; what tokenizers say that know none is beyond the other."""
BESIDE = "base"
"""Where a model that came from no folder is kept beside its adapters."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model that speaks."""

    model: torch.nn.Module
    """A Transformers causal language model."""
    tokenizer: Any
    """Its Transformers tokenizer."""
    critic: Critic | None = None
    """[R, hidden] → [R, heads] values, trained beside the model where credit asks for them."""
    dtype: torch.dtype = torch.float32
    """Precision of sampling and learning; see `cast_policy`."""

    @property
    def context_length(self) -> int:
        """How many tokens the model can have in view; where nothing bounds it, what its tokenizer says, or 8,192."""
        text: Any = self.model.config.get_text_config()  # type: ignore[union-attr,operator]
        bounds = (getattr(text, name, None) for name in _BOUNDS)
        said = getattr(self.tokenizer, "model_max_length", None)
        of_tokenizer = said if said is not None and said < _ENDLESS else _UNBOUNDED
        return int(next((bound for bound in bounds if bound is not None), of_tokenizer))

    @property
    def device(self) -> torch.device:
        """Where it is computed; what is fed to it has to be there."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """How many numbers it is made of; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def trained(self) -> list[torch.nn.Parameter]:
        """What an optimiser may change."""
        critic = list(self.critic.parameters()) if self.critic is not None else []
        return [p for p in (*self.model.parameters(), *critic) if p.requires_grad]

    @property
    def outside(self) -> set[int]:
        """The ids of the parameters that turn tokens into states and states into tokens or values."""
        anything: Any = self.model
        ends = (anything.get_input_embeddings(), anything.get_output_embeddings(), self.critic)
        return {id(p) for end in ends if end is not None for p in end.parameters()}


def freeze(policy: Policy, patterns: Sequence[str]) -> None:
    """Leave parameters out of training.

    Args:
        patterns: Names, `*` for any letters: `model.embed_tokens.*`.

    Raises:
        PolicyError: A pattern fits no name, or nothing is left to train.
    """
    names = dict(policy.model.named_parameters())
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise PolicyError(f'no parameter is named "{pattern}"{did_you_mean(pattern, names)}')
        for name in fitting:
            names[name].requires_grad_(False)
    if not policy.trained():
        raise PolicyError(f"{', '.join(patterns)}: leaves nothing to train")


def placed(policy: Policy, device: torch.device) -> Policy:
    """The policy on a device; its model and critic are moved, in place."""
    if policy.device == device:
        return policy
    model: Any = policy.model
    model.to(device)
    model.tie_weights()  # where moving made two tensors of one that modules share
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
    """The policy in a Hugging Face folder, or of adapters and the folder they name; see `found_model`.

    Args:
        path: A folder, a kept model's name, or a name on the hub.
        revision: Branch, tag or commit of one of the hub's.
        as_stored: Keep the weights in the precision in which they are stored, for `cast_policy`; otherwise they are
            converted to float32.
        trust_remote_code: Whether code that comes with the model is run.
        device: Where it is to be computed; see `find_device`.
        base_path: Folder of the base model of adapters, if it was moved.

    Raises:
        PolicyError: The folder is missing or incomplete, model and tokenizer do not belong together, or they are code
            and it is not trusted.
    """
    folder = found_model(path, revision=revision, trust_remote_code=trust_remote_code)
    base = _base(folder, base_path, trust_remote_code=trust_remote_code)
    if not (base / "config.json").is_file():
        run = sorted((folder / "checkpoints").glob("step-*")) if (folder / "recipe.yaml").is_file() else []
        of_run = f"; it holds a run, whose last checkpoint is {run[-1]}" if run else ""
        raise PolicyError(f"{base}: not a model folder: config.json is missing{of_run}")
    try:
        # where nothing is said, Transformers asks on the terminal
        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
        tokenizer = AutoTokenizer.from_pretrained(folder, **given)
        config = AutoConfig.from_pretrained(base, **given)
        _check_kind(folder, config)
        if not trust_remote_code:
            _check_attention(folder, config)
        model, told = AutoModelForCausalLM.from_pretrained(
            base,
            config=config,
            **given,
            dtype="auto" if as_stored else torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, in a line instead of in a table
        )
    except (
        OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, ImportError, RecursionError,
        SafetensorError,
    ) as error:  # fmt: skip
        said = " ".join(str(error).split())
        if "trust_remote_code" in said:
            raise PolicyError(
                f"{folder}: its model or tokenizer is code that comes with it (auto_map), which is run only where "
                "`trust_remote_code: true` says so"
            ) from None
        if isinstance(error, KeyError | AttributeError | TypeError):  # whose text alone says little
            said = f"{type(error).__name__}: {said}"
        raise PolicyError(f"{folder}: could not be loaded: {said[:300]}") from error
    if told["mismatched_keys"]:
        name, held, wanted = sorted(told["mismatched_keys"])[0]
        raise PolicyError(
            f"{base}: config.json does not fit the weights: {name} is {list(held)} in the file and {list(wanted)} by "
            "the configuration"
        )
    if told["missing_keys"]:  # they would be random numbers
        raise PolicyError(f"{base}: weights are missing: {', '.join(sorted(told['missing_keys'])[:3])}")
    if base != folder:
        load_adapters(model, folder)
    check_ids(folder, model, tokenizer)
    return placed(Policy(model, tokenizer), device)


def save_policy(policy: Policy, folder: Path, *, at: Path | None = None) -> None:
    """Write model and tokenizer into an existing folder, in Hugging Face layout; of adapters, in PEFT's. Where the
    model lies on a device, a copy on the CPU is what is written.

    Adapters name what they stand on by its whole path, so that they load from wherever one works. Where that is a model
    that came from no folder, it is written beside them, as `base`.

    Args:
        at: Where the folder will be, if it is to be renamed.
    """
    model: Any = on_cpu(policy.model)
    save_tokenizer(policy.tokenizer, folder)
    if not has_adapters(model):
        model.save_pretrained(folder)
        _make_readable(folder)
        return
    (config,) = model.peft_config.values()
    named = config.base_model_name_or_path
    beside = not named or Path(named).name == BESIDE
    config.base_model_name_or_path = None  # PEFT would look a name up in the world
    model.save_pretrained(folder)
    config.base_model_name_or_path = named
    if beside:
        without: Any = without_adapters(model, merge=False)
        without.save_pretrained(folder / BESIDE)
    base = (at or folder) / BESIDE if beside else Path(named)
    written = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
    # PEFT holds names in sets, whose order differs between processes
    names = {key: sorted(written[key]) for key in _SETS if isinstance(written.get(key), list)}
    text = json.dumps({**written, **names, "base_model_name_or_path": str(base.resolve())}, indent=1)
    (folder / ADAPTERS).write_text(text, encoding="utf-8")
    _make_readable(folder)


def _make_readable(folder: Path) -> None:
    """Set mode 0644 on weights: safetensors creates files that only their owner can read."""
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into an existing folder.

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
    """See that it is a causal language model.

    Raises:
        PolicyError: It has an encoder, or Transformers knows none of its type.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise PolicyError(
            f"{folder}: models of type {kind} are an encoder and a decoder; only decoders can be sampled and trained"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "auto_map", None):
        raise PolicyError(f"{folder}: models of type {kind} are not causal language models")


def _check_attention(folder: Path, config: Any) -> None:
    """See that the configuration names no attention that would be fetched and run.

    Raises:
        PolicyError: It does.
    """
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        named = getattr(part, "_attn_implementation", None)
        if named not in (None, "eager", "sdpa", "flex_attention"):
            raise PolicyError(
                f"{folder}: config.json names attention {str(named)[:80]!r}, which may be others' code: it is used "
                "only where `trust_remote_code: true` says so"
            )


def holds_adapters(folder: Path) -> bool:
    """Whether a folder holds adapters, and names what they stand on."""
    return (folder / ADAPTERS).is_file()


def _base(folder: Path, other: Path | None = None, *, trust_remote_code: bool) -> Path:
    """Where the weights are that adapters in `folder` stand on; the folder itself without adapters.

    Raises:
        PolicyError: That folder is gone.
    """
    if not holds_adapters(folder):
        return folder
    written = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
    named = written.get("base_model_name_or_path") or BESIDE
    # where the folder was moved, what it brought along is still beside it
    for base in (folder / named, Path(named), folder / BESIDE, *([other] if other is not None else [])):
        if base.is_dir():
            return base
    if is_hub_name(str(named)):
        return fetched(str(named), written.get("revision"), trust_remote_code=trust_remote_code)
    raise PolicyError(f"{folder}: its adapters stand on {named}, which is not there")


def cast_policy(policy: Policy, wanted: Precision) -> Policy:
    """Convert the weights of a policy, in place, and return the policy with its precision.

    Sampling and learning both compute in `wanted`. Trained weights are stored in float32: a learning rate of 1e-6 moves
    a weight by less than bfloat16 can represent. Frozen weights, such as the base model of adapters, are stored in the
    precision in which the policy is computed.

    Args:
        wanted: `auto` selects the precision that suits the model and its device.

    Raises:
        PolicyError: If the weights are quantised. Without their scales the numbers have no meaning.
    """
    packed = next(((name, p.dtype) for name, p in policy.model.named_parameters() if p.element_size() == 1), None)
    if packed is not None:
        raise PolicyError(
            f"{policy.tokenizer.name_or_path or 'the model'}: its weights are quantised ({packed[0]} is "
            f"{str(packed[1]).removeprefix('torch.')}); a policy's are not: dequantise it, or name the model it was "
            "made of and train adapters (policy.lora)"
        )
    of_model = sum(p.numel() for name, p in policy.model.named_parameters() if "lora_" not in name)
    adapted = has_adapters(policy.model)
    dtype = in_dtype(of_model, wanted, policy.device)
    for parameter in policy.model.parameters():
        stored = dtype if adapted and not parameter.requires_grad else torch.float32
        parameter.data = parameter.data.to(stored)  # one at a time: never twice the model
    return replace(policy, dtype=dtype)
