"""Stages of a multi-stage recipe, each as a recipe with a single stage.

A recipe of several stages is a chain of runs. Each stage starts with the final weights of the preceding one. The common
pair, a warm-up and reinforcement, is a single run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.errors import did_you_mean
from whetstone.recipe.resolved import Resolved
from whetstone.recipe.settings import MEMORY_NEW, SAMPLES, STAGE_KINDS, Recipe
from whetstone.recipe.stage_settings import OptimizerSettings, get_data
from whetstone.recipe.validation import CREDIT_KEYS, SAMPLING_KEYS
from whetstone.seeding import derive_seed

_PAIR = {"supervised", "reinforcement"}
_OWN_OBJECTIVE = ("preference", "objective")
"""(stage, key) of a stage with its own key for a key that others have at top level."""
REWARD_MODEL = "reward_model"
_UNUSED = "has no effect: no subsequent stage can use its scores"
_OWN = ("name", "adapters", "optional", "once")
"""Keys of a stage that are not recipe keys."""
_TINY_RATE: float = OptimizerSettings.model_fields["learning_rate"].default


@dataclass(frozen=True, slots=True)
class NamedStage:
    """Stage of a multi-stage recipe, which is run as a separate recipe."""

    name: str
    """Name of the stage: its number, and its kind or `name`, such as `2-preference`."""
    kind: str
    """Kind of the stage: its recipe key, such as `preference`."""
    resolved: Resolved
    """Recipe with only this stage; its policy is the initial policy of the whole recipe."""
    new_adapters: bool
    """Whether existing adapters are merged into the weights before the stage; the stage then starts new adapters or
    none."""
    reads: Mapping[str, str] = field(default_factory=dict)
    """Dotted key → earlier stage that provides its data: `supervised.data` → `1-sampling`."""


def list_stages(resolved: Resolved) -> list[NamedStage]:
    """Return the stages of a multi-stage recipe in order, including repeated rounds.

    Returns:
        The stages; empty if the recipe is a single run.

    Raises:
        RecipeError: If a stage has an invalid key, or two stages have the same name.
    """
    recipe = resolved.recipe
    stages: list[Mapping[str, Any]] = [dict(stage) for stage in recipe.stages]
    if not stages:
        if len(recipe.own_stages) < 2 or (set(recipe.own_stages) == _PAIR and not _ends_early(recipe)):
            for key, _ in _list_stage_names(resolved):
                raise resolved.error(key, "there is no preceding stage; put both into stages")
            if recipe.reward_model is not None:
                raise resolved.error(REWARD_MODEL, _UNUSED)
            return []
        stages = [{kind: {}} for kind in recipe.own_stages]
    stages = [stage for stage in stages if not _is_skipped(resolved, stage)]
    named_stages: list[NamedStage] = []
    for turn in range(recipe.repeat_stages):
        for number, stage in enumerate(stages):
            if turn and stage.get("once", False):
                continue
            place = len(named_stages)
            one = _stage(resolved, stage, f"stages.{number}", place)
            if one.name in {other.name for other in named_stages}:
                raise resolved.error(f"stages.{number}.name", f'"{one.name}" is the name of two stages')
            named = dict(_list_stage_names(one.resolved))
            reads = {
                key: _find_stage(resolved, f"stages.{number}.{key}", name, named_stages) for key, name in named.items()
            }
            if number == len(stages) - 1 and one.kind == REWARD_MODEL and turn == recipe.repeat_stages - 1:
                raise resolved.error(f"stages.{number}", _UNUSED)
            named_stages.append(replace(one, reads=reads))
    return named_stages


def _is_skipped(resolved: Resolved, stage: Mapping[str, Any]) -> bool:
    """Return whether an `optional` stage is left out of this recipe."""
    kind = next(kind for kind in STAGE_KINDS if kind in stage)
    return bool(stage.get("optional", False)) and kind not in resolved.recipe.own_stages


def _list_stage_names(resolved: Resolved) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, stage name) for each reference to another stage's episodes or reward model."""
    reward = resolved.recipe.reward
    yield from _list_scorer_names("reward", {"name": reward.name, **reward.options})
    for kind, settings in resolved.recipe.own_stages.items():
        data = get_data(settings)
        if data is not None and data.from_stage:
            yield f"{kind}.data", data.from_stage


def _list_scorer_names(key: str, part: Any) -> Iterator[tuple[str, str]]:
    """Yield references to stages in a reward, and in the rewards that it combines."""
    if isinstance(part, Mapping):
        if part.get("name") == "reward_model" and part.get("stage"):
            yield key, str(part["stage"])
        for below, value in part.items():
            yield from _list_scorer_names(f"{key}.{below}", value)


