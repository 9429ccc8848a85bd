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
"""Kinds of stages, which `STAGE` stands for in a key."""

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
"""Old key → new key, dotted. `NAME` stands for any key of a mapping by name. A key
below a renamed key is listed with its new parent: `offline_mixture.share`, not `stored.share`."""

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
    "reward": {"retail": "tau2"},
}
"""Kind of a component, as in error messages → old name → new name."""

COMPONENT_KEYS: Mapping[str, str] = {
    "reward": "reward",
    "rollout.strategy": "strategy",
}
"""Recipe key whose value names components → their kind."""

COMPONENT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "tool_rl": {"grain": "match"},
}
"""New name of a component → old option → new option."""

COMPONENT_OPTION_VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
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


def renamed_key(dotted: str) -> str | None:
    """Return the new name of a dotted recipe key of an earlier release, or None if the key was never renamed."""
    for old, new in RECIPE_KEYS.items():
        values = match_key(old.split("."), dotted.split("."))
        if values is not None:
            return ".".join(values.get(part, part) for part in new.split("."))
    return None


def match_key(pattern: list[str], path: list[str]) -> dict[str, str] | None:
    """Return what the placeholders of a pattern stand for, or None if the path does not match it."""
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
