"""Names of earlier releases that users type or that runs store: recipe keys, values, components, options and metrics.

A recipe with an old name is refused with the new one. The stored recipe of a run is converted when it is read, so that
a run of an earlier release can be evaluated, resumed and viewed; see `recipe.upgrade`. Rows of metrics are converted by
`upgrade_metrics`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

STAGES = (
    "pretraining", "sampling", "supervised", "preference", "offline", "reward_model",
    "distillation", "reinforcement", "live",
)  # fmt: skip
"""Kinds of stages; `STAGE` in a key means any of them."""

RECIPE_KEYS: Mapping[str, str] = {
    "training": "reinforcement",
    "modulation": "advantage_transforms",
    "filters": "credit_filters",
    "rollout.refill": "rollout.dynamic_sampling",
    "rollout.inject": "rollout.replay",
    "rollout.select": "rollout.trajectory_filters",
    "rollout.views": "rollout.context_transforms",
    "rollout.on_view_overflow": "rollout.on_context_overflow",
    "rollout.partner": "rollout.environment_wrapper",
    "rollout.stop": "rollout.stop_strings",
    "rollout.stops": "rollout.early_stopping",
    "rollout.allocate": "rollout.budget_allocation",
    "rollout.start": "rollout.start_states",
    "rollout.rewrites": "rollout.context_rewrites",
    "STAGE.precision": "policy.dtype",
    "STAGE.max_gradient_norm": "STAGE.max_grad_norm",
    "STAGE.share_prefixes": "STAGE.prefix_sharing",
    "STAGE.logit_megabytes": "STAGE.logits_memory_mb",
    "STAGE.max_nonfinite": "STAGE.max_nonfinite_updates",
    "sampling.max_faults": "sampling.max_failures",
    "distillation.max_faults": "distillation.max_failures",
    "distillation.max_mismatch": "distillation.max_mismatch_kl",
    "reinforcement.max_faults": "reinforcement.max_failures",
    "reinforcement.max_mismatch": "reinforcement.max_mismatch_kl",
    "policy.tiny.vocabulary": "policy.tiny.vocab_size",
    "policy.tiny.hidden": "policy.tiny.hidden_size",
    "policy.tiny.layers": "policy.tiny.num_layers",
    "policy.tiny.heads": "policy.tiny.num_heads",
    "policy.tiny.intermediate": "policy.tiny.intermediate_size",
    "policy.lora.targets": "policy.lora.target_modules",
    "policy.frozen": "policy.freeze",
    "critic.slow_rate": "critic.target_update_rate",
    "critic.detached": "critic.detach_backbone",
    "critic.warm_up": "critic.warmup_updates",
    "critic.ensemble": "critic.ensemble_size",
    "critic.strength": "critic.pessimism_coef",
    "evaluation.every": "evaluation.interval_steps",
    "evaluation.during": "evaluation.interval_episodes",
    "STAGE.until.measure": "STAGE.until.monitor",
    "STAGE.until.least": "STAGE.until.min_delta",
    "STAGE.data.best": "STAGE.data.top_k_per_task",
    "STAGE.data.distinct": "STAGE.data.deduplicate",
    "STAGE.data.clean": "STAGE.data.well_formed_only",
    "STAGE.data.joined": "STAGE.data.stitched",
    "STAGE.data.balanced": "STAGE.data.balance_tasks",
    "STAGE.data.learn_from": "STAGE.data.train_on",
    "STAGE.data.stage": "STAGE.data.from_stage",
    "STAGE.checkpoint_every": "STAGE.checkpoint_interval_steps",
    "STAGE.keep_every": "STAGE.keep_interval_steps",
    "offline.held_out_every": "offline.held_out_interval_steps",
    "offline.smoothness": "offline.consistency_regularization",
    "reinforcement.smoothness": "reinforcement.consistency_regularization",
    "reinforcement.stored": "reinforcement.offline_mixture",
    "reinforcement.offline_mixture.share": "reinforcement.offline_mixture.fraction",
    "reinforcement.offline_mixture.use": "reinforcement.offline_mixture.mode",
    "reinforcement.offline_mixture.prefer": "reinforcement.offline_mixture.sampling",
    "reinforcement.offline_mixture.strength": "reinforcement.offline_mixture.sampling_strength",
    "reinforcement.offline_mixture.data.best": "reinforcement.offline_mixture.data.top_k_per_task",
    "reinforcement.offline_mixture.data.distinct": "reinforcement.offline_mixture.data.deduplicate",
    "reinforcement.offline_mixture.data.clean": "reinforcement.offline_mixture.data.well_formed_only",
    "reinforcement.offline_mixture.data.joined": "reinforcement.offline_mixture.data.stitched",
    "reinforcement.offline_mixture.data.balanced": "reinforcement.offline_mixture.data.balance_tasks",
    "reinforcement.offline_mixture.data.learn_from": "reinforcement.offline_mixture.data.train_on",
    "reinforcement.offline_mixture.data.stage": "reinforcement.offline_mixture.data.from_stage",
    "shaping": "reward_shaping",
    "correction": "importance_correction",
    "columns": "custom_columns",
    "roles": "role_tag",
    "process_model": "implicit_prm",
    "teacher.hint": "teacher.privileged_context",
    "environment.noise": "environment.fault_injection",
    "environment.fault_injection.errors": "environment.fault_injection.error_rate",
    "environment.fault_injection.outdated": "environment.fault_injection.stale_rate",
    "models.NAME.key_variable": "models.NAME.api_key_env",
    "memory": "init_state_from",
    "rounds": "repeat_stages",
    "scale.environment_workers_most": "scale.max_environment_workers",
    "scale.engine_replicas_most": "scale.max_engine_replicas",
    "scale.start_seconds": "scale.start_timeout_seconds",
    "scale.mirror": "scale.mirror_url",
    "scale.mirror_seconds": "scale.mirror_interval_seconds",
    "live.guard.every": "live.guard.interval_updates",
    "live.guard.drop": "live.guard.max_drop",
    "live.approve": "live.require_approval",
    "live.replay": "live.replay_turns",
}
"""Old key → new key, dotted. `NAME` means any key of a mapping by name. A key below a renamed key is listed with its
new parent: `offline_mixture.share`, not `stored.share`."""

RECIPE_VALUES: Mapping[str, Mapping[str, str]] = {
    "reinforcement.offline_mixture.mode": {
        "together": "joint",
        "critic": "critic_only",
        "alternate": "alternating",
    },
    "reinforcement.offline_mixture.sampling": {"even": "uniform"},
}
"""New key, dotted as in `RECIPE_KEYS` → old value → new value."""

COMPONENTS: Mapping[str, Mapping[str, str]] = {
    "advantage": {"one_step": "one_step_td", "role_normalised": "role_normalized"},
    "advantage transform": {
        "balanced": "famo2o",
        "behind_first_attempt": "after_first_attempt",
        "replay_band": "probability_band",
        "second_moment": "m2po",
    },
    "context transform": {"chosen_examples": "example_selection"},
    "curriculum": {"chosen": "task_subset", "generated": "generated_tasks"},
    "dynamic sampling": {"informative": "nonzero_variance"},
    "environment": {"advised": "advisor", "dealing": "bargaining", "encyclopaedia": "multi_hop_search"},
    "objective": {"distilled": "on_policy_distillation", "distilled_now": "importance_weighted_distillation"},
    "reward": {
        "calls_ran": "executed_calls",
        "followed": "expert_match",
        "learned": "reward_model",
        "outcome_and_form": "outcome_and_format",
        "preferences": "user_preferences",
        "preferred": "pairwise_judge",
        "reported_answer": "submitted_answer",
        "retail": "tau2",
        "signed": "plus_minus_one",
        "verified": "rule_then_judge",
        "written": "generated_code",
    },
    "reward shaping": {"second_attempt_alone": "second_attempt_only"},
    "start": {"own_prefix": "replay_prefix"},
    "stop": {"lagging": "stragglers", "spent": "budget_exhausted"},
    "strategy": {"forked": "random_branching", "probed": "doubt_injection", "revised": "revised_trajectories"},
    "task source": {"dealing": "bargaining", "encyclopaedia": "multi_hop_search"},
    "tool": {"catalogue": "catalog"},
    "trajectory filter": {"balanced": "balanced_outcomes", "surprising": "rare_successes"},
}
"""Kind of a component, as in error messages → old name → new name."""

COMPONENT_KEYS: Mapping[str, str] = {
    "advantage": "advantage",
    "advantage_transforms": "advantage transform",
    "credit_filters": "credit filter",
    "curriculum": "curriculum",
    "distillation.objective": "objective",
    "environment": "environment",
    "evaluation.strategy": "strategy",
    "importance_correction": "importance correction",
    "objective": "objective",
    "preference.objective": "objective",
    "reward": "reward",
    "reward_shaping": "reward shaping",
    "rollout.budget_allocation": "allocation",
    "rollout.context_rewrites": "rewrite",
    "rollout.context_transforms": "context transform",
    "rollout.dynamic_sampling": "dynamic sampling",
    "rollout.early_stopping": "stop",
    "rollout.environment_wrapper": "environment wrapper",
    "rollout.replay": "replay",
    "rollout.start_states": "start",
    "rollout.strategy": "strategy",
    "rollout.trajectory_filters": "trajectory filter",
    "tasks": "task source",
}
"""Recipe key whose value names components → their kind."""

COMPONENTS_WITHIN: Mapping[str, Mapping[str, str]] = {
    "context transform": {"proposer": "proposer"},
    "environment": {"tools": "tool", "user": "user", "world": "environment"},
    "reward": {"base_reward": "reward", "judge": "judge", "outcome": "reward", "terms": "reward"},
    "strategy": {"verifier": "reward"},
}
"""Kind of a component → option of such a component that names components, of this release → their kind."""

_HELD_OUT = {"held_out_share": "held_out_fraction"}
_BAD_ROW = {"on_bad_task": "on_bad_row"}
COMPONENT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "advantage_weighted": {"weight_max": "max_weight"},
    "advisor": {"every": "actions_per_advice"},
    "agentgym": {"whole": "full_text"},
    "bfcl_memory": _HELD_OUT,
    "bfcl_multi_turn": _HELD_OUT,
    "by_success": {"least_turns": "min_turns"},
    "catalog": {"count": "results_per_search", "most": "max_visible", "ways": "selected_by"},
    "cispo": {"ratio_max": "max_ratio", "ratio_min": "min_ratio"},
    "clip_cov": {"share": "fraction"},
    "dpo": {"normalise_length": "normalize_length"},
    "endpoint": {"key_variable": "api_key_env", "tries": "max_attempts"},
    "entropy_modulated": {"least_range": "min_range"},
    "evidence": {"most": "max_steps"},
    "executed_calls": {"share": "partial_credit"},
    "experience": {"least": "min_entries", "routine_share": "routine_fraction"},
    "expert_prefix": {"until": "anneal_updates"},
    "famo2o": {"least": "min_coef", "most": "max_coef", "weight_max": "max_weight"},
    "few_calls": {"most": "max_calls"},
    "fewest_turns": {"most": "max_turns"},
    "file": _HELD_OUT | _BAD_ROW,
    "function_calls": _HELD_OUT | _BAD_ROW,
    "generated_code": {"beside": "outcome_weight"},
    "generated_tasks": {"share": "generated_fraction"},
    "gsm8k": _BAD_ROW,
    "high_entropy_turns": {"share": "fraction"},
    "horizon_stages": {"every": "updates_per_stage"},
    "huggingface": _HELD_OUT,
    "human": {"key_variable": "api_key_env"},
    "humaneval": _HELD_OUT | _BAD_ROW,
    "ikea": {"most": "max_searches", "tried": "attempt_reward"},
    "image": {"most_side": "max_side"},
    "instructions": {"every": "interval_updates", "most": "max_instructions"},
    "ipo": {"normalise_length": "normalize_length"},
    "jsonl": _HELD_OUT | _BAD_ROW,
    "kl_cov": {"share": "fraction"},
    "lessons": {"most": "max_lessons"},
    "mcp": {"ahead": "prewarm", "only": "include"},
    "models": {"only": "include"},
    "nemo_gym": _HELD_OUT,
    "nonzero_variance": {"of": "signal", "spread": "min_std"},
    "notes": {"most": "max_notes", "most_characters": "max_characters"},
    "openapi": {"only": "include"},
    "openenv": {"shown": "observation_field", "whole": "full_text"},
    "otc": {"alone": "per_episode", "fewest": "min_calls_key"},
    "pair_caps": {"most": "max_per_outcome"},
    "pairwise_judge": {"beside": "base_reward"},
    "parquet": _HELD_OUT,
    "pattern": {"whole": "full_match"},
    "replay_prefix": {"of_each": "max_per_task", "until": "anneal_updates"},
    "resample_on_correct": {"least_negative": "min_failures", "least_positive": "min_successes"},
    "revised_trajectories": {"most": "max_revisions"},
    "reward_model": {"beside": "outcome_weight"},
    "rollback": {"untouched": "skip_fraction"},
    "rubric": {"shown": "num_guided"},
    "rules": {"beside": "base_reward", "beside_weight": "base_weight"},
    "scripted": {"tries": "max_attempts"},
    "self_imitation": {"oldest": "max_age_updates"},
    "sql_result": {"most_rows": "max_rows"},
    "stages": {"every": "max_updates_per_stage"},
    "state": {"share": "partial_credit"},
    "stragglers": {"share": "finished_fraction"},
    "success_replay": {"admit": "min_reward", "of_each": "max_per_task", "oldest": "max_age_updates"},
    "summary": {"most": "max_summaries"},
    "tool_rl": {"grain": "match"},
    "unit_tests": {"share": "partial_credit"},
    "verifiers": _HELD_OUT,
    "zero_variance": {"least_std": "min_std"},
}
"""New name of a component → old option → new option."""

COMPONENT_OPTION_VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    **{name: {"on_bad_row": {"error": "stop"}} for name in ("file", "function_calls", "gsm8k", "humaneval", "jsonl")},
    "entropy_branching": {"measured": {"behind": "after_tool", "before": "before_tool"}},
    "balanced_branching": {"measured": {"behind": "after_tool", "before": "before_tool"}},
    "tool_rl": {"match": {"fine": "parameters"}},
}
"""New name of a component → new option → old value → new value."""

COMPONENT_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "context transform": {"loss": "trained_on"},
}
"""Kind of a component, as in error messages → old attribute of its class → new attribute."""

METRICS: Mapping[str, str] = {
    "loss": "loss/total",
    "policy/kl": "policy/update_kl",
    "policy/weight": "policy/sample_weight",
    "policy/likelihood": "policy/token_probability",
    "policy/clamped_fraction": "policy/log_ratio_clamped_fraction",
    "policy/outside_band": "policy/entropy_out_of_band_fraction",
    "correction/weight": "importance/weight_mean",
    "correction/changed_fraction": "importance/truncated_fraction",
    "value/error": "value/loss",
    "value/deviation": "value/ensemble_std",
    "credit/zero_fraction": "advantage/zero_fraction",
    "episode/new_segments": "episode/context_resets",
    "group/without_tokens": "group/empty",
    "group/too_long": "group/prompt_too_long",
    "update/over_budget": "update/oversized_micro_batches",
    "update/skipped": "update/skipped_fraction",
    "update/nonfinite": "update/nonfinite_fraction",
    "update/gradient_norm": "update/grad_norm",
    "demonstrations/left_out": "demonstrations/skipped_fraction",
    "data/left_out": "data/skipped_fraction",
    "preference/miss": "preference/regression_error",
    "held_out/divergence": "held_out/kl",
    "live/hinted": "live/hinted_fraction",
    "live/interventions": "live/intervention_fraction",
    "scale/on_tools_fraction": "scale/tool_wait_fraction",
    "scale/groups_taken_back": "scale/groups_reassigned",
    "scale/worker_utilisation": "scale/worker_utilization",
    "scale/replica_utilisation": "scale/replica_utilization",
    "scale/rerouted": "scale/requests_rerouted",
    "judge/questions": "judge/requests",
    "judge/asked_again": "judge/retries",
    "time/engine": "time/generation",
    "time/environment": "time/environment_wait_mean",
    "reward/incomplete": "reward/missing_component_fraction",
    "held_out/value_error": "held_out/value_loss",
}
"""Old metric → new metric."""

METRIC_PREFIXES: Mapping[str, str] = {
    "filter/": "credit_filters/",
    "stored/": "offline/",
    "smoothness/": "consistency/",
    "process_model/": "implicit_prm/",
    "second_pass/": "second_pass/",
}
"""Old prefix → new prefix of metrics whose last part is not fixed."""

_PREFIXES_OF_METRICS = ("stored/", "second_pass/")
"""Prefixes before the whole name of a metric: `stored/loss` is `offline/loss/total`."""

RECIPES: Mapping[str, str] = {"dealing": "bargaining"}
"""Old name of a recipe that comes with Whetstone → new name."""

_STORED: Mapping[str, str] = {
    "context_transforms.example_selection": "context_transforms.chosen_examples",
    "trajectory_filters.balanced_outcomes": "trajectory_filters.balanced",
    "trajectory_filters.rare_successes": "trajectory_filters.surprising",
}


def stored_name(name: str) -> str:
    """Return the name under which checkpoints store the state of a component and that seeds its random numbers.

    It never changes: it is the name of the release that introduced the component.
    """
    return _STORED.get(name, name)


def renamed_key(dotted: str) -> str | None:
    """Return the new name of a dotted recipe key of an earlier release, or None if the key was never renamed."""
    for old, new in RECIPE_KEYS.items():
        values = match_key(old.split("."), dotted.split("."))
        if values is not None:
            return ".".join(values.get(part, part) for part in new.split("."))
    return None


def match_key(pattern: list[str], path: list[str]) -> dict[str, str] | None:
    """Return the values of the placeholders of a pattern, or None if the path does not match it."""
    if len(pattern) != len(path):
        return None
    values = {}
    for expected, part in zip(pattern, path, strict=True):
        if expected == "NAME" or (expected == "STAGE" and part in STAGES):
            values[expected] = part
        elif expected != part:
            return None
    return values


@functools.cache
def renamed_metric(name: str) -> str | None:
    """Return the new name of a metric of an earlier release, or None if the metric was never renamed."""
    for old, new in METRIC_PREFIXES.items():
        if name.startswith(old):
            rest = name.removeprefix(old)
            renamed = new + (METRICS.get(rest, rest) if old in _PREFIXES_OF_METRICS else rest)
            return None if renamed == name else renamed
    return METRICS.get(name)


def upgrade_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics with the names of this release. If a row has both names of a metric, the new one wins."""
    upgraded = {renamed_metric(name) or name: value for name, value in row.items()}
    return upgraded | {name: value for name, value in row.items() if renamed_metric(name) is None}
