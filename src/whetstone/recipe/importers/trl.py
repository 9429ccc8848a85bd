"""Translation rules of TRL: `GRPOConfig`, `RLOOConfig`, `ModelConfig`, `LoraConfig`, `GRPOTrainer`.

Source: https://huggingface.co/docs/trl/grpo_trainer, https://huggingface.co/docs/transformers/main_classes/trainer.
"""

from __future__ import annotations

import math
from typing import Any

from whetstone.recipe.importers.translation_rules import (
    Computed,
    Converted,
    Keys,
    Missing,
    NoEffect,
    TranslatedWith,
    keep_positive,
    load_library,
    map_trackers,
    map_values,
    with_key,
)

_REFERENCE = "reinforcement.reference_kl"


def _processes(keys: Keys) -> int:
    """Return the number of processes, one per device, of the command line; 1 if it is unknown."""
    count = keys.get("num_processes")
    return count if isinstance(count, int) and count > 0 else 1


def _samples(keys: Keys) -> int:
    """Return the number of episodes that all processes generate per generation phase."""
    if keys.get("generation_batch_size"):
        return int(keys["generation_batch_size"])
    steps = keys.get("steps_per_generation") or keys.get("gradient_accumulation_steps") or 1
    return int(keys.get("per_device_train_batch_size", 8)) * int(steps) * _processes(keys)


