"""Translation of a TRL or verl configuration into a valid recipe.

Every key of the configuration has an entry with its result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from whetstone.plugins import OptionError
from whetstone.recipe.importers.translation_rules import (
    Computed,
    Converted,
    Keys,
    Library,
    Missing,
    NoEffect,
    TranslatedWith,
)
from whetstone.recipe.importers.trl import TRL
from whetstone.recipe.importers.verl import VERL
from whetstone.recipe.settings import Recipe
from whetstone.recipe.validation import find_contradictions, find_unused_keys

LIBRARIES: Mapping[str, Library] = {"trl": TRL, "verl": VERL}
Status = Literal["translated", "default", "off", "no effect", "missing", "to set"]
STATUSES: tuple[Status, ...] = ("translated", "default", "off", "no effect", "missing", "to set")
"""Statuses in the order of the report. `default`: a default of the library that differs from that of a recipe; `off`: a
key whose value disables it; `to set`: a required key of the recipe that the configuration does not have."""
_PLACEHOLDERS = {
    "policy.path": ("policy", "the model: a folder, or a name on the Hugging Face hub"),
    "tasks.source": ("jsonl", "the tasks: tasks.jsonl with a `prompt` and an `answer` per line"),
    "tasks.path": ("tasks.jsonl", ""),
    "reward": ("exact_match", "the reward: a built-in one, or my_package:my_reward"),
    "reinforcement.steps": (100, "the number of steps"),
}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.?[\w.]+)\s*(?:,\s*(.*?))?\}")


@dataclass(slots=True)
class KeyTranslation:
    """Result of the translation of one key of the configuration."""

    key: str
    """Key of the configuration, or of the recipe if the status is `to set`."""
    value: Any
    """Value in the configuration; of the recipe if the status is `to set`."""
    status: Status
    """Kind of result; see `STATUSES`."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Recipe keys that replace the key: dotted key → value."""
    note: str = ""
    """Reason or remedy if the key has no counterpart, or the conversion of its value; may be empty."""

    def __str__(self) -> str:
        value = str(self.value) if isinstance(self.value, Computed) else json.dumps(self.value, default=str)
        settings = ", ".join(f"{path}: {json.dumps(each, default=str)}" for path, each in self.recipe.items())
        return f"{self.key}: {value}" + (f" → {settings}" if settings else "") + (f": {self.note}" if self.note else "")


@dataclass(slots=True)
class Translation:
    """Translated recipe, with the result for each key of the configuration."""

    recipe: dict[str, Any] = field(default_factory=dict)
    """Recipe: dotted key → value."""
    entries: list[KeyTranslation] = field(default_factory=list)
    """One entry per key of the configuration, then one per default of the library and per key to set."""

    def format_entries(self, *statuses: Status) -> list[str]:
        """Format the entries that have one of these statuses, one line each."""
        return [str(entry) for entry in self.entries if entry.status in statuses]

    def to_nested_keys(self) -> dict[str, Any]:
        """Return the recipe as nested mappings, in the form of a file."""
        result: dict[str, Any] = {}
        for path, value in self.recipe.items():
            *above, last = path.split(".")
            inner = result
            for key in above:
                inner = inner.setdefault(key, {})
            inner[last] = value
        return result


def translate_config(kind: str, keys: Keys) -> Translation:
    """Translate the configuration of another library into a recipe.

    The recipe is valid: a key that contradicts another one, or has no effect with it, is reported and left out.

    Args:
        kind: `trl` or `verl`.
        keys: Value by dotted key of the configuration.
    """
    library = LIBRARIES[kind]
    keys = {key: value for key, value in _resolve(keys).items() if not key.endswith("_target_")}
    result = Translation()
    present = {key for key, value in keys.items() if value is not None}
    defaults = library.defaults_for({key: keys[key] for key in present})
    defaults = {key: value for key, value in defaults.items() if not _stands_for(library, key, present)}
    everything = {**defaults, **keys}
    for key, value in keys.items():
        result.entries.append(_entry(library, key, value, everything))
    for key, value in defaults.items():
        entry = _entry(library, key, value, everything)
        entry.status = "default" if entry.status == "translated" else entry.status
        if entry.status == "default" or key in library.advice:
            entry.key = f"{key} (default)"
            result.entries.append(entry)
    for entry in result.entries:
        result.recipe |= entry.recipe
    _disambiguate(result)
    has_tasks = "tasks.source" in result.recipe
    for path, (value, note) in _PLACEHOLDERS.items():
        if path not in result.recipe and not (path == "tasks.path" and has_tasks):
            result.recipe[path] = value
            if note:
                result.entries.append(KeyTranslation(path, value, "to set", note=note))
    _repair(result)
    return result


def _stands_for(library: Library, default: str, present: set[str]) -> bool:
    """Return whether another key of the configuration replaces a default of the library.

    It does if it sets the same recipe keys.
    """
    own = set(library.target_keys(default)) if default in library.rules else set()
    replaced = {"num_train_epochs": "max_steps", "trainer.total_epochs": "trainer.total_training_steps"}
    return replaced.get(default) in present or any(
        own and own <= set(library.target_keys(key)) for key in present if key in library.rules and key != default
    )


