"""Counterparts of names of TRL, verl and OpenRLHF, for messages about unknown recipe keys."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from whetstone.errors import did_you_mean
from whetstone.recipe.importers.translation_rules import Library, Missing
from whetstone.recipe.importers.trl import TRL
from whetstone.recipe.importers.verl import VERL

Fields = Mapping[str, Callable[[], Mapping[str, Any]]]
"""Valid keys by name; each value is a function that returns the keys below it."""


def _clip(value: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {"objective.name": "clipped", "objective.clip_low": value, "objective.clip_high": value}


_NAMES = tomllib.loads((files(__package__) / "names.toml").read_text("utf-8"))
_EARLIER_TRL: Mapping[str, Any] = {
    **_NAMES["TRL"],
    "cliprange": _clip,
    "clip_range": _clip,
}
_OPENRLHF: Mapping[str, Any] = {
    **_NAMES["OpenRLHF"],
    "train_batch_size": lambda value, keys: {
        "reinforcement.minibatches": max(1, int(keys.get("rollout_batch_size", 1024)) // int(value))
    },
    "micro_train_batch_size": lambda value, keys: Missing(
        "it changes no result; reinforcement.micro_batch_tokens limits the tokens of a forward pass"
    ),
    "eps_clip": _clip,
    "advantage_estimator": lambda value, keys: {"advantage.name": str(value)},
    "remote_rm_url": lambda value, keys: Missing("reward: my_package:my_reward can call a server"),
    "dynamic_filtering": lambda value, keys: {"rollout.dynamic_sampling": "nonzero_variance"},
    "is_correction_enable": lambda value, keys: {"importance_correction": "truncated"},
}
_LIBRARIES = (
    TRL,
    Library("TRL", _EARLIER_TRL, (), {}, {}, {}),
    VERL,
    Library("OpenRLHF", _OPENRLHF, (), {}, {}, {}),
)
_SAME_NAME = ("learning_rate", "temperature", "seed")
"""Top-level keys that other libraries have under the same name."""
_IMITATING = ("pretraining", "preference", "offline", "distillation")
_FIRST = ("reinforcement", "rollout", "policy", "evaluation", "supervised")
"""Sections in the order in which they are suggested for a key that several sections have."""


def explain_unknown_key(
    key: str,
    value: Any,
    fields: Mapping[str, Callable[[], Mapping[str, Any]]],
    keys: Mapping[str, Any],
    above: str = "",
) -> str:
    """Format the end of the message about an unknown key: its counterpart, or the nearest key.

    Args:
        key: Unknown key.
        value: Value of the key.
        fields: Valid keys at this level.
        keys: Keys of the whole recipe.
        above: Dotted path of the section of `key`; empty at top level.
    """
    paths = [] if above else list(_below(key, fields, keys))
    if paths and key in _SAME_NAME:
        counterparts: tuple[str, dict[str, Any], str] | None = ("", {paths[0]: value}, "")
    else:
        counterparts = _counterparts(key, value, keys)
    if counterparts is not None:
        library, result, reason = counterparts
        if not result and paths:  # another library has the name too, without a counterpart of this value
            return f"; did you mean {' or '.join(paths[:3])}?"
        if not result:
            return f"; {reason} ({key} of {library})"
        settings = ", ".join(path if each is None else f"{path}={_format_value(each)}" for path, each in result.items())
        others = [path for path in paths if path not in result and path.partition(".")[0] in (*_FIRST, *_IMITATING)]
        others = [path for path in others if path.partition(".")[0] in keys]
        more = f" or {' or '.join(others)}" if others else ""
        return f"; set {settings}{more}" + (f" ({key} of {library})" if library else "")
    if paths:
        return f"; did you mean {' or '.join(paths[:3])}?"
    names = {name: name for name in fields}
    if not above:
        below = [name for section in fields for name in fields[section]()]
        names = {**{name: next(iter(_below(name, fields, keys))) for name in below}, **names}
    near = difflib.get_close_matches(key, list(names), n=1, cutoff=0.6)
    return f'; did you mean "{names[near[0]]}"?' if near else did_you_mean(key, fields)


def _counterparts(key: str, value: Any, keys: Mapping[str, Any]) -> tuple[str, dict[str, Any], str] | None:
    """Return (library, recipe keys, reason if there are none) for a name of another library."""
    if isinstance(value, Mapping):
        return _sections(key, value)
    group = keys.get("rollout")
    size = group.get("group_size", 8) if isinstance(group, Mapping) else 8
    others = {name: each for name, each in keys.items() if not isinstance(each, Mapping)}
    for library in _LIBRARIES:
        full = next((name for name in library.rules if name == key or name.endswith(f".{key}")), None)
        if full is None:
            continue
        if value is None:
            return library.name, dict.fromkeys(library.target_keys(full)), ""
        everything = {"num_generations": size, **others, key: value, full: value}
        if full.endswith(("kl_loss_coef", "kl_loss_type")):
            everything["actor_rollout_ref.actor.use_kl_loss"] = True
        result = library.apply(full, value, everything)
        if isinstance(result, dict) and result:
            return library.name, result, ""
        if isinstance(result, Missing):
            return library.name, {}, str(result)
    advice = next((library for library in _LIBRARIES if key in library.advice), None)
    return (advice.name, {}, advice.advice[key]) if advice is not None else None


def _sections(key: str, value: Mapping[str, Any]) -> tuple[str, dict[str, Any], str] | None:
    """Return the counterparts of a section of verl, such as `actor_rollout_ref`."""
    if not any(name.startswith(f"{key}.") for name in VERL.rules):
        return None
    flat = dict(_flatten(key, value))
    result: dict[str, Any] = {}
    for path, each in flat.items():
        counterpart = VERL.apply(path, each, flat) if path in VERL.rules else {}
        result |= counterpart if isinstance(counterpart, dict) else {}
    general = "a section of its configuration; `whetstone import verl FILE` translates all of it"
    advice = next((VERL.advice[path] for path in flat if path in VERL.advice), general)
    return "verl", result, "" if result else advice


def _flatten(above: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flatten(f"{above}.{key}", below)
    else:
        yield above, value


def _below(key: str, fields: Fields, keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted paths, one level down, that end in a key.

    Sections that the recipe has are preferred.
    """
    having = [section for section in fields if key in fields[section]()]
    having.sort(key=lambda section: _FIRST.index(section) if section in _FIRST else len(_FIRST))
    present = [section for section in having if section in keys]
    yield from (f"{section}.{key}" for section in present or having[:1])


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
