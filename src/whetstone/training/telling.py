"""How is what a run came to said in a line? Its success, what it learned by, how fast it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whetstone.causes import listed
from whetstone.recipe import OfflineSettings, PreferenceSettings, PretrainingSettings, Recipe, SupervisedSettings

WITHOUT_USE = {
    "supervised": "demonstrations taught nothing",
    "preference": "answers are left out",
    "offline": "episodes are left out",
}
"""By stage, what became of those it does not learn from."""


def headline(evaluation: Mapping[str, Any]) -> str:
    """`success 71.2 % (95 % interval 67.1 to 75.0, 500 episodes)`, and what kept others from being scored."""
    low, high = evaluation["interval"]
    episodes, invalid, causes = evaluation["episodes"], evaluation["invalid"], evaluation.get("causes") or {}
    why = f"; {invalid} of {episodes + invalid} episodes have no score: {listed(causes)}" if causes else ""
    if evaluation.get("too_long"):
        why += f"; {evaluation['too_long']} tasks are left out: their prompts leave no room in the model's context"
    if evaluation["success"] is None:
        return f"success unknown: no episode could be scored{why}"
    success = 100 * evaluation["success"]
    return f"success {success:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}, {episodes} episodes){why}"


def method_of(recipe: Recipe) -> dict[str, str]:
    """What reinforcement was made of, by name."""
    if recipe.reinforcement is None:
        return _without_sampling(recipe)
    return {
        "paper": recipe.paper,
        "advantage": recipe.advantage.name,
        "objective": recipe.objective.name,
        "strategy": recipe.rollout.strategy.name,
        "reward": recipe.reward.name,
        "updates": f"{recipe.reinforcement.steps} of {recipe.reinforcement.tasks_per_step} tasks",
    }


def _without_sampling(recipe: Recipe) -> dict[str, str]:
    if recipe.supervised is not None and recipe.supervised.data is None:
        return {"imitation of": f"the expert of {recipe.tasks.source}", "paper": recipe.paper}
    stage, settings = list(recipe.own_stages.items())[-1]
    told = {"stage": stage, "paper": recipe.paper}
    if isinstance(settings, PreferenceSettings | OfflineSettings | PretrainingSettings | SupervisedSettings):
        told["data"] = settings.data.path if settings.data is not None else ""
    if isinstance(settings, PreferenceSettings):
        told["objective"] = settings.objective.name
    elif isinstance(settings, OfflineSettings):
        told |= {"advantage": recipe.advantage.name, "objective": recipe.objective.name}
    return told


def throughput(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean tokens per second of each stage."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        value = row.get("throughput/tokens_per_second")
        if value is not None:
            rates.setdefault(row["stage"], []).append(value)
    return {stage: sum(values) / len(values) for stage, values in rates.items()}
