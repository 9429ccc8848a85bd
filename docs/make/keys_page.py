"""Page of recipe keys, from the settings, with the options of every component."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal, get_type_hints

from docstring_parser import parse
from pydantic import BaseModel

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    LOSS_TERMS,
    OBJECTIVES,
    SHAPING,
)
from whetstone.environments import ENVIRONMENTS
from whetstone.inference import ENGINES
from whetstone.plugins import get_component_options
from whetstone.recipe.resume_changes import FIXED, find_effect
from whetstone.recipe.settings import Recipe
from whetstone.recipe.settings_base import Part
from whetstone.reporting.trackers import TRACKERS
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES
from whetstone.rollout import SEARCHES
from whetstone.rollout.action_masks import ACTION_MASKS
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks import SOURCES
from whetstone.tasks.curricula import CURRICULA
from whetstone.tools import TOOLS

TOP = """# Every recipe key

*Generated from the settings by `make docs`; edit the settings.*

Set a key in a recipe, on the command line by its dotted path (`whetstone train demo
reinforcement.learning_rate=1e-5`), or in Python (`recipe.with_changes({"reinforcement.learning_rate": 1e-5})`).
An unknown key, a wrong type, a value out of range and a key without effect are errors before the run starts. A
key of an earlier release works for two minor releases and is then refused with its new name. `whetstone recipes show
RECIPE` prints the complete recipe, the source of each value and the options of its components. `null` restores the
default of a key; a stage or another section whose default is `null` is then disabled. `evaluation: null` is refused,
because every run evaluates. In addition to these keys, a file can have `extends: RECIPE`, which inherits the keys of
another recipe, and `with: [METHOD, …]`, which adds methods.

Column *in a run*: the effect of a key that can change when a run continues (`--resume KEY=VALUE`); empty: it cannot
change. [Continue a run](../guide/continuing.md) describes the effects.

