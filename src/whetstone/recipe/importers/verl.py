"""Translation rules of verl: `ppo_trainer.yaml`, and overrides on its command line.

Source: https://verl.readthedocs.io/en/latest/examples/config.html.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from whetstone.recipe.importers.translation_rules import (
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

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_ESTIMATORS = {
    "grpo": "group_relative", "rloo": "leave_one_out", "gae": "token_gae", "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline", "opo": "opo", "grpo_passk": "pass_at_k",
    "gpg": "gpg", "remax": "remax", "rloo_vectorized": "leave_one_out", "grpo_vectorized": "group_relative",
}  # fmt: skip
_AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
}
_OBJECTIVES = {"vanilla": "clipped", "gspo": "gspo", "gpg": "policy_gradient", "geo_mean": "gmpo", "cispo": "cispo",
               "sapo": "sapo", "kl_cov": "kl_cov"}  # fmt: skip
_KL_TYPES = {
    "low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "low_var_kl+": "k3_as_k2", "k3+": "k3_as_k2",
}  # fmt: skip


def _estimator(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    if value not in _ESTIMATORS:
        return Missing(f"no counterpart of this estimator; there are {', '.join(_ESTIMATORS)}, and custom ones: "
                       "advantage: my_package:my_estimator")  # fmt: skip
    result: dict[str, Any] = {"advantage.name": _ESTIMATORS[value]}
    if value.startswith("grpo") and value != "grpo_passk":
        result["advantage.scale"] = bool(keys.get("algorithm.norm_adv_by_std_in_grpo", True))
    if value == "gae":
        result |= {"advantage.discount": keys.get("algorithm.gamma"), "advantage.trace": keys.get("algorithm.lam")}
        result |= {
            "critic.learning_rate": keys.get("critic.optim.lr", 1e-5),
            "critic.clip": keys.get("critic.cliprange_value"),
            "critic.warmup_updates": keys.get("trainer.critic_warmup"),
        }  # fmt: skip
    return result


def _critic(value: Any, keys: Keys) -> TranslatedWith | NoEffect:
    used = keys.get("algorithm.adv_estimator", "gae") == "gae"
    return (
        TranslatedWith("algorithm.adv_estimator")
        if used
        else NoEffect("the estimator (algorithm.adv_estimator) has no critic")
    )


def _critic_option(value: Any, keys: Keys) -> Missing | NoEffect:
    result = _critic(value, keys)
    return result if isinstance(result, NoEffect) else Missing("critics have their own AdamW: critic.learning_rate")


def _minibatches(value: Any, keys: Keys) -> dict[str, Any]:
    tasks = int(keys.get("data.train_batch_size", value))
    return Converted({"reinforcement.minibatches": max(1, tasks // int(value))}, f"{tasks} tasks / {value}")


def _clip(side: str) -> Any:
    """Return the rule of `clip_ratio`, `clip_ratio_low`, `clip_ratio_high` or `clip_ratio_c`."""

    def rule(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
        mode = keys.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
        if mode not in ("vanilla", "gspo") or (side == "c" and mode == "gspo"):
            return NoEffect(f"policy_loss.loss_mode is {mode}")
        if side == "c":
            return {"objective.name": "clipped", "objective.dual_clip": value}
        sides = [side] if side else [each for each in ("low", "high") if f"{ACTOR}.clip_ratio_{each}" not in keys]
        return {"objective.name": _OBJECTIVES[mode], **{f"objective.clip_{each}": value for each in sides}}

    return rule


def _kl(value: Any, keys: Keys) -> dict[str, Any] | Missing | NoEffect:
    if not keys.get(f"{ACTOR}.use_kl_loss"):
        return {}
    kind = keys.get(f"{ACTOR}.kl_loss_type", "low_var_kl")
    if kind not in _KL_TYPES:
        return Missing(f"kl_loss_type {kind} has no counterpart; reinforcement.reference_estimator is k2 or k3")
    weight = keys.get(f"{ACTOR}.kl_loss_coef", 0.001)
    return {
        "reinforcement.reference_kl": weight, "reinforcement.reference_estimator": _KL_TYPES[kind] if weight else None,
    }  # fmt: skip


def _kl_option(value: Any, keys: Keys) -> dict[str, Any] | Missing | NoEffect:
    return _kl(value, keys) if keys.get(f"{ACTOR}.use_kl_loss") else NoEffect(f"{ACTOR}.use_kl_loss is not set")


def _kl_in_reward(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    if not value:
        return {}
    kind = keys.get("algorithm.kl_ctrl.type", "fixed")
    if kind != "fixed" or keys.get("algorithm.kl_penalty", "kl") not in ("kl", "k1"):
        return Missing("reward_shaping: [{name: kl_penalty, weight: …}] has a fixed weight and the estimate k1")
    return {"reward_shaping": [{"name": "kl_penalty", "weight": keys.get("algorithm.kl_ctrl.kl_coef", 0.001)}]}


def _kl_in_reward_option(value: Any, keys: Keys) -> TranslatedWith | NoEffect:
    key = "algorithm.use_kl_in_reward"
    return TranslatedWith(key) if keys.get(key) else NoEffect("algorithm.use_kl_in_reward is not set")


def _train_files(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    path = _single(value)
    if path is None:
        return Missing("tasks.path names one file; join the files")
    prompt = keys.get("data.prompt_key", "prompt")
    result = {"tasks.source": "file", "tasks.path": str(path)}
    if prompt == "prompt":
        return result | {"tasks.format": "verl"}
    return result | {"tasks.columns": {"prompt": prompt, "answer": "reward_model.ground_truth"}}


def _reward_function(value: Any, keys: Keys) -> Missing:
    """Report a custom reward function with its name in a recipe."""
    file = PurePath(str(keys.get("custom_reward_function.path") or "my_rewards.py"))
    name = f"{file.stem}:{keys.get('custom_reward_function.name') or 'compute_score'}"
    return Missing(f'copy {file.name} into the folder of the recipe and name it: reward: "{name}" '
                   "(the signature of verl is accepted)")  # fmt: skip


def _single(files: Any) -> Any:
    """Return the only file of a list; None if there are several files."""
    if isinstance(files, list | tuple):
        return files[0] if len(files) == 1 else None
    return files


def _val_files(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    path = _single(value)
    if path is None:
        return Missing("tasks.held_out names one file; join the files")
    training = _single(keys.get("data.train_files", path))
    if training is None:
        return Missing("tasks.path names one file; join the files of data.train_files, then set tasks.held_out")
    if str(training).endswith(".parquet") != str(path).endswith(".parquet"):
        return Missing("tasks.held_out has the format of tasks.path; convert one of the files")
    return {"tasks.held_out": str(path)}


def _engine(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    if value in ("vllm", "sglang"):
        return {"engine.name": value}
    return {} if value in ("hf", "???", None) else Missing("engine is local, vllm, sglang or my_package:MyEngine")


def _tensor_parallel(value: Any, keys: Keys) -> dict[str, Any]:
    if not value or value <= 1 or keys.get(f"{ROLLOUT}.name") not in ("vllm", "sglang"):
        return {}
    nodes = int(keys.get("trainer.nnodes") or 1)
    devices = nodes * int(keys.get("trainer.n_gpus_per_node") or value)
    return {
        "scale.backend": "ray" if nodes > 1 else "local-ray", "scale.tensor_parallel": int(value),
        "scale.engine_replicas": max(1, devices // int(value)), "scale.colocated": True,
    }  # fmt: skip


def _devices(value: Any, keys: Keys) -> NoEffect:
    return NoEffect("the placement of a run does not change its results; scale.learner_processes spreads the learner")


def _dtype(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    names = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16", "half": "float16",
             "float32": "float32", "fp32": "float32", "auto": "auto"}  # fmt: skip
    return {"policy.dtype": names[value]} if value in names else Missing("policy.dtype has no such value")


def _sampled_dtype(value: Any, keys: Keys) -> dict[str, Any] | Missing | NoEffect:
    learned = keys.get(f"{ACTOR}.fsdp_config.dtype")
    return _dtype(value, keys) if learned is None else NoEffect("sampling and learning both have policy.dtype")


def _lora(path: str) -> Any:
    def rule(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
        if not keys.get(f"{MODEL}.lora_rank"):
            return NoEffect(f"{MODEL}.lora_rank is 0: no adapters")
        return {path: value}

    return rule


def _schedule(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    warm = float(keys.get(f"{ACTOR}.optim.lr_warmup_steps_ratio") or 0.0)
    if value in (None, "constant"):
        return {"reinforcement.decay_fraction": 0.0, "reinforcement.warmup_fraction": warm}
    if value != "cosine" or keys.get(f"{ACTOR}.optim.min_lr_ratio"):
        return Missing("the learning rate is constant, or falls to 0: reinforcement.decay is linear or cosine")
    return {
        "reinforcement.decay": "cosine", "reinforcement.decay_fraction": 1.0 - warm,
        "reinforcement.warmup_fraction": warm,
    }  # fmt: skip


def _warmup_steps(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    steps = keys.get("trainer.total_training_steps")
    if not value or value < 0:
        return {}
    if not steps or steps < 0:
        return Missing("a recipe has a fraction of the steps: reinforcement.warmup_fraction")
    return {"reinforcement.warmup_fraction": min(1.0, value / steps)}


def _overlong(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    above = next((name for name in _OVERLONG if f"{name}.enable" in keys), _OVERLONG[0])
    if not value:
        return {}
    return {"reward_shaping": [{
        "name": "overlong", "limit": int(keys.get("data.max_response_length", 512)),
        "buffer": int(keys[f"{above}.len"]), "penalty": float(keys.get(f"{above}.penalty_factor", 1.0)),
    }]}  # fmt: skip


def _dynamic_sampling(value: Any, keys: Keys) -> dict[str, Any]:
    part = {"name": "nonzero_variance", "when_exhausted": "continue"}
    return {"rollout.dynamic_sampling": part if keys.get("algorithm.filter_groups.enable") else None}


def _correction(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    level = {"token": "truncated", "sequence": "sequence_truncated"}
    if value not in level:
        return Missing("importance_correction is truncated, masked, sequence_truncated or sequence_masked")
    high = keys.get("algorithm.rollout_correction.rollout_is_threshold", 2.0)
    return {"importance_correction.name": level[value], "importance_correction.high": high}


_OF_CRITIC = tuple(
    f"critic.{name}"
    for name in (
        "optim.optimizer", "optim.optimizer_impl", "optim.lr_warmup_steps_ratio", "optim.total_training_steps",
        "optim.weight_decay", "optim.lr_warmup_steps", "optim.betas", "optim.clip_grad", "optim.min_lr_ratio",
        "optim.num_cycles", "optim.lr_scheduler_type", "optim.warmup_style", "optim.override_optimizer_config",
        "ppo_mini_batch_size", "ppo_epochs", "grad_clip", "loss_agg_mode", "shuffle",
    )
)  # fmt: skip
_TURNS = f"{ROLLOUT}.multi_turn"
_OVERLONG = ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg")
_RULES: Any = {
    "data.train_files": _train_files,
    "data.val_files": _val_files,
    "data.prompt_key": with_key("data.train_files"),
    f"{MODEL}.lora_rank": lambda value, keys: {"policy.lora.rank": value or None},
    f"{MODEL}.lora_alpha": _lora("policy.lora.alpha"),
    f"{MODEL}.target_modules": _lora("policy.lora.target_modules"),
    f"{ACTOR}.optim.lr_warmup_steps": _warmup_steps,
    f"{ACTOR}.optim.lr_scheduler_type": _schedule,
    f"{ACTOR}.optim.warmup_style": lambda value, keys: _schedule(value, keys) if value else {},
    f"{ACTOR}.optim.optimizer": map_values({"AdamW": "adamw"}, "reinforcement.optimizer"),
    f"{ACTOR}.optim.clip_grad": lambda value, keys: (
        {"reinforcement.max_grad_norm": value} if f"{ACTOR}.grad_clip" not in keys else {}
    ),
    f"{ACTOR}.fsdp_config.optimizer_offload": lambda value, keys: {"reinforcement.optimizer_offload": value or None},
    f"{ACTOR}.fsdp_config.dtype": _dtype,
    f"{ROLLOUT}.dtype": _sampled_dtype,
    f"{ACTOR}.ppo_mini_batch_size": _minibatches,
    f"{ACTOR}.clip_ratio": _clip(""),
    f"{ACTOR}.clip_ratio_low": _clip("low"),
    f"{ACTOR}.clip_ratio_high": _clip("high"),
    f"{ACTOR}.clip_ratio_c": _clip("c"),
    f"{ACTOR}.policy_loss.loss_mode": map_values(_OBJECTIVES, "objective.name"),
    f"{ACTOR}.use_kl_loss": _kl,
    f"{ACTOR}.kl_loss_coef": _kl_option,
    f"{ACTOR}.kl_loss_type": _kl_option,
    f"{ACTOR}.entropy_coeff": keep_positive("reinforcement.entropy.weight"),
    f"{ACTOR}.loss_agg_mode": map_values(_AGGREGATIONS, "aggregation.mode"),
    f"{ROLLOUT}.name": _engine,
    f"{ROLLOUT}.tensor_model_parallel_size": _tensor_parallel,
    f"{ROLLOUT}.top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    f"{ROLLOUT}.val_kwargs.n": lambda value, keys: {"evaluation.samples": value if value > 1 else None},
    f"{_TURNS}.format": lambda value, keys: {"chat.format": "hermes" if value == "hermes" else None},
    "algorithm.adv_estimator": _estimator,
    "algorithm.gamma": _critic,
    "algorithm.lam": _critic,
    "algorithm.norm_adv_by_std_in_grpo": with_key("algorithm.adv_estimator"),
    **dict.fromkeys(_OF_CRITIC, _critic_option),
    "critic.optim.lr": _critic,
    "critic.cliprange_value": _critic,
    "trainer.critic_warmup": _critic,
    "algorithm.use_kl_in_reward": _kl_in_reward,
    "algorithm.kl_penalty": _kl_in_reward_option,
    "algorithm.kl_ctrl.kl_coef": _kl_in_reward_option,
    "algorithm.kl_ctrl.type": _kl_in_reward_option,
    "algorithm.kl_ctrl.horizon": _kl_in_reward_option,
    "algorithm.kl_ctrl.target_kl": _kl_in_reward_option,
    "algorithm.filter_groups.enable": _dynamic_sampling,
    "algorithm.filter_groups.metric": with_key("algorithm.filter_groups.enable"),
    "algorithm.filter_groups.max_num_gen_batches": with_key("algorithm.filter_groups.enable"),
    "algorithm.rollout_correction.rollout_is": lambda value, keys: (
        {} if value in (None, "null") else _correction(value, keys)
    ),
    "algorithm.rollout_correction.rollout_is_threshold": with_key("algorithm.rollout_correction.rollout_is"),
    **{f"{name}.enable": _overlong for name in _OVERLONG},
    **{f"{name}.{key}": with_key(f"{name}.enable") for name in _OVERLONG for key in ("len", "penalty_factor")},
    "custom_reward_function.path": _reward_function,
    "custom_reward_function.name": _reward_function,
    "trainer.logger": map_trackers,
    "trainer.total_training_steps": keep_positive("reinforcement.steps"),
    "trainer.save_freq": keep_positive("reinforcement.checkpoint_interval_steps"),
    "trainer.max_actor_ckpt_to_keep": keep_positive("reinforcement.keep_last"),
    "trainer.test_freq": keep_positive("evaluation.interval_steps"),
    "trainer.n_gpus_per_node": _devices,
    "trainer.nnodes": _devices,
}
VERL = load_library(
    "verl",
    _RULES,
    {
        f"{ACTOR}.clip_ratio": lambda keys: 0.2 if keys.get(f"{ACTOR}.policy_loss.loss_mode") == "gspo" else None,
        f"{MODEL}.lora_alpha": lambda keys: 16 if keys.get(f"{MODEL}.lora_rank") else None,
    },
)
