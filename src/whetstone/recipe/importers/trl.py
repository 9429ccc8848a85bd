"""Keys of TRL: `GRPOConfig`, `RLOOConfig`, `ModelConfig`, `LoraConfig` and the arguments of `GRPOTrainer`.

Source: https://huggingface.co/docs/trl/grpo_trainer, https://huggingface.co/docs/transformers/main_classes/trainer.
"""

from __future__ import annotations

import math
from typing import Any

from whetstone.recipe.importers.rules import Keys, Library, Missing, NoEffect, choose, positive, trackers, with_key

_REFERENCE = "reinforcement.reference_kl"


def _samples(keys: Keys) -> int:
    """Episodes of a generation on one device."""
    if keys.get("generation_batch_size"):
        return int(keys["generation_batch_size"])
    steps = keys.get("steps_per_generation") or keys.get("gradient_accumulation_steps") or 1
    return int(keys.get("per_device_train_batch_size", 8)) * int(steps)


def _minibatches(keys: Keys) -> int:
    """Optimizer steps of one pass over a generation."""
    accumulated = int(keys.get("gradient_accumulation_steps") or 1)
    batch = int(keys.get("per_device_train_batch_size", 8))
    steps = keys.get("steps_per_generation")
    if keys.get("generation_batch_size"):
        steps = int(keys["generation_batch_size"]) // batch
    return max(1, int(steps or accumulated) // accumulated)


def _batch(value: Any, keys: Keys) -> dict[str, Any]:
    """Tasks of a step: episodes of a generation divided by the episodes of a task."""
    tasks = max(1, _samples(keys) // int(keys.get("num_generations") or 8))
    minibatches = _minibatches(keys)
    return {
        "reinforcement.tasks_per_step": tasks,
        "reinforcement.minibatches": min(minibatches, tasks) if minibatches > 1 else None,
    }


def _steps(value: Any, keys: Keys) -> dict[str, Any]:
    """TRL counts optimizer steps; a step of a recipe samples once and makes all updates on these episodes."""
    if not value or value <= 0:
        return {}
    updates = _minibatches(keys) * int(keys.get("num_iterations") or 1)
    return {"reinforcement.steps": math.ceil(value / updates)}


def _beta(value: Any, keys: Keys) -> dict[str, Any]:
    return {_REFERENCE: value, "reinforcement.reference_estimator": "k3" if value else None}


def _sync(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
    if not keys.get("sync_ref_model"):
        return NoEffect("sync_ref_model is not set")
    return {
        "reinforcement.reference_sync_steps": int(keys.get("ref_model_sync_steps", 512)),
        "reinforcement.reference_mixup_alpha": float(keys.get("ref_model_mixup_alpha", 0.6)),
    }


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
    """Return the rule of a key that has an effect with `use_peft`."""

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
    """Return a decay to 0 over all steps after the warm-up, or none."""
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


def _evaluates(value: Any, keys: Keys) -> dict[str, Any]:
    return {"evaluation.interval_steps": int(value) if value and value >= 1 else None}


_RULES: Any = {
    "model": "policy.path",
    "model_name_or_path": "policy.path",
    "model_revision": "policy.revision",
    "model_init_kwargs": _model_options,
    "trust_remote_code": "policy.trust_remote_code",
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
    "peft_config.r": "policy.lora.rank",
    "peft_config.lora_alpha": "policy.lora.alpha",
    "peft_config.target_modules": _target_modules,
    "peft_config.use_dora": lambda value, keys: {"policy.lora.dora": value or None},
    "use_peft": lambda value, keys: {"policy.lora.rank": int(keys.get("lora_r", 16)) if value else None},
    "chat_template_kwargs": lambda value, keys: {"chat.variables": value or None},
    "seed": "seed",
    "learning_rate": "reinforcement.learning_rate",
    "max_steps": _steps,
    "weight_decay": "reinforcement.weight_decay",
    "max_grad_norm": positive("reinforcement.max_grad_norm"),
    "optim": _optimizer,
    "warmup_ratio": "reinforcement.warmup_fraction",
    "warmup_steps": _warmup_steps,
    "lr_scheduler_type": _schedule,
    "gradient_checkpointing": lambda value, keys: {"reinforcement.activation_checkpointing": value or None},
    "save_steps": lambda value, keys: {
        "reinforcement.checkpoint_interval_steps": int(value) if value and value >= 1 else None
    },
    "save_total_limit": positive("reinforcement.keep_last"),
    "per_device_train_batch_size": _batch,
    "gradient_accumulation_steps": _batch,
    "steps_per_generation": _batch,
    "generation_batch_size": _batch,
    "num_iterations": "reinforcement.epochs",
    "beta": _beta,
    "sync_ref_model": lambda value, keys: _sync(value, keys) if value else {},
    "ref_model_sync_steps": _sync,
    "ref_model_mixup_alpha": _sync,
    "entropy_coef": positive("reinforcement.entropy.weight"),
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "max_tool_calling_iterations": positive("environment.max_turns"),
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    "min_p": "rollout.min_p",
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
    "eval_steps": _evaluates,
    "num_generations_eval": positive("evaluation.samples"),
    "report_to": trackers,
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
    "multi_objective_aggregation": choose({"sum_then_normalize": None}, "advantage"),
}
_NO_EFFECT = (
    "output_dir", "run_name", "project", "logging_dir", "logging_steps", "logging_strategy", "logging_first_step",
    "logging_nan_inf_filter", "log_level", "log_level_replica", "log_on_each_node", "log_completions",
    "log_multimodal", "log_unique_prompts", "log_completions_hub_repo", "num_completions_to_print",
    "wandb_log_unique_prompts",
    "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "include_num_input_tokens_seen",
    "push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision",
    "save_strategy", "save_only_model", "save_on_each_node", "save_safetensors", "enable_jit_checkpoint",
    "restore_callback_states_from_checkpoint", "resume_from_checkpoint", "overwrite_output_dir",
    "eval_strategy", "evaluation_strategy", "do_eval", "do_train", "do_predict", "eval_on_start", "eval_delay",
    "per_device_eval_batch_size", "eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object",
    "batch_eval_metrics", "include_for_metrics", "prediction_loss_only", "bf16_full_eval", "fp16_full_eval", "tf32",
    "attn_implementation", "vllm_gpu_memory_utilization", "vllm_server_timeout", "vllm_group_port", "vllm_model_impl",
    "vllm_enable_sleep_mode", "vllm_max_model_length", "gradient_checkpointing_kwargs", "activation_checkpointing",
    "activation_checkpointing_kwargs", "disable_tqdm", "remove_unused_columns", "dataloader_num_workers",
    "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order",
    "dataloader_multiprocessing_context", "dataloader_drop_last", "ddp_timeout", "ddp_backend",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "fsdp",
    "fsdp_config", "deepspeed", "ds3_gather_for_generation", "accelerator_config", "parallelism_config", "local_rank",
    "use_cpu", "debug", "skip_memory_metrics", "auto_find_batch_size", "torch_compile", "torch_compile_backend",
    "torch_compile_mode", "torch_empty_cache_steps", "use_cache", "use_liger_kernel", "use_liger_loss",
    "liger_kernel_config", "cache_implementation", "use_transformers_continuous_batching", "use_transformers_paged",
    "transformers_continuous_batching_config", "full_determinism", "data_seed", "ignore_data_skip", "label_names",
    "length_column_name", "train_sampling_strategy", "pad_to_multiple_of", "average_tokens_across_devices",
    "lora_task_type", "peft_config.task_type", "peft_config.inference_mode", "dataset_num_proc", "ignore_bias_buffers",
    "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "use_bnb_nested_quant",
    "processing_class",
    "reward_processing_classes", "metric_for_best_model", "greater_is_better", "gradient_checkpointing_use_reentrant",
    "dataset_test_split", "cast_lm_head_to_fp32", "use_logits_to_keep", "torchdynamo", "push_to_hub_model_id",
    "push_to_hub_organization", "group_by_length", "config_file", "num_processes", "num_machines", "main_process_port",
)  # fmt: skip
_DATASET = (
    "save it with `datasets.load_dataset(NAME).save_to_disk(FOLDER)`, then tasks: {source: huggingface, path: FOLDER}; "
    "see docs/formats.md"
)
_REWARD = (
    'put the function into a module and name it: reward: "my_rewards:NAME" (the signature of TRL is accepted); '
    "several: reward: {name: composed, terms: {NAME: …}}"
)
_ADVICE = {
    "dataset_name": _DATASET,
    "dataset_config": _DATASET,
    "dataset_train_split": "tasks.training names the split of tasks: {source: huggingface}",
    "train_dataset": _DATASET,
    "eval_dataset": "tasks.held_out names a split, and tasks.held_out_fraction keeps a part of the tasks",
    "reward_funcs": _REWARD,
    "reward_model_name_or_path": "reward: {name: reward_model, path: …}",
    "reward_weights": "reward: {name: composed, terms: {NAME: {name: …, weight: …}}}",
    "tools": 'put the functions into a module and name them: environment.tools: ["my_tools:NAME"]',
    "environment_factory": "environment: my_package:MyEnvironment; see docs/environments.md",
    "rollout_func": "rollout.strategy: my_package:MyStrategy, or an agent with its own loop; see docs/agents.md",
    "callbacks": "trackers: [my_package:MyTracker] receives every metric; see docs/trackers.md",
    "optimizers": "reinforcement.optimizer is adamw, adamw_8bit or muon",
    "quantization_config": "weights are not quantized; policy.lora and policy.dtype: bfloat16 save memory",
    "num_train_epochs": "a run is counted in steps: reinforcement.steps (tasks × epochs / tasks_per_step)",
    "peft_config": "adapters are policy.lora: {rank: 16, alpha: 32, target_modules: all-linear}",
    "lr_scheduler_kwargs": "the learning rate falls to 0: reinforcement.decay, reinforcement.decay_fraction",
    "peft_config.lora_dropout": "adapters have no dropout",
    "load_in_4bit": "weights are not quantized; policy.lora and policy.dtype: bfloat16 save memory",
    "load_in_8bit": "weights are not quantized; policy.lora and policy.dtype: bfloat16 save memory",
    "generation_kwargs": "sampling is rollout.temperature, top_k, top_p, min_p, stop_strings and max_new_tokens",
    "repetition_penalty": "sampling has no repetition penalty: log-probs would not be those of the model",
    "shuffle_dataset": "training tasks are always shuffled",
    "load_best_model_at_end": "the last checkpoint is the result; evaluation.interval_steps evaluates during the run",
    "max_prompt_length": "prompts are not cut; a task whose prompt does not fit is left out and counted",
    "top_entropy_quantile": "advantage_transforms: [my_package:my_transform] can keep tokens by entropy",
    "adam_beta1": "AdamW has its usual coefficients",
    "adam_beta2": "AdamW has its usual coefficients",
}
TRL = Library(
    "TRL",
    _RULES,
    _NO_EFFECT,
    _ADVICE,
    off={
        "repetition_penalty": 1.0, "top_entropy_quantile": 1.0, "shuffle_dataset": True, "adam_beta1": 0.9,
        "adam_beta2": 0.999, "adam_epsilon": 1e-8, "peft_config.bias": "none", "dataset_train_split": "train",
        "model_revision": "main", "disable_dropout": True, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005,
        "entropy_target": 0.2, "router_aux_loss_coef": 0.001,
    },
    defaults={
        "learning_rate": 1e-6, "per_device_train_batch_size": 8, "max_completion_length": 512,
        "lr_scheduler_type": "linear", "num_train_epochs": 3,
        "epsilon": lambda keys: 0.2 if _objective(keys) == "gspo" else None,
        "peft_config.r": lambda keys: 8 if _has_peft_config(keys) else None,
        "peft_config.lora_alpha": lambda keys: 8 if _has_peft_config(keys) else None,
    },
    default_on=frozenset({"shuffle_dataset"}),
)  # fmt: skip