A *component* is a name, or a mapping of its name and options: `early_stopping: [void_turn]`, `objective: {name:
clipped, clip_high: 0.28}`. The name is a built-in one or `package.module:name` of a custom component. [Options
of components](#options-of-components) lists their options; [methods](methods.md), [rollout](rollout.md),
[rewards](rewards.md), [tools](tools.md) and [environments](environments.md) describe them.

"""
OPTIONS = """## Options of components

Options in addition to the name; a component without a line has no options. `needed` marks a required option.

"""
KINDS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("tasks.source", SOURCES),
    ("environment.name", ENVIRONMENTS),
    ("environment.tools", TOOLS),
    ("reward", REWARDS),
    ("judge of a reward", JUDGES),
    ("curriculum", CURRICULA),
    ("rollout.strategy", STRATEGIES),
    ("rollout.budget_allocation", ALLOCATIONS),
    ("rollout.start_states", STARTS),
    ("rollout.context_transforms", CONTEXT_TRANSFORMS),
    ("rollout.early_stopping", STOPS),
    ("rollout.context_rewrites", REWRITES),
    ("rollout.environment_wrapper", ENVIRONMENT_WRAPPERS),
    ("rollout.action_mask", ACTION_MASKS),
    ("rollout.replay", REPLAY),
    ("rollout.trajectory_filters", TRAJECTORY_FILTERS),
    ("rollout.dynamic_sampling", DYNAMIC_SAMPLING),
    ("evaluation.strategy", SEARCHES),
    ("advantage", ADVANTAGES),
    ("reward_shaping", SHAPING),
    ("advantage_transforms", ADVANTAGE_TRANSFORMS),
    ("credit_filters", CREDIT_FILTERS),
    ("objective", OBJECTIVES),
    ("loss_terms", {name: term for name, term in LOSS_TERMS.items() if name not in OBJECTIVES}),
    ("importance_correction", CORRECTIONS),
    ("engine", ENGINES),
    ("trackers", TRACKERS),
)
USUAL: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "tasks": ("tasks.source", SOURCES, ("jsonl", "file", "parquet")),
    "environment": ("environment.name", ENVIRONMENTS, ("tools",)),
}
"""Section with options → (heading of its components, built-in components, those whose options get dotted keys)."""
_UNITS = (
    (r"seconds$", "seconds"),
    (r"_fraction$|^share$|^held_out$|^(success|max_drop|fraction|error_rate|stale_rate)$", "fraction"),
    (r"tokens$|^context_length$|^vocab_size$", "tokens"),
    (r"^logits_memory_mb$", "MB"),
    (r"(^|_)steps$|^plateau$", "steps"),
    (r"(^|_)episodes$|^max_in_flight$", "episodes"),
    (r"turns$", "turns"),
    (r"calls$", "calls"),
    (r"temperature$", "of logits"),
)
"""Unit of a number, by its name."""
_BOUNDS = {"ge": "≥ {:g}", "gt": "> {:g}", "le": "≤ {:g}", "lt": "< {:g}"}
_NUMBERS = (int, float)


def keys_page() -> str:
    """Return the whole page."""
    parts = [TOP, "## The recipe\n\n", _table(Recipe, "", sections=False)]
    for name, field in Recipe.model_fields.items():
        model = _section(field.annotation)
        if model is not None:
            parts += [f"## `{name}`\n\n", *_describe_section(model), _table(model, name, sections=True)]
            parts += _usual_options(name) if name in USUAL else ()
    parts.append(OPTIONS)
    for title, built_in in KINDS:
        shared = {option: doc for part in built_in.values() for option, doc in _describe_options(_inner(part)).items()}
        rows = [line for name, part in sorted(built_in.items()) for line in _options(name, part, shared)]
        if rows:
            head = "| component | option | type | default | description |\n| --- | --- | --- | --- | --- |\n"
            parts += [f"### `{title}`\n\n", head, *rows, "\n"]
    return "".join(parts).rstrip() + "\n"


def keys() -> Iterator[tuple[str, str]]:
    """Yield (dotted key, description) of every key."""
    for name, field in Recipe.model_fields.items():
        yield name, _documented(Recipe).get(name, "")
        model = _section(field.annotation)
        for dotted, _, doc in _below(model, name) if model is not None else ():
            yield dotted, doc


def _describe_section(model: type[BaseModel]) -> list[str]:
    text = inspect.getdoc(model) or ""
    extra = model.model_config.get("extra") == "allow"
    more = " Every other key is an option of it, see [below](#options-of-components)." if extra else ""
    return [f"{' '.join(text.split())}{more if 'every other key' not in text else ''}\n\n"]


def _table(model: type[BaseModel], above: str, *, sections: bool) -> str:
    lines = ["| key | type | default | unit, range | in a run | description |\n| --- | --- | --- | --- | --- | --- |\n"]
    rows = (
        _below(model, above)
        if sections
        else ((name, field, _documented(model).get(name, "")) for name, field in model.model_fields.items())
    )
    for dotted, field, doc in rows:
        default = "needed" if field.is_required() else f"`{_format_value(_default(field))}`"
        lines.append(
            f"| `{dotted}` | {_type(field.annotation)} | {default} | {_range(dotted, field)} | {_effect(dotted)} "
            f"| {_cell(doc)} |\n"
        )
    return "".join(lines) + "\n"


def _usual_options(section: str) -> Iterator[str]:
    """Yield the table of the options of the usual components of a section, by their dotted keys."""
    title, built_in, names = USUAL[section]
    rows: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for option, rest in _describe_rows(built_in[name], {}):
            rows.setdefault((option, rest), []).append(name)
    listed = ", ".join(f"`{name}`" for name in names)
    link = f"[`{title}`](#{title.replace('.', '')})"
    yield f"Options of {listed}, as `{section}.OPTION`; {link} lists those of all components.\n\n"
    yield "| key | of | type | default | description |\n| --- | --- | --- | --- | --- |\n"
    for (option, rest), of in sorted(rows.items()):
        yield f"| `{section}.{option}` | {', '.join(f'`{name}`' for name in of)} | {rest} |\n"
    yield "\n"


def _effect(dotted: str) -> str:
    effect = find_effect(dotted)
    return "" if effect == FIXED else effect


def _below(model: type[BaseModel], above: str) -> Iterator[tuple[str, Any, str]]:
    docs = _documented(model)
    for name, field in model.model_fields.items():
        yield f"{above}.{name}", field, docs.get(name, "")
        inner = _section(field.annotation)
        if inner is not None and inner is not model:
            yield from _below(inner, f"{above}.{name}")


def _documented(model: type[BaseModel]) -> dict[str, str]:
    """Return the attribute doc of each field, including inherited ones."""
    docs: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not (issubclass(owner, BaseModel) and owner is not BaseModel):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in pairwise(node.body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[field.target.id] = str(below.value.value)
    return docs


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class of a key; None if it has none."""
    for inner in (annotation, *typing.get_args(annotation)):
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Part:
            return inner
        if typing.get_origin(inner) is typing.Annotated and (below := _section(typing.get_args(inner)[0])):
            return below
    return None


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Part):
        return value.name if not value.options else {"name": value.name, **value.options}
    return "{…}" if isinstance(value, BaseModel) else value


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    text = '""' if value == "" else str(list(value) if isinstance(value, tuple) else value)
    return (text if len(text) <= 40 else f"{text[:39]}…").replace("|", "\\|")