def _entry(library: Library, key: str, value: Any, keys: Keys) -> KeyTranslation:
    """Translate one key of the configuration."""
    if value is None:
        return KeyTranslation(key, value, "off")
    if key in library.rules:
        result = library.apply(key, value, keys)
        if isinstance(result, NoEffect):
            return KeyTranslation(key, value, "no effect", note=result)
        if isinstance(result, Missing):
            return KeyTranslation(key, value, "off" if library.is_off(key, value) else "missing", note=result)
        if isinstance(result, TranslatedWith):
            return _entry_of_pair(library, key, value, str(result), keys)
        if result:
            note = result.note if isinstance(result, Converted) else ""
            return KeyTranslation(key, value, "translated", dict(result), note)
        if library.is_off(key, value):
            return KeyTranslation(key, value, "off")
        return KeyTranslation(key, value, "no effect", note="a recipe does the same without a key")
    if library.is_ignored(key):
        return KeyTranslation(key, value, "no effect")
    if library.is_off(key, value):
        return KeyTranslation(key, value, "off")
    sections = [note for name, note in library.advice.items() if key.startswith(f"{name}.")]
    advice = library.advice.get(key) or next(iter(sections), "")
    return KeyTranslation(key, value, "missing", note=advice or "no counterpart")


def _entry_of_pair(library: Library, key: str, value: Any, other: str, keys: Keys) -> KeyTranslation:
    """Report a key that is translated by the rule of another key, unless the other key has no counterpart."""
    if other in keys and isinstance(library.apply(other, keys[other], keys), Missing):
        return KeyTranslation(key, value, "missing", note=f"read with {other}, which is missing")
    if other in keys and library.is_off(other, keys[other]):
        return KeyTranslation(key, value, "no effect", note=f"read with {other}, which is off")
    return KeyTranslation(key, value, "off" if library.is_off(key, value) else "translated", note=f"with {other}")


def _resolve(keys: Keys) -> dict[str, Any]:
    """Replace OmegaConf references to other keys by their values."""

    def value_of(value: Any, key: str, depth: int = 0) -> Any:
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or depth > 10:
            return value
        name, default = match[1], match[2]
        if name.startswith("."):
            name = f"{key.rpartition('.')[0]}.{name[1:]}"
        if name in keys:
            return value_of(keys[name], name, depth + 1)
        plain = (default or "").strip().strip("\"'")
        words: dict[str, Any] = {"": None, "null": None, "none": None, "true": True, "false": False, "[]": []}
        if plain.lower() in words:
            return words[plain.lower()]
        try:
            return json.loads(plain)
        except ValueError:
            return plain

    return {key: value_of(value, key) for key, value in keys.items()}


def _disambiguate(result: Translation) -> None:
    """Remove recipe keys with a plain value if there are also keys below them."""
    for path in list(result.recipe):
        if any(other.startswith(f"{path}.") for other in result.recipe):
            del result.recipe[path]
    if result.recipe.get("reinforcement.reference_kl") == 0:
        result.recipe.pop("reinforcement.reference_estimator", None)


def _repair(result: Translation) -> None:
    """Remove recipe keys until the recipe is valid, and report each removed key."""
    for _ in range(len(result.recipe)):
        problem = next(_problems(result), None)
        if problem is None:
            return
        key, status, note = problem
        taken = [path for path in result.recipe if path == key or path.startswith(f"{key}.")]
        taken = taken or [path for path in result.recipe if key.startswith(f"{path}.")]
        if not taken:
            return
        for path in taken:
            value = result.recipe.pop(path)
            sources = [entry for entry in result.entries if path in entry.recipe]
            for entry in sources:
                del entry.recipe[path]
                # only the name of the component remains: the value of the key is lost
                is_lost = all(other == f"{path.rpartition('.')[0]}.name" for other in entry.recipe)
                if is_lost or status == "missing":
                    names, entry.recipe = (entry.recipe, {}) if is_lost else ({}, entry.recipe)
                    for name in names:
                        if not any(name in other.recipe for other in result.entries):
                            result.recipe.pop(name, None)
                    entry.status, entry.note = status, f"{path}: {json.dumps(value, default=str)}: {note}"
            for required, (placeholder, remedy) in _PLACEHOLDERS.items():
                if required == path:
                    result.recipe[path] = placeholder
                    result.entries.append(KeyTranslation(path, placeholder, "to set", note=remedy or "the path"))


def _problems(result: Translation) -> Iterator[tuple[str, Status, str]]:
    """Yield (recipe key, status, reason) of problems that make the recipe invalid."""
    try:
        recipe = Recipe(**result.to_nested_keys())
    except OptionError as error:
        yield error.key, "missing", error.message
        return
    for key, note in find_unused_keys(recipe):
        if any(path == key or path.startswith(f"{key}.") for path in result.recipe):
            yield key, "no effect", note
    for key, note in find_contradictions(recipe):
        yield key, "missing", note
