"""Which stages does a recipe have, and what is each as a recipe of its own?

A recipe of several stages is a chain of runs: each stage a recipe with one stage in it, begun with the weights the one
before ended with. The everyday pair, a warm-up and reinforcement, is one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.errors import did_you_mean
from whetstone.recipe.checking import CREDIT_KEYS, SAMPLING_KEYS
from whetstone.recipe.resolved import Resolved
from whetstone.recipe.settings import MEMORY_NEW, SAMPLES, STAGE_KINDS, Recipe
from whetstone.recipe.stage_settings import OptimizerSettings, data_of
from whetstone.seeding import derive_seed

_PAIR = {"supervised", "reinforcement"}
_OWN_OBJECTIVE = ("preference", "objective")
"""A stage that has under its own name what others have beside it."""
REWARD_MODEL = "reward_model"
_UNUSED = "has no effect: no stage behind it could use its scores"
_OWN = ("name", "adapters", "optional", "once")
"""Keys of a stage that are none of a recipe."""
_TINY_RATE: float = OptimizerSettings.model_fields["learning_rate"].default


@dataclass(frozen=True, slots=True)
class NamedStage:
    """One stage of several."""

    name: str
    """`2-preference`: its number and its kind, or the name it was given."""
    kind: str
    """Which of the recipe's keys it is."""
    resolved: Resolved
    """A recipe with this stage alone; its policy is still the one the whole begins with."""
    new_adapters: bool
    """Whether what adapters learned before is merged into the weights, beside which new ones begin or none."""
    reads: Mapping[str, str] = field(default_factory=dict)
    """By dotted key, the stage before it that is read there: `supervised.data` → `1-sampling`."""


def stages_of(resolved: Resolved) -> list[NamedStage]:
    """The stages of a recipe that has several, in order, those of later rounds behind; none where it is one run.

    Raises:
        RecipeError: A stage says what no recipe can, or has a name twice.
    """
    recipe = resolved.recipe
    given: list[Mapping[str, Any]] = [dict(stage) for stage in recipe.stages]
    if not given:
        if len(recipe.own_stages) < 2 or (set(recipe.own_stages) == _PAIR and not _ends_early(recipe)):
            for key, _ in _stages_named(resolved):
                raise resolved.error(key, "there is no stage before it; put both into stages")
            if recipe.reward_model is not None:
                raise resolved.error(REWARD_MODEL, _UNUSED)
            return []
        given = [{kind: {}} for kind in recipe.own_stages]
    given = [stage for stage in given if not _left_out(resolved, stage)]
    found: list[NamedStage] = []
    for turn in range(recipe.repeat_stages):
        for number, stage in enumerate(given):
            if turn and stage.get("once", False):
                continue
            place = len(found)
            one = _stage(resolved, stage, f"stages.{number}", place)
            if one.name in {other.name for other in found}:
                raise resolved.error(f"stages.{number}.name", f'"{one.name}" is the name of two stages')
            named = dict(_stages_named(one.resolved))
            reads = {key: _found(resolved, f"stages.{number}.{key}", name, found) for key, name in named.items()}
            if number == len(given) - 1 and one.kind == REWARD_MODEL and turn == recipe.repeat_stages - 1:
                raise resolved.error(f"stages.{number}", _UNUSED)
            found.append(replace(one, reads=reads))
    return found


def _left_out(resolved: Resolved, stage: Mapping[str, Any]) -> bool:
    """Whether a stage that is `optional` is none of this recipe's."""
    kind = next(kind for kind in STAGE_KINDS if kind in stage)
    return bool(stage.get("optional", False)) and kind not in resolved.recipe.own_stages


def _stages_named(resolved: Resolved) -> Iterator[tuple[str, str]]:
    """(dotted key, name of a stage) of each stage whose episodes are read, or whose scorer rewards."""
    reward = resolved.recipe.reward
    yield from _scorers_named("reward", {"name": reward.name, **reward.options})
    for kind, settings in resolved.recipe.own_stages.items():
        data = data_of(settings)
        if data is not None and data.from_stage:
            yield f"{kind}.data", data.from_stage


