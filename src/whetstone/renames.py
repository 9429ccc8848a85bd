"""Renamed recipe keys, values, components, options and metrics of earlier releases.

The names are in `renames.toml`.

A recipe with an old name is refused with the new one. A deprecated name is accepted for two minor releases: a recipe
key is replaced with a notice, and a metric is written under both names. The stored recipe of a run is converted when it
is read, so that a run of an earlier release can be evaluated, resumed and viewed; see `recipe.upgrade`. Rows of metrics
are converted by `upgrade_metrics`.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from packaging.version import Version

from whetstone.optional_dependencies import get_package_version

STAGES = (
    "pretraining", "sampling", "supervised", "preference", "offline", "reward_model",
    "distillation", "reinforcement", "live",
)  # fmt: skip
"""Kinds of stages; `STAGE` in a key means any of them."""

_Table = Mapping[str, str]
_TABLES: Mapping[str, Any] = tomllib.loads((files("whetstone") / "renames.toml").read_text("utf-8"))

RECIPE_KEYS: _Table = _TABLES["recipe_keys"]
"""Old key → new key, dotted; `NAME` and `STAGE` are placeholders, see `match_key`."""
RECIPE_VALUES: Mapping[str, _Table] = _TABLES["recipe_values"]
"""New key, dotted as in `RECIPE_KEYS` → old value → new value."""
COMPONENTS: Mapping[str, _Table] = _TABLES["components"]
"""Kind of a component, as in error messages → old name → new name."""
COMPONENT_KEYS: _Table = _TABLES["component_keys"]
"""Recipe key whose value names components → their kind."""
COMPONENTS_WITHIN: Mapping[str, _Table] = _TABLES["components_within"]
"""Kind of a component → option of such a component that names components, of this release → their kind."""
COMPONENT_OPTIONS: Mapping[str, _Table] = _TABLES["component_options"]
"""New name of a component → old option → new option."""
COMPONENT_OPTION_VALUES: Mapping[str, Mapping[str, _Table]] = _TABLES["component_option_values"]
"""New name of a component → new option → old value → new value."""
COMPONENT_MEMBERS: Mapping[str, _Table] = _TABLES["component_members"]
"""Kind of a component, as in error messages → old attribute of its class → new attribute."""
METRICS: _Table = _TABLES["metrics"]
"""Old metric → new metric."""
METRIC_PREFIXES: _Table = _TABLES["metric_prefixes"]
"""Old prefix → new prefix of metrics whose last part is not fixed."""
DEPRECATED_KEYS: _Table = _TABLES["deprecated"]["recipe_keys"]
"""Old key of `RECIPE_KEYS` → release that renamed it."""
DEPRECATED_METRICS: _Table = _TABLES["deprecated"]["metrics"]
"""Old metric of `METRICS` → release that renamed it."""
DEPRECATION_RELEASES = 2
"""Number of minor releases for which a deprecated name works."""
RECIPES: _Table = _TABLES["recipes"]
"""Old name of a recipe that comes with Whetstone → new name."""
_PREFIXES_OF_METRICS = ("stored/", "second_pass/")
"""Prefixes before the whole name of a metric: `stored/loss` is `offline/loss/total`."""


def stored_name(name: str) -> str:
    """Return the permanent name of a component, for checkpoints and random seeds.

    It is the name in the release that introduced the component, and never changes.
    """
    return str(_TABLES["stored"].get(name, name))


def renamed_key(dotted: str) -> str | None:
    """Return the new name of a dotted recipe key of an earlier release, or None."""
    for old, new in RECIPE_KEYS.items():
        values = match_key(old.split("."), dotted.split("."))
        if values is not None:
            return ".".join(values.get(part, part) for part in new.split("."))
    return None


def removal_release(release: str) -> str:
    """Return the first release that refuses a name which was renamed in `release`.

    >>> removal_release("0.3.0")
    '0.5.0'
    """
    version = Version(release)
    return f"{version.major}.{version.minor + DEPRECATION_RELEASES}.0"


def is_deprecation_active(release: str) -> bool:
    """Return whether this release accepts a deprecated name that was renamed in `release`."""
    version = get_package_version()
    return version == "unknown" or Version(version) < Version(removal_release(release))


def add_deprecated_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with the values of deprecated names added under the old names."""
    aliases = {old: METRICS[old] for old, release in DEPRECATED_METRICS.items() if is_deprecation_active(release)}
    return {**metrics, **{old: metrics[new] for old, new in aliases.items() if new in metrics}}


def match_key(pattern: list[str], path: list[str]) -> dict[str, str] | None:
    """Match a dotted key with a pattern, and return the values of the pattern's placeholders.

    Args:
        pattern: Parts of the pattern; `NAME` matches any part, `STAGE` a kind of stage.
        path: Parts of the key.

    Returns:
        Placeholder → value; None if the key does not match.
    """
    if len(pattern) != len(path):
        return None
    values = {}
    for expected, part in zip(pattern, path, strict=True):
        if expected == "NAME" or (expected == "STAGE" and part in STAGES):
            values[expected] = part
        elif expected != part:
            return None
    return values


@functools.cache
def renamed_metric(name: str) -> str | None:
    """Return the new name of a metric of an earlier release, or None."""
    for old, new in METRIC_PREFIXES.items():
        if name.startswith(old):
            rest = name.removeprefix(old)
            renamed = new + (METRICS.get(rest, rest) if old in _PREFIXES_OF_METRICS else rest)
            return None if renamed == name else renamed
    return METRICS.get(name)


def upgrade_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics in which metrics of earlier releases have their new names.

    If a row has both names of a metric, the value of the new name is kept.
    """
    upgraded = {renamed_metric(name) or name: value for name, value in row.items()}
    return upgraded | {name: value for name, value in row.items() if renamed_metric(name) is None}