def _find_stage(resolved: Resolved, key: str, name: str, before: Sequence[NamedStage]) -> str:
    """Return the last preceding stage of a name or kind that provides episodes or a reward model.

    Raises:
        RecipeError: If there is no such stage.
    """
    kinds = (REWARD_MODEL,) if key.split(".")[2] == "reward" else SAMPLES
    what = "trains a scorer" if kinds == (REWARD_MODEL,) else "samples"
    sampled = [stage.name for stage in before if stage.kind in kinds]
    called = {each.partition("-")[2]: each for each in sampled}
    if name == "previous" and sampled:
        return sampled[-1]
    if name in called:
        return called[name]
    if not sampled:
        raise resolved.error(key, f"no stage before it {what} ({' or '.join(kinds)}), so there is nothing to read")
    known = ", ".join(["previous", *called])
    raise resolved.error(key, f'no stage "{name}" {what} before it; known are {known}{did_you_mean(name, called)}')


def _ends_early(recipe: Recipe) -> bool:
    """Return whether the warm-up may end before its last step.

    It is then a separate run, because its number of steps is not known in advance.
    """
    return recipe.supervised is not None and recipe.supervised.until is not None


def _stage(resolved: Resolved, stage: Mapping[str, Any], key: str, place: int) -> NamedStage:
    kind = next(kind for kind in STAGE_KINDS if kind in stage)
    adapters = stage.get("adapters", "kept")
    if adapters not in ("kept", "new", "merged"):
        raise resolved.error(f"{key}.adapters", f'must be kept, new or merged, got "{adapters}"')
    if adapters != "kept" and resolved.recipe.policy.lora is None:
        raise resolved.error(f"{key}.adapters", "has no effect: there are no adapters (policy.lora)")
    if adapters != "kept" and resolved.recipe.policy.lora is not None and resolved.recipe.policy.lora.quantization:
        problem = "4-bit weights cannot hold merged adapters exactly (policy.lora.quantization); use kept"
        raise resolved.error(f"{key}.adapters", problem)
    without: dict[str, Any] = {other: None for other in STAGE_KINDS if other != kind}
    without |= {"stages": None, "repeat_stages": None, "ablations": None}
    without |= dict.fromkeys(SAMPLING_KEYS if kind not in SAMPLES else ())
    without |= dict.fromkeys(CREDIT_KEYS if kind not in ("reinforcement", "offline") else ())
    without |= {"implicit_prm": None} if kind not in ("reinforcement", "offline") else {}
    without |= {"teacher": None} if kind not in ("reinforcement", "offline", "distillation") else {}
    # the first stage starts from the recipe's `init_state_from`; later ones from the preceding stage
    if place and "init_state_from" not in stage and resolved.recipe.init_state_from != [MEMORY_NEW]:
        without["init_state_from"] = None
    sections = {name: value for name, value in stage.items() if name not in _OWN}
    for name in sections if kind not in ("reinforcement", "offline") else ():
        if name in CREDIT_KEYS:
            other = f"; {kind}.{name} is another key" if (kind, name) == _OWN_OBJECTIVE else ""
            raise resolved.error(f"{key}.{name}", f"has no effect: a {kind} stage has no credit assignment{other}")
    if not sections[kind]:  # its settings are in the recipe, or are defaults
        del sections[kind]
        without |= {} if resolved.keys.get(kind) is not None else {kind: {}}
    changed = resolved.with_changes(without, **sections)
    settings = getattr(changed.recipe, kind)
    more: dict[str, Any] = {"title": f"{resolved.recipe.title or resolved.name}: {kind}"}
    lora = resolved.recipe.policy.lora
    if place and lora is not None and adapters != "new" and changed.recipe.policy.lora != lora:
        problem = (
            "the adapters of the preceding stage continue; adapters: new starts new ones, adapters: merged has none"
        )
        raise resolved.error(f"{key}.policy.lora", problem)
    if adapters == "merged":
        more["policy.lora"] = None
    if place:  # sampling and data order must differ from those of earlier stages
        more["seed"] = derive_seed(resolved.recipe.seed, "stage", place) % 2**31
    if kind not in ("sampling", REWARD_MODEL) and "learning_rate" not in settings.model_fields_set:
        # it starts from a folder, for which the default would be the rate of a pretrained model
        more[f"{kind}.learning_rate"] = (
            settings.learning_rate if resolved.recipe.policy.path is not None else _TINY_RATE
        )
    own = stage.get("name")
    return NamedStage(f"{place + 1}-{own or kind}", kind, changed.with_changes(more), adapters != "kept")