def _scorers_named(key: str, part: Any) -> Iterator[tuple[str, str]]:
    """Of a reward, and of those it is made of."""
    if isinstance(part, Mapping):
        if part.get("name") == "reward_model" and part.get("stage"):
            yield key, str(part["stage"])
        for below, value in part.items():
            yield from _scorers_named(f"{key}.{below}", value)


def _found(resolved: Resolved, key: str, name: str, before: Sequence[NamedStage]) -> str:
    """The last stage of this name or kind that samples, or that trains a scorer; of `previous`, the last."""
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
    """Whether it is not known beforehand which step of the warm-up is its last; then it is a run of its own."""
    return recipe.supervised is not None and recipe.supervised.until is not None


def _stage(resolved: Resolved, stage: Mapping[str, Any], key: str, place: int) -> NamedStage:
    kind = next(kind for kind in STAGE_KINDS if kind in stage)
    adapters = stage.get("adapters", "kept")
    if adapters not in ("kept", "new", "merged"):
        raise resolved.error(f"{key}.adapters", f'"{adapters}" is none of kept, new and merged')
    if adapters != "kept" and resolved.recipe.policy.lora is None:
        raise resolved.error(f"{key}.adapters", "has no effect: there are no adapters (policy.lora)")
    without: dict[str, Any] = {other: None for other in STAGE_KINDS if other != kind}
    without |= {"stages": None, "repeat_stages": None, "ablations": None}
    without |= dict.fromkeys(SAMPLING_KEYS if kind not in SAMPLES else ())
    without |= dict.fromkeys(CREDIT_KEYS if kind not in ("reinforcement", "offline") else ())
    without |= {"implicit_prm": None} if kind not in ("reinforcement", "offline") else {}
    without |= {"teacher": None} if kind not in ("reinforcement", "offline", "distillation") else {}
    # what the whole goes on from is what its first stage does; later ones go on from those before them
    if place and "init_state_from" not in stage and resolved.recipe.init_state_from != [MEMORY_NEW]:
        without["init_state_from"] = None
    sections = {name: value for name, value in stage.items() if name not in _OWN}
    for name in sections if kind not in ("reinforcement", "offline") else ():
        if name in CREDIT_KEYS:
            other = f"; {kind}.{name} is another key" if (kind, name) == _OWN_OBJECTIVE else ""
            raise resolved.error(f"{key}.{name}", f"has no effect: a stage of {kind} gives no credit{other}")
    if not sections[kind]:  # it stands in the recipe itself, or has its defaults
        del sections[kind]
        without |= {} if resolved.keys.get(kind) is not None else {kind: {}}
    changed = resolved.with_changes(without, **sections)
    settings = getattr(changed.recipe, kind)
    more: dict[str, Any] = {"title": f"{resolved.recipe.title or resolved.name}: {kind}"}
    lora = resolved.recipe.policy.lora
    if place and lora is not None and adapters != "new" and changed.recipe.policy.lora != lora:
        said = "adapters of the stage before go on as they are; adapters: new begins others, adapters: merged has none"
        raise resolved.error(f"{key}.policy.lora", said)
    if adapters == "merged":
        more["policy.lora"] = None
    if place:  # what it samples and in which order it reads are other than those of the stages before
        more["seed"] = derive_seed(resolved.recipe.seed, "stage", place) % 2**31
    if kind not in ("sampling", REWARD_MODEL) and "learning_rate" not in settings.model_fields_set:
        # it begins with a folder, whose rate would be that of a pretrained model
        more[f"{kind}.learning_rate"] = (
            settings.learning_rate if resolved.recipe.policy.path is not None else _TINY_RATE
        )
    own = stage.get("name")
    return NamedStage(f"{place + 1}-{own or kind}", kind, changed.with_changes(more), adapters != "kept")
