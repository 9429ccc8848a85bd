"""What is a recipe? Everything that decides a run, as typed values declared once.

The file, the command line and Python read the same fields. Unknown keys are errors with the nearest name, and
so is a key that would have no effect in its combination: what is written is what happens.

Easy to get wrong: YAML reads `1e-3` as text and `on` as true in its old version; recipes are YAML 1.2.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError

from whetstone.errors import RecipeError, did_you_mean


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(BaseModel):
    """A part by name, and its options; a name alone is enough in a recipe."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """A built-in's short name, or `package.module:name`."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


def _named(default: str | None = None) -> BeforeValidator:
    """A name alone is a part; options alone are options of the default."""

    def read(given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given}
        return {"name": default, **given} if isinstance(given, Mapping) and default is not None else given

    return BeforeValidator(read)


class TinySettings(_Settings):
    """A small Llama built from nothing."""

    vocabulary: int = Field(384, ge=270)
    hidden: int = Field(128, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=8)
    context_length: int = Field(512, ge=16)


class PolicySettings(_Settings):
    """Which model: a folder, or a tiny one built from nothing."""

    path: str | None = None
    """A Hugging Face folder."""
    tiny: TinySettings | None = None


class ChatSettings(_Settings):
    """How tools are shown and called."""

    format: str = "hermes"


class TasksSettings(BaseModel):
    """A source of tasks; every other key is an option of that source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the source's name."""
        return dict(self.model_extra or {})


class EnvironmentSettings(BaseModel):
    """An environment and what an episode in it may use; every other key is an option of that environment."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "tools"
    max_turns: int = Field(8, ge=1)
    timeout_seconds: float = Field(300.0, gt=0)
    """From reset to end of an episode, waiting included."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything the environment itself is given."""
        return dict(self.model_extra or {})


class RolloutSettings(_Settings):
    """How a task's trajectories are sampled for reinforcement."""

    strategy: str = "independent"
    group_size: int = Field(8, ge=2)
    """Trajectories of one task; credit compares them, so one alone could teach nothing."""
    temperature: float = Field(1.0, gt=0)
    max_new_tokens: int = Field(256, ge=1)
    """In one turn."""
    max_in_flight: int = Field(256, ge=1)
    """Episodes running at once."""


class OptimizerSettings(_Settings):
    """What both stages share."""

    steps: int = Field(100, ge=1)
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the matrices inside the model, AdamW for the rest."""
    learning_rate: float = Field(1e-3, gt=0)
    warmup_fraction: float = Field(0.05, ge=0, le=1)
    """The share of the stage's steps, at its start, in which the learning rate rises from 0."""
    decay_fraction: float = Field(0.0, ge=0, le=1)
    """The share of them, at its end, in which it falls to 0 in a straight line."""
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens in one forward pass, padding included; does not change results."""
    checkpoint_every: int = Field(25, ge=1)


class SupervisedSettings(OptimizerSettings):
    """The warm-up: imitate the source's expert."""

    batch_size: int = Field(32, ge=1)
    """Demonstrations a step; each is seen once."""
    tasks: dict[str, Any] = {}
    """Options of the task source that are different for demonstrations, such as an easier mix."""


class TrainingSettings(OptimizerSettings):
    """Reinforcement."""

    tasks_per_step: int = Field(16, ge=1)
    minibatches: int = Field(1, ge=1)
    """Updates made with the trajectories of one step, each with its share of the groups."""
    reference_kl: float = Field(0.0, ge=0)
    """Weight of the divergence from the policy reinforcement began with; 0 does without that policy."""


class EvaluationSettings(_Settings):
    """Success on held-out tasks, before and after each stage."""

    episodes: int = Field(500, ge=1)
    """Held-out tasks; fewer where the source has fewer."""
    samples: int = Field(1, ge=1)
    """Episodes of each task; more than one gives pass@k."""
    temperature: float = Field(0.0, ge=0)


class Recipe(_Settings):
    """A run, whole."""

    title: str = ""
    paper: str = ""
    seed: int = Field(0, ge=0)
    policy: PolicySettings
    chat: ChatSettings = ChatSettings()
    tasks: TasksSettings
    environment: EnvironmentSettings = EnvironmentSettings()
    reward: Annotated[Part, _named()]
    rollout: RolloutSettings = RolloutSettings()
    supervised: SupervisedSettings | None = None
    """The warm-up; null leaves it out."""
    training: TrainingSettings | None = None
    """Reinforcement; null leaves it out."""
    advantage: Annotated[Part, _named("group_relative")] = Part(name="group_relative")
    objective: Annotated[Part, _named("clipped")] = Part(name="clipped")
    evaluation: EvaluationSettings = EvaluationSettings()
    ablations: dict[str, dict[str, Any]] = {}
    """By name, the keys that differ; each is trained and evaluated after the run itself, and reported beside it."""