def _range(dotted: str, field: Any) -> str:
    name = dotted.rpartition(".")[2]
    units = (unit for pattern, unit in _UNITS if re.search(pattern, name))
    unit = next(units, "") if _is_number(field.annotation) else ""
    signs = ((bound, sign, form) for bound in field.metadata for sign, form in _BOUNDS.items())
    bounds = [form.format(getattr(bound, sign)) for bound, sign, form in signs if hasattr(bound, sign)]
    return ", ".join(filter(None, (unit, *bounds)))


def _is_number(annotation: Any) -> bool:
    return annotation in _NUMBERS or any(inner in _NUMBERS for inner in typing.get_args(annotation))


def _type(annotation: Any) -> str:
    """Return the type in the terms of a recipe."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join(_type(each) for each in inner)
    if origin in (list, tuple) or getattr(origin, "__name__", "") in ("Sequence", "Collection"):
        kinds = [each for each in inner if each is not Ellipsis]
        return f"list of {_type(kinds[0])}" if kinds else "list"
    if origin is not None and getattr(origin, "__name__", "") in ("dict", "Mapping"):
        return "mapping"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "component" if annotation is Part else "mapping"
    if annotation is Any or getattr(annotation, "__name__", "") == "Callable":
        return "component"
    names = {str: "text", int: "integer", float: "number", bool: "true \\| false", dict: "mapping", list: "list"}
    return names.get(annotation, getattr(annotation, "__name__", "component"))


def _options(name: str, part: Callable[..., Any], others: Mapping[str, str]) -> Iterator[str]:
    """Yield a row for each option of a component."""
    for option, rest in _describe_rows(part, others):
        yield f"| `{name}` | `{option}` | {rest} |\n"


def _describe_rows(part: Callable[..., Any], others: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (option, cells with its type, default and description) of a component.

    Args:
        part: Component.
        others: Descriptions of options of other components, for options that the component does not describe.
    """
    inner = _inner(part)
    hints = get_type_hints(inner.__init__ if inspect.isclass(inner) else inner, include_extras=True)
    documented = {**others, **_describe_options(inner)}
    for option, parameter in get_component_options(part).items():
        if option in GIVEN:
            continue
        default = "needed" if parameter.default is parameter.empty else f"`{_format_value(_plain(parameter.default))}`"
        kind = _type(hints.get(option, Any))
        yield option, f"{kind} | {default} | {_cell(documented.get(option, ''))}"


def _inner(part: Callable[..., Any]) -> Callable[..., Any]:
    inner: Callable[..., Any] = getattr(part, "func", part)
    return inner


def _describe_options(inner: Callable[..., Any]) -> dict[str, str]:
    """Return the docs of each option, from the docstrings of a component and its base classes."""
    docs: dict[str, str] = {}
    owners = [owner for owner in reversed(inner.__mro__) if owner is not object] if inspect.isclass(inner) else [inner]
    for owner in owners:
        constructor = vars(owner).get("__init__") if inspect.isclass(owner) else None
        for text in (owner.__doc__, constructor.__doc__ if constructor is not None else None):
            docs |= {p.arg_name: p.description for p in parse(text or "").params if p.description}
        if inspect.isclass(owner) and owner.__module__.startswith("whetstone"):
            docs |= _fields_of(owner)
    return docs


GIVEN = {"group_size", "max_turns", "seed", "source", "stored_groups", "policy", "heard", "max_sequences", "version"}
"""Options that components receive from elsewhere in the recipe, or from the run."""


def _plain(value: Any) -> Any:
    return getattr(value, "__name__", value) if callable(value) else value


def _fields_of(part: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id: str(below.value.value)
        for field, below in pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
