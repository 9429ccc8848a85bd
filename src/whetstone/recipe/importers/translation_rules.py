"""Rules that translate one key of another library, and their possible results."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

Keys = Mapping[str, Any]
"""Keys of a configuration: dotted key → value."""


class Missing(str):
    """Reason why a key has no counterpart, and the remedy; if it is empty, it is the advice of the library."""


class NoEffect(str):
    """Reason why a key does not change the trained policy."""


class TranslatedWith(str):
    """Other key whose rule reads this key, too."""


class Converted(dict[str, Any]):
    """Recipe keys with a value in another unit, and how the value is converted.

    Args:
        keys: Keys of a recipe.
        note: The conversion, such as `200 optimizer steps, 2 per step`; can be empty.
    """

    def __init__(self, keys: Mapping[str, Any], note: str) -> None:
        super().__init__(keys)
        self.note = note


class Computed(str):
    """Source text of a value that is known only when the file is executed."""


Result = dict[str, Any] | Missing | NoEffect | TranslatedWith
"""Keys of a recipe, or the reason why a key sets none."""
Rule = str | Callable[[Any, Keys], Result]
"""Key of a recipe with the same value; or a function of (value, all keys) that returns keys of a recipe."""
_OFF = (None, False, 0, -1, "", "none", "null", "no", "disabled")
"""Values that disable an option; `0` also equals `0.0`."""


@dataclass(frozen=True, slots=True)
class Library:
    """Keys of another library, and how they are translated.

    `load_library` creates it.
    """

    name: str
    """Name of the library in messages."""
    rules: Mapping[str, Rule]
    """Rules of keys with a counterpart in recipes."""
    no_effect: tuple[str, ...]
    """Keys, and sections of keys, that do not affect the trained policy."""
    advice: Mapping[str, str]
    """Keys without a counterpart, with the remedy."""
    off: Mapping[str, Any]
    """Values that disable a key, if they differ from the usual ones."""
    defaults: Mapping[str, Any]
    """Defaults of the library that differ from those of a recipe. A value can be a function of the configuration's
    keys, which returns None if there is no default."""
    default_on: frozenset[str] = field(default_factory=frozenset)
    """Keys without a counterpart that are enabled by default, so that False changes the trained policy."""

    def defaults_for(self, keys: Keys) -> dict[str, Any]:
        """Return the library's defaults of keys that a configuration does not set.

        Args:
            keys: Keys of the configuration.
        """
        values = {
            key: value(keys) if callable(value) else value for key, value in self.defaults.items() if key not in keys
        }
        return {key: value for key, value in values.items() if value is not None}

    def apply(self, key: str, value: Any, keys: Keys) -> Result:
        """Translate one key with its rule.

        Args:
            key: Key of the configuration.
            value: Value of the key.
            keys: All keys of the configuration.

        Returns:
            Recipe keys, or the reason why there are none.
        """
        rule = self.rules[key]
        if isinstance(value, Computed):
            path = rule if isinstance(rule, str) else ", ".join(self.target_keys(key))
            remedy = f"set {path}" if path else self.advice.get(key, "set its counterpart")
            return Missing(f"the value is computed when the script runs; {remedy}")
        try:
            result = {rule: value} if isinstance(rule, str) else rule(value, keys)
        except (TypeError, ValueError, KeyError, ZeroDivisionError):
            return Missing("the value cannot be read; set its counterpart yourself")
        if isinstance(result, Missing):
            return result or Missing(self.advice.get(key, "no counterpart"))
        if isinstance(result, str):
            return result
        keys_set = {path: each for path, each in result.items() if each is not None}
        return Converted(keys_set, result.note) if isinstance(result, Converted) else keys_set

    def target_keys(self, key: str) -> tuple[str, ...]:
        """Return the recipe keys that a key sets for a usual value."""
        rule = self.rules[key]
        if isinstance(rule, str):
            return (rule,)
        for value in (0.1, 1, 2, True, "wandb"):
            try:
                result = rule(value, {key: value})
            except (TypeError, ValueError, KeyError, ZeroDivisionError, AttributeError):
                continue
            if isinstance(result, dict) and result:
                return tuple(result)
        return ()

    def is_off(self, key: str, value: Any) -> bool:
        """Return whether a value disables a key without a counterpart."""
        if key in self.off and value == self.off[key]:
            return True
        if isinstance(value, Mapping | list | tuple):
            return not value
        disables = any(value is off or (value == off and isinstance(value, bool) == isinstance(off, bool))
                       for off in _OFF)  # fmt: skip
        return disables and key not in self.default_on

    def is_ignored(self, key: str) -> bool:
        """Return whether a key does not change the trained policy."""
        return any(key == name or key.startswith(f"{name}.") for name in self.no_effect)


def map_values(table: Mapping[Any, Any], path: str) -> Rule:
    """Return a rule that maps the values of a key by a table.

    Args:
        table: Value of the library → value of the recipe.
        path: Recipe key.
    """

    def rule(value: Any, keys: Keys) -> dict[str, Any] | Missing:
        if value not in table:
            return Missing(f"no counterpart of this value; there are {', '.join(map(str, table))}")
        return {path: table[value]}

    return rule


def with_key(other: str) -> Rule:
    """Return a rule for a key that is translated together with another key.

    Args:
        other: Key whose rule reads this key.
    """
    return lambda value, keys: (
        TranslatedWith(other) if other in keys else NoEffect(f"read with {other}, which is not set")
    )


def keep_positive(path: str) -> Rule:
    """Return a rule that keeps values above 0; other values disable the recipe key.

    Args:
        path: Recipe key.
    """
    return lambda value, keys: {path: value if value and value > 0 else None}


def map_trackers(value: Any, keys: Keys) -> dict[str, Any] | Missing:
    """Translate a list of loggers to trackers; the console needs none."""
    names = [value] if isinstance(value, str) else list(value or ())
    known = {"wandb", "tensorboard", "mlflow", "trackio"}
    named = [name for name in names if name in known]
    if "all" in names:
        return Missing(f"name the trackers: trackers: [{', '.join(sorted(known))}]")
    unknown = [name for name in names if name not in known | {"console", "none", "file"}]
    if unknown and not named:
        return Missing(f"no tracker named {', '.join(unknown)}; there are {', '.join(sorted(known))}, or trackers: "
                       '["my_package:MyTracker"]')  # fmt: skip
    return {"trackers": named or None}


def load_library(name: str, rules: Mapping[str, Rule], defaults: Mapping[str, Callable[[Keys], Any]]) -> Library:
    """Load the tables of a library from `NAME.toml` in this folder.

    Args:
        name: Name of the library in messages; the file has it in lower case.
        rules: Rules that are functions; rules that only rename a key are in the tables.
        defaults: Defaults that depend on other keys.
    """
    tables = tomllib.loads((files(__package__) / f"{name.lower()}.toml").read_text("utf-8"))
    return Library(
        name,
        {**tables["rules"], **rules},
        tuple(tables["no_effect"]),
        tables["advice"],
        off=tables["off"],
        defaults={**tables["defaults"], **defaults},
        default_on=frozenset(tables["default_on"]),
    )
