"""Keys of verl: `ppo_trainer.yaml`, and overrides of its command line.

Source: https://verl.readthedocs.io/en/latest/examples/config.html.
"""

from __future__ import annotations

from typing import Any

from whetstone.recipe.importers.rules import Keys, Library, Missing, NoEffect, choose, positive, trackers, with_key

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


def _critic(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
    used = keys.get("algorithm.adv_estimator", "gae") == "gae"
    return {} if used else NoEffect("the estimator (algorithm.adv_estimator) has no critic")


def _critic_option(value: Any, keys: Keys) -> Missing | NoEffect:
    result = _critic(value, keys)
    return result if isinstance(result, NoEffect) else Missing("critics have their own AdamW: critic.learning_rate")


def _minibatches(value: Any, keys: Keys) -> dict[str, Any]:
    return {"reinforcement.minibatches": max(1, int(keys.get("data.train_batch_size", value)) // int(value))}


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


def _kl_in_reward_option(value: Any, keys: Keys) -> dict[str, Any] | NoEffect:
    used = keys.get("algorithm.use_kl_in_reward")
    return {} if used else NoEffect("algorithm.use_kl_in_reward is not set")


def _train_files(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    path, held_out = _single(value), _single(keys.get("data.val_files"))
    if path is None:
        return Missing("tasks.path names one file; join the files")
    prompt, is_parquet = keys.get("data.prompt_key", "prompt"), str(path).endswith(".parquet")
    result = {"tasks.source": "file", "tasks.path": str(path)}
    if held_out is not None and str(held_out).endswith(".parquet") == is_parquet:
        result["tasks.held_out"] = str(held_out)
    if prompt == "prompt":
        return result | {"tasks.format": "verl"}
    return result | {"tasks.columns": {"prompt": prompt, "answer": "reward_model.ground_truth"}}


def _single(files: Any) -> Any:
    """Return the only file of a list of files; None if there are several."""
    if isinstance(files, list | tuple):
        return files[0] if len(files) == 1 else None
    return files


def _val_files(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    path = _single(value)
    if path is None:
        return Missing("tasks.held_out names one file; join the files")
    return {} if "data.train_files" in keys else {"tasks.held_out": str(path)}


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
    "data.train_batch_size": "reinforcement.tasks_per_step",
    "data.max_response_length": "rollout.max_new_tokens",
    "data.seed": "seed",
    "data.apply_chat_template_kwargs.enable_thinking": "chat.variables.enable_thinking",
    f"{MODEL}.path": "policy.path",
    f"{MODEL}.trust_remote_code": "policy.trust_remote_code",
    f"{MODEL}.enable_gradient_checkpointing": "reinforcement.activation_checkpointing",
    f"{MODEL}.lora_rank": lambda value, keys: {"policy.lora.rank": value or None},
    f"{MODEL}.lora_alpha": _lora("policy.lora.alpha"),
    f"{MODEL}.target_modules": _lora("policy.lora.target_modules"),
    f"{ACTOR}.optim.lr": "reinforcement.learning_rate",
    f"{ACTOR}.optim.weight_decay": "reinforcement.weight_decay",
    f"{ACTOR}.optim.lr_warmup_steps_ratio": "reinforcement.warmup_fraction",
    f"{ACTOR}.optim.lr_warmup_steps": _warmup_steps,
    f"{ACTOR}.optim.lr_scheduler_type": _schedule,
    f"{ACTOR}.optim.warmup_style": lambda value, keys: _schedule(value, keys) if value else {},
    f"{ACTOR}.optim.optimizer": choose({"AdamW": "adamw"}, "reinforcement.optimizer"),
    f"{ACTOR}.grad_clip": "reinforcement.max_grad_norm",
    f"{ACTOR}.optim.clip_grad": lambda value, keys: (
        {"reinforcement.max_grad_norm": value} if f"{ACTOR}.grad_clip" not in keys else {}
    ),
    f"{ACTOR}.fsdp_config.optimizer_offload": lambda value, keys: {"reinforcement.optimizer_offload": value or None},
    f"{ACTOR}.fsdp_config.dtype": _dtype,
    f"{ROLLOUT}.dtype": _sampled_dtype,
    f"{ACTOR}.ppo_mini_batch_size": _minibatches,
    f"{ACTOR}.ppo_epochs": "reinforcement.epochs",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "reinforcement.micro_batch_tokens",
    f"{ACTOR}.clip_ratio": _clip(""),
    f"{ACTOR}.clip_ratio_low": _clip("low"),
    f"{ACTOR}.clip_ratio_high": _clip("high"),
    f"{ACTOR}.clip_ratio_c": _clip("c"),
    f"{ACTOR}.policy_loss.loss_mode": choose(_OBJECTIVES, "objective.name"),
    f"{ACTOR}.use_kl_loss": _kl,
    f"{ACTOR}.kl_loss_coef": _kl_option,
    f"{ACTOR}.kl_loss_type": _kl_option,
    f"{ACTOR}.entropy_coeff": positive("reinforcement.entropy.weight"),
    f"{ACTOR}.loss_agg_mode": choose(_AGGREGATIONS, "aggregation.mode"),
    f"{ROLLOUT}.n": "rollout.group_size",
    f"{ROLLOUT}.name": _engine,
    f"{ROLLOUT}.tensor_model_parallel_size": _tensor_parallel,
    f"{ROLLOUT}.temperature": "rollout.temperature",
    f"{ROLLOUT}.top_p": "rollout.top_p",
    f"{ROLLOUT}.top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    f"{ROLLOUT}.val_kwargs.temperature": "evaluation.temperature",
    f"{ROLLOUT}.val_kwargs.n": lambda value, keys: {"evaluation.samples": value if value > 1 else None},
    f"{_TURNS}.max_assistant_turns": "environment.max_turns",
    f"{_TURNS}.max_parallel_calls": "environment.max_calls_per_turn",
    f"{_TURNS}.max_tool_response_length": "environment.max_result_characters",
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
    "trainer.logger": trackers,
    "trainer.total_training_steps": positive("reinforcement.steps"),
    "trainer.save_freq": positive("reinforcement.checkpoint_interval_steps"),
    "trainer.max_actor_ckpt_to_keep": positive("reinforcement.keep_last"),
    "trainer.test_freq": positive("evaluation.interval_steps"),
    "trainer.n_gpus_per_node": _devices,
    "trainer.nnodes": _devices,
}
_NO_EFFECT = (
    "trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir", "trainer.default_hdfs_dir",
    "trainer.resume_mode", "trainer.resume_from_path", "trainer.val_before_train", "trainer.val_only",
    "trainer.log_val_generations", "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.device",
    "trainer.balance_batch", "trainer.esi_redundant_time", "trainer.del_local_ckpt_after_load",
    "trainer.max_critic_ckpt_to_keep", "trainer.ray_wait_register_center_timeout", "trainer.use_legacy_worker_impl",
    "ray_init", "ray_kwargs", "global_profiler", "transfer_queue", "hydra", "profiler",
    f"{ACTOR}.strategy", f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron", f"{ACTOR}.checkpoint", f"{ACTOR}.profiler",
    f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.use_torch_compile", f"{ACTOR}.use_fused_kernels",
    f"{ACTOR}.use_remove_padding", f"{ACTOR}.use_prefix_grouper", f"{ACTOR}.entropy_from_logits_with_chunking",
    f"{ACTOR}.entropy_checkpointing", f"{ACTOR}.calculate_entropy", f"{ACTOR}.sum_pi_squared_checkpointing",
    f"{ACTOR}.data_loader_seed", f"{ACTOR}.rollout_n", f"{ACTOR}.optim.total_training_steps",
    f"{ACTOR}.optim.optimizer_impl", f"{ACTOR}.optim.num_cycles",
   
   
   
    "actor_rollout_ref.ref", "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout",
    f"{MODEL}.use_remove_padding", f"{MODEL}.use_shm", f"{MODEL}.enable_activation_offload", f"{MODEL}.use_liger",
    f"{MODEL}.use_fused_kernels", f"{MODEL}.fused_kernel_options", f"{MODEL}.tiled_mlp", f"{MODEL}.external_lib",
    f"{MODEL}.tokenizer_path", f"{MODEL}.hf_config_path", f"{MODEL}.mtp",
    f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{ROLLOUT}.enforce_eager", f"{ROLLOUT}.free_cache_engine",
    f"{ROLLOUT}.mode", f"{ROLLOUT}.prompt_length", f"{ROLLOUT}.response_length", f"{ROLLOUT}.load_format",
    f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_model_len",
    f"{ROLLOUT}.cudagraph_capture_sizes", f"{ROLLOUT}.data_parallel_size", f"{ROLLOUT}.expert_parallel_size",
    f"{ROLLOUT}.pipeline_model_parallel_size", f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.enable_prefix_caching",
    f"{ROLLOUT}.logprobs_mode", f"{ROLLOUT}.scheduling_policy", f"{ROLLOUT}.disable_log_stats",
    f"{ROLLOUT}.disable_logprobs", f"{ROLLOUT}.engine_kwargs", f"{ROLLOUT}.multi_stage_wake_up",
    f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.agent.num_workers", f"{ROLLOUT}.agent.default_agent_loop",
    f"{ROLLOUT}.checkpoint_engine", f"{ROLLOUT}.trace", f"{ROLLOUT}.skip_dump_dir",
    f"{ROLLOUT}.skip_tokenizer_init", f"{ROLLOUT}.profiler", f"{ROLLOUT}.prometheus", f"{ROLLOUT}.layered_summon",
    f"{ROLLOUT}.update_weights_bucket_megabytes", f"{ROLLOUT}.mtp", f"{ROLLOUT}.seed", f"{ROLLOUT}.nnodes",
    f"{ROLLOUT}.n_gpus_per_node", f"{ROLLOUT}.val_kwargs.do_sample",
    f"{ROLLOUT}.micro_batch_size", f"{_TURNS}.enable",
   
    f"{_TURNS}.tokenization_sanity_check_mode",
    "data.reward_fn_key", "data.val_batch_size", "data.gen_batch_size", "data.dataloader_num_workers",
    "data.return_raw_chat", "data.return_raw_input_ids", "data.return_full_prompt", "data.return_multi_modal_inputs",
    "data.filter_overlong_prompts", "data.filter_overlong_prompts_workers", "data.use_shm",
    "data.validation_shuffle", "data.trust_remote_code", "data.image_key", "data.video_key", "data.image_patch_size",
    "data.tokenizer", "data.cache_dir",
    "critic.strategy", "critic.model", "critic.checkpoint", "critic.profiler", "critic.rollout_n",
    "critic.ppo_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu",
    "critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu", "critic.enable",
    "critic.forward_max_token_len_per_gpu", "critic.forward_micro_batch_size", "critic.megatron",
    "critic.forward_micro_batch_size_per_gpu", "critic.data_loader_seed", "critic.ulysses_sequence_parallel_size",
   
    "reward_model.enable_resource_pool", "reward_model.n_gpus_per_node", "reward_model.nnodes",
    "reward_model.strategy", "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu",
    "reward_model.use_dynamic_bsz", "reward_model.forward_max_token_len_per_gpu", "reward_model.launch_reward_fn_async",
    "reward_model.ulysses_sequence_parallel_size", "reward_model.profiler", "reward_model.use_reward_loop",
    "reward_model.num_workers", "reward_model.rollout", "reward_model.max_length", "reward_model.reward_loop_source",
    "reward_model.sandbox_fusion.max_concurrent", "reward_model.sandbox_fusion.memory_limit_mb",
   
   
    "reward_manager.module", "rollout.nnodes", "rollout.n_gpus_per_node",
    *(f"{name}.log" for name in _OVERLONG), "reward_model.reward_kwargs.max_resp_len", "reward_model.model.fsdp_config",
    "reward_model.model.input_tokenizer",
)  # fmt: skip
_REWARD = (
    'put the function into a module and name it: reward: "my_rewards:compute_score" (the signature of verl is accepted)'
)
_COMPOSED = "it names files that are not read; import the composed configuration (verl prints it with --cfg job)"
_ADVICE = {
    "defaults": _COMPOSED,
    "trainer.total_epochs": "a run is counted in steps: reinforcement.steps (tasks × epochs / tasks_per_step)",
    "data.max_prompt_length": "prompts are not cut; a task whose prompt does not fit is left out and counted",
    "data.shuffle": "training tasks are always shuffled",
    "data.train_max_samples": "keep the rows of interest in the file",
    "custom_reward_function.path": _REWARD,
    "custom_reward_function.name": _REWARD,
    "reward_model.enable": "reward: {name: reward_model, path: …}",
    "reward_model.model.path": "reward: {name: reward_model, path: …}",
    "reward_model.reward_manager": _REWARD,
    "reward_manager.name": _REWARD,
    "reward_model.sandbox_fusion.url": "reward: unit_tests runs programs in a built-in sandbox",
    f"{_TURNS}.tool_config_path": 'tools are typed functions: environment.tools: ["my_tools:NAME"]',
    f"{_TURNS}.interaction_config_path": "a simulated user is environment.user; see docs/environments.md",
    f"{_TURNS}.max_user_turns": "environment.max_turns limits the turns of the model",
    f"{ROLLOUT}.agent.agent_loop_config_path": "an agent with its own loop is environment: agent; see docs/agents.md",
    f"{MODEL}.custom_chat_template": "chat.format names a tool-call format; the template comes with the model",
    f"{MODEL}.override_config": "the configuration is read from the folder of the model (policy.path)",
    f"{MODEL}.exclude_modules": "policy.lora.target_modules names the modules that have adapters",
    "data.truncation": "prompts are not cut; a task whose prompt does not fit is left out and counted",
    f"{ROLLOUT}.val_kwargs.top_p": "evaluations at a temperature above 0 are sampled with rollout.top_p",
    f"{ROLLOUT}.val_kwargs.top_k": "evaluations at a temperature above 0 are sampled with rollout.top_k",
    "async_training": "sampling ahead of training is reinforcement.admit_ahead and reinforcement.max_staleness",
    "reward_model.reward_kwargs": _REWARD,
    f"{ACTOR}.optim.betas": "AdamW has its usual coefficients",
    f"{ACTOR}.policy_loss.loss_mode": "objective: my_package:my_loss",
}
VERL = Library(
    "verl",
    _RULES,
    _NO_EFFECT,
    _ADVICE,
    off={
        f"{ACTOR}.optim.betas": [0.9, 0.999], f"{ACTOR}.tau_pos": 1.0, f"{ACTOR}.tau_neg": 1.05,
        f"{ACTOR}.policy_loss.clip_cov_ratio": 0.0002, f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
        f"{ACTOR}.policy_loss.clip_cov_ub": 5.0, f"{ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
        f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1, f"{ROLLOUT}.val_kwargs.top_p": 1.0,
        f"{_TURNS}.tool_response_truncate_side": "middle", "data.truncation": "error",
        "algorithm.pf_ppo.reweight_method": "pow", "algorithm.pf_ppo.weight_pow": 2.0,
        "algorithm.rollout_correction.loss_type": "ppo_clip", "data.shuffle": True, f"{ROLLOUT}.do_sample": True,
        "reward_model.reward_manager": "naive", "reward_manager.name": "naive", "reward_manager.source": "register",
        "custom_reward_function.name": "compute_score", f"{ACTOR}.router_replay.mode": "disabled",
        "reward_model.model.path": "~/models/FsfairX-LLaMA3-RM-v0.1", "critic.optim.optimizer": "AdamW",
        "critic.optim.optimizer_impl": "torch.optim", "critic.optim.weight_decay": 0.01, "critic.ppo_epochs": 1,
        "critic.optim.betas": [0.9, 0.999], "critic.optim.clip_grad": 1.0, "critic.optim.num_cycles": 0.5,
        "critic.optim.lr_scheduler_type": "constant", "critic.grad_clip": 1.0, "critic.ppo_mini_batch_size": 256,
        "critic.loss_agg_mode": "token-mean",
    },
    defaults={
        "algorithm.adv_estimator": "gae", "data.train_batch_size": 1024, "data.max_response_length": 512,
        f"{ACTOR}.optim.lr": 1e-6, f"{ACTOR}.optim.weight_decay": 0.01, f"{ACTOR}.optim.lr_scheduler_type": "constant",
        f"{ACTOR}.ppo_mini_batch_size": 256, f"{ROLLOUT}.n": 1, "trainer.total_epochs": 30,
        f"{ACTOR}.clip_ratio": lambda keys: 0.2 if keys.get(f"{ACTOR}.policy_loss.loss_mode") == "gspo" else None,
        f"{ACTOR}.clip_ratio_c": 3.0,
        f"{MODEL}.lora_alpha": lambda keys: 16 if keys.get(f"{MODEL}.lora_rank") else None,
    },
    default_on=frozenset({"data.shuffle", f"{ROLLOUT}.do_sample"}),
)  # fmt: skip
