"""Configurations of TRL and of verl as recipes: what each key becomes, and which have no counterpart here.

Easy to get wrong: a key that is left out silently. Every key of the file is on a line of what is said: translated, of
no consequence for what is learned (logging, saving to a hub), or without a counterpart.

Source: TRL's `GRPOConfig`, https://huggingface.co/docs/trl/grpo_trainer; verl's `ppo_trainer.yaml`,
https://verl.readthedocs.io/en/latest/examples/config.html.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, did_you_mean
from whetstone.recipe.yaml_text import yaml_document

Keys = Mapping[str, Any]
"""The keys of a file, by their dotted paths."""


@dataclass(slots=True)
class Translation:
    """A recipe, and what became of each key of the file."""

    recipe: dict[str, Any] = field(default_factory=dict)
    """By dotted path."""
    translated: list[str] = field(default_factory=list)
    """`key: value → ours: value`"""
    missing: list[str] = field(default_factory=list)
    """Keys that would change what is learned and have no counterpart, with what to do."""
    unneeded: list[str] = field(default_factory=list)
    """Keys that change nothing of what is learned."""

    def nested(self) -> dict[str, Any]:
        """The recipe as it is written into a file."""
        found: dict[str, Any] = {}
        for path, value in self.recipe.items():
            *above, last = path.split(".")
            inner = found
            for key in above:
                inner = inner.setdefault(key, {})
            inner[last] = value
        return found


Rule = str | Callable[[Any, Keys], dict[str, Any]]
"""Our key for the same value, or a function of (value, all keys) to our keys; none of them where nothing is to be said.
"""


def translate(kind: str, keys: Keys) -> Translation:
    """The recipe a configuration means.

    Args:
        kind: `trl` or `verl`.
    """
    rules, unneeded, advice = _KINDS[kind]
    found = Translation({"policy.path": "policy", "tasks.source": "jsonl", "tasks.path": "tasks.jsonl"})
    found.recipe["reward"] = "exact_match"
    once = _learned_once(kind, keys)
    for key, value in keys.items():
        said = f"{key}: {json.dumps(value, default=str)}"
        if once and key in _CLIPS:
            found.unneeded.append(f"{said}: each batch is learned from once, so nothing is clipped")
        elif key in rules:
            rule = rules[key]
            ours = {rule: value} if isinstance(rule, str) else rule(value, keys)
            ours = {path: each for path, each in ours.items() if each is not None}
            found.recipe |= ours
            shown = ", ".join(f"{path}: {json.dumps(each)}" for path, each in ours.items())
            found.translated.append(f"{said} → {shown or 'what it is without it'}")
        elif any(key == name or key.startswith(f"{name}.") for name in unneeded) or value is None:
            found.unneeded.append(said)
        else:
            found.missing.append(f"{said}: {advice.get(key, 'no counterpart')}")
    return found


def _learned_once(kind: str, keys: Keys) -> bool:
    """Whether every ratio is 1: one pass over a batch that is one minibatch."""
    if kind == "trl":
        accumulated = int(keys.get("gradient_accumulation_steps") or 1)
        return int(keys.get("num_iterations") or 1) == 1 and int(keys.get("steps_per_generation") or 1) <= accumulated
    passes, whole = int(keys.get(f"{_ACTOR}.ppo_epochs") or 1), keys.get("data.train_batch_size")
    return passes == 1 and keys.get(f"{_ACTOR}.ppo_mini_batch_size", whole) == whole


def read_foreign(kind: str, path: Path) -> dict[str, Any]:
    """The keys of a configuration by dotted path: YAML, JSON, or Python with a dict or a call `GRPOConfig(…)`.

    Raises:
        RecipeError: There is no such file, it cannot be read, or it is not of that kind.
    """
    if not path.is_file():
        raise RecipeError(f"{path}: no such file")
    text = path.read_text(encoding="utf-8", errors="replace")
    read = _python(text, path) if path.suffix == ".py" else yaml_document(text, str(path), plain=True)
    if not isinstance(read, Mapping):
        raise RecipeError(f"{path}: a mapping of keys is expected, got {type(read).__name__}")
    keys = dict(_flat(read))
    rules = _KINDS[kind][0]
    if not any(key in rules for key in keys):
        other = next((name for name in _KINDS if name != kind and any(key in _KINDS[name][0] for key in keys)), "")
        near = f"; it looks like one of {other}: whetstone import {other} {path}" if other else ""
        first = next(iter(keys), "")
        raise RecipeError(f"{path}: no key of a configuration of {kind} in it{did_you_mean(first, rules)}{near}")
    return keys


def _flat(nested: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _python(text: str, path: Path) -> Any:
    """The literal keywords of the first `…Config(…)`, or the first dict; nothing is run."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"{path}:{error.lineno}  not Python: {error.msg}") from None
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Config"):
                return {each.arg: _literal(each.value) for each in node.keywords if each.arg}
            if isinstance(node, ast.Dict):
                return ast.literal_eval(node)
        except ValueError:
            continue
    raise RecipeError(f"{path}: no GRPOConfig(…) and no dict of literals in it")


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return f"<{ast.unparse(node)}>"


