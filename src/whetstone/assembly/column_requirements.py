"""Does a run produce what its estimators read? Asked before anything is sampled, answered with who would provide it.

Easy to get wrong: an estimator without its input must not run on zeros. A missing turn reward, tree or critic is an
error in one line, not a method that silently is another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from whetstone.learning.columns import MADE_BY_THE_RUN, READ_AT
from whetstone.recipe import Recipe
from whetstone.tasks import Source

_FROM_REWARDS = {
    "process_rewards": "rewards of turns",
    "matched": "whether each turn matched an expert's",
    "tags": "the kind of thought of each turn",
    "progress": "the share of subgoals reached in front of each turn",
    "action_rewards": "how good an episode's calls were",
}
_BUILT_IN = {
    "process_rewards": "matched_calls, meta_reasoning",
    "matched": "matched_calls",
    "progress": "matched_calls",
    "action_rewards": "matched_calls",
    "tags": "meta_reasoning",
}
PROVIDERS = {
    "values, twin_values, potentials": "`critic`, asked in front of each turn's first token",
    "action_values, twin_action_values, contributions": "`critic`, asked in front of each turn's last token",
    "token_values": "`critic`, asked in front of every action token",
    "slow_…, last_…": "slow copies of critics; what they say behind a turn that a limit cut off",
    "process_rewards": "a reward that scores turns: `matched_calls`, `meta_reasoning`",
    "matched, progress, action_rewards": "`reward: matched_calls`",
    "tags": "`reward: meta_reasoning`",
    "nodes": "a strategy that forks: `rollout.strategy: forked`",
    "greedy_rewards": "`rollout.strategy: greedy_baseline`",
    "answer_beliefs": "tasks with a gold answer (private `answer`); costs a scoring pass",
    "implicit": "`process_model`, a second model that learns",
    "teacher_logprobs": "`teacher`, a folder",
    "reference_logprobs": "every run; the policy reinforcement began with",
    "roles": "`rollout.strategy: self_play`, the seat; or `roles: TAG`, a tag of the tasks; or both",
    "hardness": "tasks with a number for their tag `difficulty`",
}
"""Columns that need more than a run, and what gives them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a run produces beside what every run does."""

    recipe: Recipe
    source: Source
    reward: frozenset[str]
    """What the reward says its scores carry."""
    strategy: frozenset[str]
    """What the strategy says its groups carry: `forks`, `greedy_rewards`, `process_rewards`, `roles`."""


def missing(columns: Iterable[str], offer: Offer) -> Iterator[tuple[str, str]]:
    """(column, who would provide it) for each that the run does not produce."""
    for name in columns:
        said = _missing(name, offer)
        if said is not None:
            yield name, said


def _missing(name: str, offer: Offer) -> str | None:
    recipe = offer.recipe
    if name.removeprefix("last_").removeprefix("slow_") in READ_AT:
        return None if recipe.critic is not None else "a critic would say it: set critic: {}"
    if name == "nodes":
        return None if "forks" in offer.strategy else "a strategy that forks makes trees: rollout.strategy: forked"
    if name == "greedy_rewards":
        if "greedy_rewards" in offer.strategy:
            return None
        return "rollout.strategy: greedy_baseline plays each task once without chance"
    if name == "roles":
        return _roles(recipe, offer)
    if name == "hardness":
        tag = offer.source.task(0).tags.get("difficulty", "")
        return None if _is_number(tag) else f'tasks.source "{recipe.tasks.source}" tags no task with a difficulty'
    if name == "answer_beliefs":
        if "answer" in offer.source.task(0).private:
            return None
        return f'tasks.source "{recipe.tasks.source}" knows no gold answer (private `answer`)'
    if name in ("implicit", "model_logprobs"):
        return None if recipe.process_model is not None else "a second model would say it: set process_model: {}"
    if name == "teacher_logprobs":
        return None if recipe.teacher is not None else "set teacher: {path: FOLDER} with the same tokenizer"
    if name in offer.reward or name in MADE_BY_THE_RUN or (name == "process_rewards" and name in offer.strategy):
        return None
    what = _FROM_REWARDS.get(name, f"a signal or part named {name}")
    known = f"{_BUILT_IN[name]}, or " if name in _BUILT_IN else ""
    return (
        f'reward "{recipe.reward.name}" does not provide {what}; one that does: {known}'
        f'your own, marked @provides("{name}")'
    )


def _roles(recipe: Recipe, offer: Offer) -> str | None:
    if recipe.roles is None:
        if "roles" in offer.strategy:
            return None
        return "play in seats (rollout.strategy: self_play), or set roles: TAG to the task tag that names the role"
    tags = offer.source.task(0).tags
    if recipe.roles in tags:
        return None
    return f'roles: no tag "{recipe.roles}" on tasks of "{recipe.tasks.source}", which have {", ".join(sorted(tags))}'


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