def _minibatches(keys: Keys) -> int:
    """Return the number of optimizer steps per pass over the episodes of a generation phase."""
    accumulated = int(keys.get("gradient_accumulation_steps") or 1)
    batch = int(keys.get("per_device_train_batch_size", 8)) * _processes(keys)
    steps = keys.get("steps_per_generation")
    if keys.get("generation_batch_size"):
        steps = int(keys["generation_batch_size"]) // batch
    return max(1, int(steps or accumulated) // accumulated)


def _batch(value: Any, keys: Keys) -> Converted:
    """Compute the tasks per step: episodes of a generation phase divided by episodes per task."""
    samples, group = _samples(keys), int(keys.get("num_generations") or 8)
    tasks = max(1, samples // group)
    minibatches = _minibatches(keys)
    assumed = "" if "num_processes" in keys or keys.get("generation_batch_size") else (
        " on one process; with several, multiply tasks_per_step by their number"
    )  # fmt: skip
    result = {
        "reinforcement.tasks_per_step": tasks,
        "reinforcement.minibatches": min(minibatches, tasks) if minibatches > 1 else None,
    }
    return Converted(result, f"{samples} episodes / {group} per task{assumed}")


def _convert_steps(path: str, value: Any, keys: Keys) -> Converted:
    """Convert optimizer steps to recipe steps.

    Each recipe step samples once, and makes all updates on these episodes.
    """
    updates = _minibatches(keys) * int(keys.get("num_iterations") or 1)
    note = f"{value} optimizer steps, {updates} per step of a recipe" if updates > 1 else ""
    return Converted({path: math.ceil(value / updates)}, note)


def _interval(path: str) -> Any:
    """Return the rule of a number of optimizer steps, or of a fraction of all steps."""

    def rule(value: Any, keys: Keys) -> dict[str, Any] | Missing:
        if not value or value <= 0:
            return {}
        if value < 1:
            steps = keys.get("max_steps") or 0
            if steps <= 0:
                return Missing(f"a recipe has a number of steps: {path}")
            value = math.ceil(value * steps)
        return _convert_steps(path, value, keys)

    return rule


def _beta(value: Any, keys: Keys) -> dict[str, Any]:
    return {_REFERENCE: value, "reinforcement.reference_estimator": "k3" if value else None}


def _sync(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
    if not keys.get("sync_ref_model"):
        return NoEffect("sync_ref_model is not set")
    steps = _convert_steps("reinforcement.reference_sync_steps", int(keys.get("ref_model_sync_steps", 512)), keys)
    alpha = float(keys.get("ref_model_mixup_alpha", 0.6))
    return Converted({**steps, "reinforcement.reference_mixup_alpha": alpha}, steps.note)


_MODES = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "constant"}


def _loss(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    if value in ("cispo", "sapo"):
        return {"objective.name": value, "aggregation.mode": "sequence_mean" if value == "sapo" else "token_mean"}
    if value not in _MODES:
        return Missing(f"no loss of this name; there are {', '.join([*_MODES, 'cispo', 'sapo'])}, and custom ones: "
                       "objective: my_package:my_loss")  # fmt: skip
    tokens = int(keys.get("max_completion_length") or 512) if value == "dr_grpo" else None
    return {"aggregation.mode": _MODES[value], "aggregation.tokens": tokens}


def _objective(keys: Keys) -> str:
    if keys.get("loss_type") in ("cispo", "sapo"):
        return str(keys["loss_type"])
    return "gspo" if keys.get("importance_sampling_level") == "sequence" else "clipped"


def _clip(low: bool) -> Any:
    """Return the rule of `epsilon` (low) or `epsilon_high`."""

    def rule(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
        objective, has_high = _objective(keys), keys.get("epsilon_high") is not None
        if objective == "sapo":
            return NoEffect("loss_type sapo does not clip")
        if objective == "cispo":
            return {"objective.name": objective, "objective.max_ratio": 1 + value if not (low and has_high) else None}
        high = value if not (low and has_high) else None
        return {"objective.name": objective, "objective.clip_low": value if low else None, "objective.clip_high": high}

    return rule


def _adapters(path: str) -> Any:
    """Return the rule of a key that only has an effect with `use_peft`."""

    def rule(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
        return {path: value} if keys.get("use_peft", True) else NoEffect("use_peft is not set")

    return rule


def _has_peft_config(keys: Keys) -> bool:
    return any(key.startswith("peft_config.") for key in keys)


def _sapo(path: str) -> Any:
    return lambda value, keys: {path: value} if keys.get("loss_type") == "sapo" else NoEffect("loss_type is not sapo")


def _scale(value: Any, keys: Keys) -> dict[str, Any]:
    if value == "batch":
        return {"advantage.name": "batch_scaled"}
    return {"advantage.name": "group_relative", "advantage.scale": value not in (False, "none", "None")}


def _schedule(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    """Translate the learning rate schedule: a decay to 0 over all steps after the warm-up, or none."""
    ratio, steps = keys.get("warmup_ratio"), keys.get("warmup_steps")
    warm = float(ratio or (steps if isinstance(steps, float) and steps < 1 else 0) or 0.0)
    if value not in ("linear", "cosine", "constant", "constant_with_warmup"):
        return Missing("no counterpart of this schedule; there are linear, cosine and constant: reinforcement.decay, "
                       "reinforcement.decay_fraction")  # fmt: skip
    falls = value in ("linear", "cosine")
    return {
        "reinforcement.decay": value if falls else None,
        "reinforcement.decay_fraction": 1.0 - warm if falls else 0.0,
        "reinforcement.warmup_fraction": warm,
    }


def _warmup_steps(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    if not value:
        return {}
    if value < 1:
        return {"reinforcement.warmup_fraction": float(value)}
    steps = keys.get("max_steps") or 0
    if steps <= 0:
        return Missing("a recipe has a fraction of the steps: reinforcement.warmup_fraction")
    return {"reinforcement.warmup_fraction": min(1.0, value / steps)}


def _precision(dtype: str) -> Any:
    return lambda value, keys: {"policy.dtype": dtype if value else None}


def _dtype(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    name = str(value).removeprefix("torch.").removeprefix("<torch.").rstrip(">")
    name = names.get(name, name)
    if name not in ("auto", "float32", "bfloat16", "float16"):
        return Missing("policy.dtype is auto, float32, bfloat16 or float16")
    return {"policy.dtype": name}


def _vllm(value: Any, keys: Keys) -> dict[str, Any]:
    if not value:
        return {}
    if keys.get("vllm_mode") == "server":
        address = keys.get("vllm_server_base_url") or (
            f"http://{keys.get('vllm_server_host', '127.0.0.1')}:{keys.get('vllm_server_port', 8000)}"
        )
        return {"engine.name": "vllm", "engine.address": address.replace("//0.0.0.0", "//127.0.0.1")}
    return {"engine.name": "vllm"}


def _tensor_parallel(value: Any, keys: Keys) -> dict[str, Any]:
    spreads = bool(value and value > 1 and keys.get("use_vllm"))
    return {
        "scale.backend": "local-ray", "scale.tensor_parallel": value, "scale.colocated": True,
    } if spreads else {}  # fmt: skip


_CORRECTIONS = {
    "token_truncate": "truncated", "token_mask": "masked", "sequence_truncate": "sequence_truncated",
    "sequence_mask": "sequence_masked",
}  # fmt: skip
_CORRECTION = "vllm_importance_sampling_correction"


def _correction(value: Any, keys: Keys) -> dict[str, Any] | Missing | NoEffect:
    if not keys.get("use_vllm") or not keys.get(_CORRECTION, True):
        return NoEffect("it corrects log-probs of vLLM, which is not used")
    mode = keys.get("vllm_importance_sampling_mode", "sequence_mask")
    if mode not in _CORRECTIONS:
        return Missing(f"no counterpart of this value; there are {', '.join(_CORRECTIONS)}")
    high = keys.get("vllm_importance_sampling_clip_max", keys.get("vllm_importance_sampling_cap", 3.0))
    low = keys.get("vllm_importance_sampling_clip_min") if mode == "token_mask" else None
    return {
        "importance_correction.name": _CORRECTIONS[mode], "importance_correction.high": high,
        "importance_correction.low": low,
    }  # fmt: skip


def _model_options(value: Any, keys: Keys) -> dict[str, Any]:
    options = dict(value) if isinstance(value, dict) else {}
    dtype = options.get("dtype", options.get("torch_dtype"))
    named = _dtype(dtype, keys) if dtype is not None else {}
    return {
        "policy.revision": options.get("revision"), "policy.trust_remote_code": options.get("trust_remote_code"),
        **(named if isinstance(named, dict) else {}),
    }  # fmt: skip


def _target_modules(value: Any, keys: Keys) -> dict[str, Any]:
    return {"policy.lora.target_modules": "all-linear" if value in ("all-linear", ["all-linear"]) else _list(value)}


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _optimizer(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    name = str(value)
    if name.startswith("adamw") and "8bit" in name:
        return {"reinforcement.optimizer": "adamw_8bit"}
    if name.startswith("adamw"):
        return {"reinforcement.optimizer": "adamw"}
    return Missing("there are adamw, adamw_8bit and muon: reinforcement.optimizer")


def _dataset(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    """Translate `load_dataset("json", data_files=…)` of one local file of JSON lines."""
    files = value.get("data_files") if isinstance(value, dict) else None
    if isinstance(files, dict):
        files = files.get("train")
    if isinstance(files, list | tuple) and len(files) == 1:
        files = files[0]
    if not isinstance(files, str) or isinstance(files, Computed) or "://" in files or "*" in files:
        return Missing()
    if files.endswith((".jsonl", ".ndjson")):
        return Converted(
            {"tasks.source": "jsonl", "tasks.path": files},
            "each line has a `prompt` and an `answer`, or other columns for the reward",
        )
    return Missing(f"tasks: {{source: file, path: {files}, columns: {{prompt: prompt, answer: answer}}}}; "
                   "see docs/reference/formats.md")  # fmt: skip


_RULES: Any = {
    "train_dataset": _dataset,
    "model_init_kwargs": _model_options,
    "dtype": _dtype,
    "torch_dtype": _dtype,
    "bf16": _precision("bfloat16"),
    "fp16": _precision("float16"),
    "lora_r": _adapters("policy.lora.rank"),
    "lora_alpha": _adapters("policy.lora.alpha"),
    "lora_target_modules": lambda value, keys: (
        _target_modules(value, keys) if keys.get("use_peft", True) else NoEffect("use_peft is not set")
    ),
    "lora_dropout": lambda value, keys: (
        Missing("adapters have no dropout") if keys.get("use_peft", True) else NoEffect("use_peft is not set")
    ),
    "use_dora": lambda value, keys: {"policy.lora.dora": value or None},
    "peft_config.target_modules": _target_modules,
    "peft_config.use_dora": lambda value, keys: {"policy.lora.dora": value or None},
    "use_peft": lambda value, keys: {"policy.lora.rank": int(keys.get("lora_r", 16)) if value else None},
    "chat_template_kwargs": lambda value, keys: {"chat.variables": value or None},
    "max_steps": _interval("reinforcement.steps"),
    "max_grad_norm": keep_positive("reinforcement.max_grad_norm"),
    "optim": _optimizer,
    "warmup_steps": _warmup_steps,
    "lr_scheduler_type": _schedule,
    "gradient_checkpointing": lambda value, keys: {"reinforcement.activation_checkpointing": value or None},
    "save_steps": _interval("reinforcement.checkpoint_interval_steps"),
    "save_total_limit": keep_positive("reinforcement.keep_last"),
    "per_device_train_batch_size": _batch,
    "gradient_accumulation_steps": _batch,
    "steps_per_generation": _batch,
    "generation_batch_size": _batch,
    "num_processes": lambda value, keys: TranslatedWith("per_device_train_batch_size"),
    "beta": _beta,
    "sync_ref_model": lambda value, keys: _sync(value, keys) if value else {},
    "ref_model_sync_steps": _sync,
    "ref_model_mixup_alpha": _sync,
    "entropy_coef": keep_positive("reinforcement.entropy.weight"),
    "max_tool_calling_iterations": keep_positive("environment.max_turns"),
    "top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    "epsilon": _clip(low=True),
    "epsilon_high": _clip(low=False),
    "delta": lambda value, keys: (
        {"objective.name": _objective(keys), "objective.dual_clip": value}
        if _objective(keys) == "clipped" and value
        else {}
    ),
    "sapo_temperature_pos": _sapo("objective.temperature"),
    "sapo_temperature_neg": _sapo("objective.negative_temperature"),
    "importance_sampling_level": lambda value, keys: {"objective.name": _objective(keys)},
    "loss_type": _loss,
    "scale_rewards": _scale,
    "mask_truncated_completions": lambda value, keys: {"credit_filters": ["overlong_filter"] if value else None},
    "eval_steps": _interval("evaluation.interval_steps"),
    "num_generations_eval": keep_positive("evaluation.samples"),
    "report_to": map_trackers,
    "use_vllm": _vllm,
    "vllm_mode": with_key("use_vllm"),
    "vllm_server_base_url": with_key("use_vllm"),
    "vllm_server_host": with_key("use_vllm"),
    "vllm_server_port": with_key("use_vllm"),
    "vllm_tensor_parallel_size": _tensor_parallel,
    _CORRECTION: _correction,
    "vllm_importance_sampling_mode": _correction,
    "vllm_importance_sampling_clip_max": _correction,
    "vllm_importance_sampling_clip_min": _correction,
    "vllm_importance_sampling_cap": _correction,
    "multi_objective_aggregation": map_values({"sum_then_normalize": None}, "advantage"),
}
TRL = load_library(
    "TRL",
    _RULES,
    {
        "epsilon": lambda keys: 0.2 if _objective(keys) == "gspo" else None,
        "peft_config.r": lambda keys: 8 if _has_peft_config(keys) else None,
        "peft_config.lora_alpha": lambda keys: 8 if _has_peft_config(keys) else None,
    },
)