# ------------------------------------------------------------ TRL


def _trl_tasks(value: Any, keys: Keys) -> dict[str, Any]:
    """Prompts of an update: samples of all accumulated batches over the samples of a prompt, on one device."""
    accumulated = keys.get("steps_per_generation") or keys.get("gradient_accumulation_steps") or 1
    samples = int(keys.get("per_device_train_batch_size", 8)) * int(accumulated)
    return {"reinforcement.tasks_per_step": max(1, samples // int(keys.get("num_generations", 8)))}


def _trl_sync(value: Any, keys: Keys) -> dict[str, Any]:
    """A reference that moves along, with TRL's own defaults."""
    if not keys.get("sync_ref_model"):
        return {}
    return {
        "reinforcement.reference_sync_steps": int(keys.get("ref_model_sync_steps", 512)),
        "reinforcement.reference_mixup_alpha": float(keys.get("ref_model_mixup_alpha", 0.6)),
    }


def _trl_loss(value: Any, keys: Keys) -> dict[str, Any]:
    how = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "constant"}
    if value == "cispo":
        return {"objective.name": "cispo"}
    if value not in how:
        raise RecipeError(f"loss_type: {value}: no counterpart; there are {', '.join([*how, 'cispo'])}")
    ours = {"aggregation.mode": how[value]}
    return ours | ({"aggregation.tokens": int(keys.get("max_completion_length") or 256)} if value == "dr_grpo" else {})


def _trl_scale(value: Any, keys: Keys) -> dict[str, Any]:
    if value in ("batch",):
        return {"advantage.name": "batch_scaled"}
    return {"advantage.name": "group_relative", "advantage.scale": value not in (False, "none", "None")}


def _high(value: Any, keys: Keys) -> dict[str, Any]:
    return {"objective.name": _objective(keys), "objective.clip_high": value}


def _low(value: Any, keys: Keys) -> dict[str, Any]:
    above = keys.get("epsilon_high")
    return {
        "objective.name": _objective(keys), "objective.clip_low": value,
        "objective.clip_high": value if above is None else above,
    }  # fmt: skip


def _objective(keys: Keys) -> str:
    return "gspo" if keys.get("importance_sampling_level") == "sequence" else "clipped"


def _target_modules(value: Any, keys: Keys) -> dict[str, Any]:
    return {"policy.lora.target_modules": "all-linear" if value in ("all-linear", ["all-linear"]) else value}


def _schedule(value: Any, keys: Keys) -> dict[str, Any]:
    """Down to nothing over all that is behind the warm-up, or not at all."""
    warm = float(keys.get("warmup_ratio") or 0.0)
    falls = value in ("linear", "cosine")
    return {
        "reinforcement.decay": value if falls else None,
        "reinforcement.decay_fraction": 1.0 - warm if falls else 0.0,
        "reinforcement.warmup_fraction": warm,
    }


_TRL: Mapping[str, Rule] = {
    "model_name_or_path": "policy.path",
    "model_revision": "policy.revision",
    "trust_remote_code": "policy.trust_remote_code",
    "dtype": "policy.dtype",
    "torch_dtype": "policy.dtype",
    "lora_r": "policy.lora.rank",
    "lora_alpha": "policy.lora.alpha",
    "lora_target_modules": _target_modules,
    "seed": "seed",
    "learning_rate": "reinforcement.learning_rate",
    "max_steps": lambda value, keys: {"reinforcement.steps": value if value and value > 0 else None},
    "weight_decay": "reinforcement.weight_decay",
    "max_grad_norm": "reinforcement.max_grad_norm",
    "warmup_ratio": "reinforcement.warmup_fraction",
    "lr_scheduler_type": _schedule,
    "gradient_checkpointing": "reinforcement.activation_checkpointing",
    "save_steps": "reinforcement.checkpoint_interval_steps",
    "save_total_limit": "reinforcement.keep_last",
    "per_device_train_batch_size": _trl_tasks,
    "gradient_accumulation_steps": _trl_tasks,
    "steps_per_generation": _trl_tasks,
    "num_iterations": "reinforcement.epochs",
    "beta": "reinforcement.reference_kl",
    "sync_ref_model": _trl_sync,
    "ref_model_sync_steps": _trl_sync,
    "ref_model_mixup_alpha": _trl_sync,
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    "min_p": "rollout.min_p",
    "epsilon": _low,
    "epsilon_high": _high,
    "importance_sampling_level": lambda value, keys: {"objective.name": _objective(keys)},
    "loss_type": _trl_loss,
    "scale_rewards": _trl_scale,
    "mask_truncated_completions": lambda value, keys: {"credit_filters": ["overlong_filter"] if value else None},
    "eval_steps": "evaluation.interval_steps",
}
_TRL_UNNEEDED = (
    "output_dir", "report_to", "run_name", "logging_steps", "logging_strategy", "logging_first_step", "log_completions",
    "push_to_hub", "hub_model_id", "hub_strategy", "save_strategy", "eval_strategy", "do_eval", "do_train", "bf16",
    "fp16", "tf32", "attn_implementation", "use_vllm", "vllm_mode", "vllm_gpu_memory_utilization",
    "gradient_checkpointing_kwargs", "disable_tqdm", "overwrite_output_dir", "num_completions_to_print",
    "per_device_eval_batch_size", "use_peft", "remove_unused_columns", "dataloader_num_workers", "ddp_timeout",
)  # fmt: skip
_TRL_ADVICE = {
    "dataset_name": "put its rows into tasks.jsonl, or see docs/formats.md (tasks: {source: file, …})",
    "reward_funcs": "a reward is an async function of the episode: reward: my_package:my_reward",
    "reward_model_name_or_path": "reward: {name: reward_model, path: …}",
    "num_train_epochs": "a run is counted in updates: reinforcement.steps",
    "max_prompt_length": "prompts are not cut; a task that does not fit is left out and counted",
    "reward_weights": "reward: {name: composed, terms: …}",
}


# ------------------------------------------------------------ verl

_ESTIMATORS = {
    "grpo": "group_relative", "rloo": "leave_one_out", "gae": "token_gae", "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline", "opo": "opo", "grpo_passk": "pass_at_k",
}  # fmt: skip
_CLIPS = (
    "epsilon", "epsilon_high", "actor_rollout_ref.actor.clip_ratio", "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
)  # fmt: skip
_AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
}
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def _named(table: Mapping[str, str], ours: str, key: str) -> Rule:
    def rule(value: Any, keys: Keys) -> dict[str, Any]:
        if value not in table:
            raise RecipeError(f"{key}: {value}: no counterpart; there are {', '.join(table)}")
        return {ours: table[value]}

    return rule