@dataclass(frozen=True)
class Resolved:
    """A recipe with the knowledge of where each key was written."""

    recipe: Recipe
    name: str
    keys: Mapping[str, Any]
    """What was written, merged; defaults are not in it."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Dotted key → `file:line`."""

    def error(self, key: str, message: str) -> RecipeError:
        """An error that says where `key`, or the nearest key around it, was written."""
        return RecipeError(f"{_place(self.places, key, self.name)}  {key}: {message}")

    def with_changes(self, changes: Mapping[str, Any]) -> Resolved:
        """The same recipe with dotted keys set; None takes a section out.

        Raises:
            RecipeError: As `load_recipe`.
        """
        keys, places = copy.deepcopy(dict(self.keys)), dict(self.places)
        for dotted, value in changes.items():
            _set(keys, dotted, value)
            places = {k: v for k, v in places.items() if k != dotted and not k.startswith(f"{dotted}.")}
            places[dotted] = f"{self.name} with {dotted}={_short(value)}"
        return _resolved(self.name, keys, places)

    def dump(self) -> str:
        """The recipe as YAML with every default written out; loading it gives the same recipe."""
        written = self.recipe.model_dump(mode="json", exclude_none=False)
        lines = CommentedMap()
        for key, value in written.items():
            if value in (None, "", {}) and key not in self.keys:
                continue
            lines[key] = _compact(value, keep_none=key == "ablations")
        yaml = YAML()
        yaml.width = 110
        stream = io.StringIO()
        yaml.dump(lines, stream)
        return stream.getvalue()


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Resolved:
    """A recipe by built-in name or file, with `key=value` overrides.

    Raises:
        RecipeError: No such recipe, YAML that does not parse, an unknown key, a wrong type, or a key
            without effect; the message has file, line and the nearest right thing.
    """
    keys, places = _read(name, ())
    short = Path(name).stem
    changes: dict[str, Any] = {}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted:
            raise RecipeError(f"{override}: an override is written key=value, such as training.steps=30")
        changes[dotted] = _yaml_value(text, override)
    for dotted, value in changes.items():
        _set(keys, dotted, value)
        places = {k: v for k, v in places.items() if k != dotted and not k.startswith(f"{dotted}.")}
        places[dotted] = f"command line ({dotted}={_short(value)})"
    return _resolved(short, keys, places)


def built_in_recipes() -> list[str]:
    """The names of the recipes that come with Whetstone."""
    folder = resources.files("whetstone") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))


# ---------------------------------------------------------------- reading


def _read(name: str | Path, seen: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of a recipe on top of those it extends, and where each was written."""
    label, text = _text(name)
    if label in seen:
        raise RecipeError(f"{label}: extends itself: {' → '.join((*seen, label))}")
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{label}:{line}  not YAML: {error.problem}") from None
    if not isinstance(document, CommentedMap):
        raise RecipeError(f"{label}:1  a recipe is a mapping of keys to values")
    places = {dotted: f"{label}:{line}" for dotted, line in _lines(document, "")}
    keys = _plain(document)
    parent = keys.pop("extends", None)
    if parent is None:
        return keys, places
    beside = Path(name).parent / str(parent) if Path(name).is_file() else Path(str(parent))
    base, base_places = _read(beside if beside.is_file() else str(parent), (*seen, label))
    return _merged(base, keys), {**base_places, **places}


def _text(name: str | Path) -> tuple[str, str]:
    path = Path(name)
    if path.is_file():
        return path.name, path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise RecipeError(f"{path}: no such recipe file")
    if str(name) not in built_in_recipes():
        raise RecipeError(f'no recipe named "{name}"{did_you_mean(str(name), built_in_recipes())}')
    return f"{name}.yaml", (resources.files("whetstone") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _lines(node: CommentedMap, prefix: str) -> Iterator[tuple[str, int]]:
    for key, value in node.items():
        yield f"{prefix}{key}", node.lc.key(key)[0] + 1
        if isinstance(value, CommentedMap):
            yield from _lines(value, f"{prefix}{key}.")


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    # ruamel's scalar types remember how they were written; plain values are enough from here on
    return next((kind(node) for kind in (int, float, str) if isinstance(node, kind)), node)


def _yaml_value(text: str, override: str) -> Any:
    try:
        return _plain(YAML(typ="safe").load(text))
    except MarkedYAMLError:
        raise RecipeError(f"{override}: the value is not YAML") from None


def _merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, mappings merged. A part under another name starts with options of its own."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not _renamed(below, value):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _renamed(base: Mapping[str, Any], top: Mapping[str, Any]) -> bool:
    return any(name in top and base.get(name) != top[name] for name in ("name", "source"))


def _set(keys: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for step in path:
        below = keys.get(step)
        if isinstance(below, str):  # a part by name alone: `objective: clipped`
            below = {"name": below}
        keys[step] = dict(below) if isinstance(below, Mapping) else {}
        keys = keys[step]
    keys[last] = value


# ---------------------------------------------------------------- checking


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Null takes a key out, so that it has its default again. Ablations are changes to come and keep theirs."""
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) and key != "ablations" else value
        for key, value in keys.items()
        if value is not None
    }


