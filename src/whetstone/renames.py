"""Names of earlier releases that users type or that runs store: recipe keys, values, components and their options.

A recipe with an old name is refused with the new one. The stored recipe of a run is converted when it is read, so that
a run of an earlier release can be evaluated, resumed and viewed; see `recipe.upgrade`.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    "STAGE.precision": "policy.dtype",
    "evaluation.every": "evaluation.interval_steps",
    "evaluation.during": "evaluation.interval_episodes",
    "models.NAME.key_variable": "models.NAME.api_key_env",
}
"""Old key → new key, dotted. `NAME` stands for any key of a mapping by name. A key
below a renamed key is listed with its new parent: `offline_mixture.share`, not `stored.share`."""

RECIPE_VALUES: Mapping[str, Mapping[str, str]] = {}
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
    "shaping": {"second_attempt_alone": "second_attempt_only"},
    "start": {"own_prefix": "replay_prefix"},
    "stop": {"lagging": "stragglers", "spent": "budget_exhausted"},
    "strategy": {"forked": "random_branching", "probed": "doubt_injection", "revised": "revised_trajectories"},
    "task source": {"dealing": "bargaining", "encyclopaedia": "multi_hop_search"},
    "trajectory filter": {"balanced": "balanced_outcomes", "surprising": "rare_successes"},
}
"""Kind of a component, as in error messages → old name → new name."""

COMPONENT_KEYS: Mapping[str, str] = {
    "advantage": "advantage",
    "advantage_transforms": "advantage transform",
    "correction": "correction",
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
    "rollout.allocate": "allocation",
    "rollout.budget_allocation": "allocation",
    "rollout.context_rewrites": "rewrite",
    "rollout.context_transforms": "context transform",
    "rollout.dynamic_sampling": "dynamic sampling",
    "rollout.early_stopping": "stop",
    "rollout.environment_wrapper": "environment wrapper",
    "rollout.replay": "replay",
    "rollout.rewrites": "rewrite",
    "rollout.start": "start",
    "rollout.start_states": "start",
    "rollout.stops": "stop",
    "rollout.strategy": "strategy",
    "rollout.trajectory_filters": "trajectory filter",
    "shaping": "shaping",
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
COMPONENT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "advantage_weighted": {"weight_max": "max_weight"},
    "advisor": {"every": "actions_per_advice"},
    "agentgym": {"whole": "full_text"},
    "bfcl_memory": _HELD_OUT,
    "bfcl_multi_turn": _HELD_OUT,
    "by_success": {"least_turns": "min_turns"},
    "catalogue": {"count": "results_per_search", "most": "max_visible", "ways": "selected_by"},
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
    "file": _HELD_OUT,
    "function_calls": _HELD_OUT,
    "generated_code": {"beside": "outcome_weight"},
    "generated_tasks": {"share": "generated_fraction"},
    "high_entropy_turns": {"share": "fraction"},
    "horizon_stages": {"every": "updates_per_stage"},
    "huggingface": _HELD_OUT,
    "human": {"key_variable": "api_key_env"},
    "humaneval": _HELD_OUT,
    "ikea": {"most": "max_searches", "tried": "attempt_reward"},
    "image": {"most_side": "max_side"},
    "instructions": {"every": "interval_updates", "most": "max_instructions"},
    "ipo": {"normalise_length": "normalize_length"},
    "jsonl": _HELD_OUT,
    "kl_cov": {"share": "fraction"},
    "lessons": {"most": "max_lessons"},
    "mcp": {"ahead": "prewarm", "only": "include"},
    "models": {"only": "include"},
    "nemo_gym": _HELD_OUT,
    "nonzero_variance": {"of": "signal", "spread": "min_std"},
    "notes": {"most": "max_notes", "most_characters": "max_characters"},
    "openapi": {"only": "include"},
    "openenv": {"whole": "full_text"},
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
    "rules": {"beside": "base_reward", "beside_weight": "base_weight"},
    "scripted": {"tries": "max_attempts"},
    "self_imitation": {"oldest": "max_age_updates"},
    "sql_result": {"most_rows": "max_rows"},
    "stages": {"every": "max_updates_per_stage"},
    "state": {"share": "partial_credit"},
    "stragglers": {"share": "finished_fraction"},
    "success_replay": {"admit": "min_reward", "of_each": "max_per_task", "oldest": "max_age_updates"},
    "summary": {"most": "max_summaries"},
    "unit_tests": {"share": "partial_credit"},
    "verifiers": _HELD_OUT,
    "zero_variance": {"least_std": "min_std"},
}
"""New name of a component → old option → new option."""

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
