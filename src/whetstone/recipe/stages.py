"""Which stages does a recipe have, and what is each as a recipe of its own?

A recipe of several stages is a chain of runs: each stage a recipe with one stage in it, begun with the weights the one
before ended with. The everyday pair, a warm-up and reinforcement, is one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whetstone.recipe.checking import CREDIT_KEYS, SAMPLING_KEYS
from whetstone.recipe.resolved import Resolved
from whetstone.recipe.settings import STAGE_KINDS, Recipe
from whetstone.recipe.stage_settings import OptimizerSettings
from whetstone.seeding import derive_seed

_PAIR = {"supervised", "reinforcement"}
_OWN = ("name", "adapters")
"""Keys of a stage that are none of a recipe."""
_TINY_RATE: float = OptimizerSettings.model_fields["learning_rate"].default


@dataclass(frozen=True, slots=True)
class NamedStage:
    """One stage of several."""

    name: str
    """`2-preference`: its number and its kind, or the name it was given."""
    resolved: Resolved
    """A recipe with this stage alone; its policy is still the one the whole begins with."""
    new_adapters: bool
    """Whether what adapters learned before is merged into the weights, and new ones begin."""


def stages_of(resolved: Resolved) -> list[NamedStage]:
    """The stages of a recipe that has several, in order, those of later rounds behind; none where it is one run.

    Raises:
        RecipeError: A stage says what no recipe can, or has a name twice.
    """
    recipe = resolved.recipe
    given: list[Mapping[str, Any]] = [dict(stage) for stage in recipe.stages]
    if not given:
        if len(recipe.own_stages) < 2 or (set(recipe.own_stages) == _PAIR and not _ends_early(recipe)):
            return []
        given = [{kind: {}} for kind in recipe.own_stages]
    found: list[NamedStage] = []
    for turn in range(recipe.rounds):
        for number, stage in enumerate(given):
            place = turn * len(given) + number
            one = _stage(resolved, stage, f"stages.{number}", place)
            if one.name in {other.name for other in found}:
                raise resolved.error(f"stages.{number}.name", f'"{one.name}" is the name of two stages')
            found.append(one)
    return found


def _ends_early(recipe: Recipe) -> bool:
    """Whether it is not known beforehand which step of the warm-up is its last; then it is a run of its own."""
    return recipe.supervised is not None and recipe.supervised.until is not None


def _stage(resolved: Resolved, stage: Mapping[str, Any], key: str, place: int) -> NamedStage:
    kind = next(kind for kind in STAGE_KINDS if kind in stage)
    adapters = stage.get("adapters", "kept")
    if adapters not in ("kept", "new"):
        raise resolved.error(f"{key}.adapters", f'"{adapters}" is neither kept nor new')
    if adapters == "new" and resolved.recipe.policy.lora is None:
        raise resolved.error(f"{key}.adapters", "has no effect: there are no adapters (policy.lora)")
    without: dict[str, Any] = {other: None for other in STAGE_KINDS if other != kind}
    without |= {"stages": None, "rounds": None, "ablations": None}
    without |= dict.fromkeys(SAMPLING_KEYS if kind != "reinforcement" else ())
    without |= dict.fromkeys(CREDIT_KEYS if kind not in ("reinforcement", "offline") else ())
    without |= {"teacher": None, "process_model": None} if kind not in ("reinforcement", "offline") else {}
    sections = {name: value for name, value in stage.items() if name not in _OWN}
    if not sections[kind]:  # it stands in the recipe itself
        del sections[kind]
    changed = resolved.with_changes(without, **sections)
    settings = getattr(changed.recipe, kind)
    more: dict[str, Any] = {"title": f"{resolved.recipe.title or resolved.name}: {kind}"}
    if place:  # what it samples and in which order it reads are other than those of the stages before
        more["seed"] = derive_seed(resolved.recipe.seed, "stage", place) % 2**31
    if "learning_rate" not in settings.model_fields_set:
        # it begins with a folder, whose rate would be that of a pretrained model
        more[f"{kind}.learning_rate"] = (
            settings.learning_rate if resolved.recipe.policy.path is not None else _TINY_RATE
        )
    own = stage.get("name")
    return NamedStage(f"{place + 1}-{own or kind}", changed.with_changes(more), adapters == "new")
