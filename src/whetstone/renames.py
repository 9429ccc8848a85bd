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
}
"""Old key → new key, dotted. `NAME` stands for any key of a mapping by name. A key
below a renamed key is listed with its new parent: `offline_mixture.share`, not `stored.share`."""

RECIPE_VALUES: Mapping[str, Mapping[str, str]] = {}
"""New key, dotted as in `RECIPE_KEYS` → old value → new value."""

COMPONENTS: Mapping[str, Mapping[str, str]] = {
    "reward": {"retail": "tau2"},
}
"""Kind of a component, as in error messages → old name → new name."""

COMPONENT_KEYS: Mapping[str, str] = {
    "reward": "reward",
}
"""Recipe key whose value names components → their kind."""

COMPONENT_OPTIONS: Mapping[str, Mapping[str, str]] = {}
"""New name of a component → old option → new option."""


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