def _resolved(name: str, keys: dict[str, Any], places: dict[str, str]) -> Resolved:
    keys = _without_nulls(keys)
    try:
        recipe = Recipe.model_validate(keys)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        dotted = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            *above, last = problem["loc"]
            said = f"no such key{did_you_mean(str(last), _fields_at(above))}"
        elif problem["type"] == "missing":
            said = "is needed and not set"
        else:
            said = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {_short(problem['input'])}"
        raise RecipeError(f"{_place(places, dotted, name)}  {dotted}: {said}") from None
    resolved = Resolved(recipe, name, keys, places)
    for rule in _NO_EFFECT:
        for key, reason in rule(recipe):
            if _is_set(keys, key):
                raise resolved.error(key, f"has no effect: {reason}")
    _check_policy(resolved)
    return resolved


def _check_policy(resolved: Resolved) -> None:
    policy = resolved.recipe.policy
    if (policy.path is None) == (policy.tiny is None):
        raise resolved.error("policy", "set either path (a model folder) or tiny (a model built from nothing)")
    if resolved.recipe.supervised is None and resolved.recipe.training is None:
        raise resolved.error("training", "neither supervised nor training is set, so there is nothing to do")
    if policy.tiny is not None and policy.tiny.hidden % policy.tiny.heads:
        raise resolved.error("policy.tiny.heads", f"must divide hidden ({policy.tiny.hidden}), got {policy.tiny.heads}")
    for stage, settings in (("supervised", resolved.recipe.supervised), ("training", resolved.recipe.training)):
        if settings is not None and settings.warmup_fraction + settings.decay_fraction > 1:
            said = f"with warmup_fraction {settings.warmup_fraction:g} it exceeds the whole stage"
            raise resolved.error(f"{stage}.decay_fraction", said)


def _fields_at(path: Sequence[int | str]) -> list[str]:
    model: Any = Recipe
    for part in path:
        below = model.model_fields.get(str(part))
        model = next(_models(below.annotation), None) if below is not None else None
        if model is None:
            return []
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind


def _advantage_needs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.training is None:
        for key in ("rollout", "advantage", "objective"):
            yield key, "there is no reinforcement stage (training is not set)"


def _clip_needs_minibatches(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.training is not None and recipe.training.minibatches == 1 and recipe.objective.name == "clipped":
        for key in ("clip_low", "clip_high"):
            reason = "with training.minibatches: 1 each update is the first after sampling, so every ratio is 1"
            yield f"objective.{key}", reason


def _samples_need_temperature(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.evaluation.temperature == 0 and recipe.evaluation.samples > 1:
        yield "evaluation.samples", "at evaluation.temperature: 0 every sample of a task is the same"


def _calls_need_tools(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.environment.name == "tools" and not recipe.environment.options.get("tools"):
        for key in ("max_calls_per_turn", "tool_timeout_seconds", "max_result_characters"):
            yield f"environment.{key}", "the environment has no tools"


_NO_EFFECT: tuple[Callable[[Recipe], Iterator[tuple[str, str]]], ...] = (
    _advantage_needs,
    _clip_needs_minibatches,
    _samples_need_temperature,
    _calls_need_tools,
)


def _is_set(keys: Mapping[str, Any], dotted: str) -> bool:
    node: Any = keys
    for part in dotted.split("."):
        if not isinstance(node, Mapping) or node.get(part) is None:
            return False
        node = node[part]
    return True


def _place(places: Mapping[str, str], key: str, name: str) -> str:
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return name


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _compact(value: Any, *, keep_none: bool) -> Any:
    """Sections on one line where they fit."""
    if isinstance(value, Mapping):
        written = CommentedMap(
            (key, _compact(below, keep_none=keep_none))
            for key, below in value.items()
            if below is not None or keep_none
        )
        written.fa.set_flow_style()
        return written
    return value