def _verl_estimator(value: Any, keys: Keys) -> dict[str, Any]:
    rule = _named(_ESTIMATORS, "advantage.name", "algorithm.adv_estimator")
    assert callable(rule)
    ours = rule(value, keys)
    if value == "grpo":
        ours["advantage.scale"] = bool(keys.get("algorithm.norm_adv_by_std_in_grpo", True))
    if value == "gae":
        ours |= {"advantage.discount": keys.get("algorithm.gamma"), "advantage.trace": keys.get("algorithm.lam")}
        ours["critic"] = {}
    return ours


def _verl_minibatches(value: Any, keys: Keys) -> dict[str, Any]:
    whole = int(keys.get("data.train_batch_size", value))
    return {"reinforcement.minibatches": max(1, whole // int(value))}


def _verl_clip(value: Any, keys: Keys) -> dict[str, Any]:
    low, high = (keys.get(f"{_ACTOR}.clip_ratio_{side}", keys.get(f"{_ACTOR}.clip_ratio")) for side in ("low", "high"))
    return {"objective.name": "clipped", "objective.clip_low": low, "objective.clip_high": high}


def _verl_kl(value: Any, keys: Keys) -> dict[str, Any]:
    used = keys.get(f"{_ACTOR}.use_kl_loss", False)
    return {"reinforcement.reference_kl": keys.get(f"{_ACTOR}.kl_loss_coef", 0.001) if used else 0.0}


def _verl_file(value: Any, keys: Keys) -> dict[str, Any]:
    path = value[0] if isinstance(value, list) else value
    return {"tasks.source": "parquet", "tasks.path": str(path), "tasks.prompt": keys.get("data.prompt_key", "prompt")}


_VERL: Mapping[str, Rule] = {
    "data.train_files": _verl_file,
    "data.prompt_key": lambda value, keys: {"tasks.prompt": value} if "data.train_files" in keys else {},
    "data.train_batch_size": "reinforcement.tasks_per_step",
    "data.max_response_length": "rollout.max_new_tokens",
    "data.seed": "seed",
    "actor_rollout_ref.model.path": "policy.path",
    "actor_rollout_ref.model.trust_remote_code": "policy.trust_remote_code",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "reinforcement.activation_checkpointing",
    "actor_rollout_ref.model.lora_rank": lambda value, keys: {"policy.lora.rank": value or None},
    "actor_rollout_ref.model.lora_alpha": lambda value, keys: (
        {"policy.lora.alpha": value} if keys.get("actor_rollout_ref.model.lora_rank") else {}
    ),
    f"{_ACTOR}.optim.lr": "reinforcement.learning_rate",
    f"{_ACTOR}.optim.weight_decay": "reinforcement.weight_decay",
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": "reinforcement.warmup_fraction",
    f"{_ACTOR}.grad_clip": "reinforcement.max_grad_norm",
    f"{_ACTOR}.ppo_mini_batch_size": _verl_minibatches,
    f"{_ACTOR}.ppo_epochs": "reinforcement.epochs",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "reinforcement.micro_batch_tokens",
    f"{_ACTOR}.clip_ratio": _verl_clip,
    f"{_ACTOR}.clip_ratio_low": _verl_clip,
    f"{_ACTOR}.clip_ratio_high": _verl_clip,
    f"{_ACTOR}.use_kl_loss": _verl_kl,
    f"{_ACTOR}.kl_loss_coef": _verl_kl,
    f"{_ACTOR}.entropy_coeff": lambda value, keys: {"reinforcement.entropy.weight": value or None},
    f"{_ACTOR}.loss_agg_mode": _named(_AGGREGATIONS, "aggregation.mode", f"{_ACTOR}.loss_agg_mode"),
    f"{_ROLLOUT}.n": "rollout.group_size",
    f"{_ROLLOUT}.temperature": "rollout.temperature",
    f"{_ROLLOUT}.top_p": "rollout.top_p",
    f"{_ROLLOUT}.top_k": lambda value, keys: {"rollout.top_k": max(0, value or 0)},
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": "environment.max_turns",
    "algorithm.adv_estimator": _verl_estimator,
    "algorithm.gamma": lambda value, keys: {},
    "algorithm.lam": lambda value, keys: {},
    "algorithm.norm_adv_by_std_in_grpo": lambda value, keys: {},
    "trainer.total_training_steps": "reinforcement.steps",
    "trainer.save_freq": lambda value, keys: {
        "reinforcement.checkpoint_interval_steps": value if value and value > 0 else None
    },
    "trainer.test_freq": lambda value, keys: {"evaluation.interval_steps": value if value and value > 0 else None},
}
_VERL_UNNEEDED = (
    "trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir",
    "trainer.n_gpus_per_node", "trainer.nnodes", "trainer.resume_mode", "trainer.val_before_train", "ray_init",
    "ray_kwargs", f"{_ACTOR}.fsdp_config", f"{_ACTOR}.strategy", f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.use_dynamic_bsz", f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_ACTOR}.kl_loss_type",
    f"{_ROLLOUT}.name", f"{_ROLLOUT}.gpu_memory_utilization", f"{_ROLLOUT}.tensor_model_parallel_size",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{_ROLLOUT}.enforce_eager", f"{_ROLLOUT}.free_cache_engine",
    "actor_rollout_ref.ref", "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.model.use_remove_padding",
    f"{_ROLLOUT}.multi_turn.enable", f"{_ROLLOUT}.mode", "data.shuffle", "data.val_batch_size",
)  # fmt: skip
_VERL_ADVICE = {
    "trainer.total_epochs": "a run is counted in updates: reinforcement.steps",
    "data.val_files": "tasks.held_out_fraction keeps tasks for evaluation",
    "data.max_prompt_length": "prompts are not cut; a task that does not fit is left out and counted",
    "custom_reward_function.path": "a reward is an async function of the episode: reward: my_package:my_reward",
    f"{_ROLLOUT}.multi_turn.tool_config_path": "tools are typed functions: environment.tools: [my_package:my_tool]",
    "algorithm.use_kl_in_reward": "reinforcement.reference_kl puts the KL into the loss",
}
_KINDS: Mapping[str, tuple[Mapping[str, Rule], tuple[str, ...], Mapping[str, str]]] = {
    "trl": (_TRL, _TRL_UNNEEDED, _TRL_ADVICE),
    "verl": (_VERL, _VERL_UNNEEDED, _VERL_ADVICE),
}
