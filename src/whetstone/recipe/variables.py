"""Environment variables in a recipe (`${NAME}`), and masks of literal secrets.

A recipe is used with the values of the variables. The stored or displayed recipe keeps `${NAME}`, and has
`${MASKED_KEY}` instead of a literal secret, so that a stored recipe works if that variable is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from whetstone.errors import RecipeError
from whetstone.masking import MASK, is_credential, map_texts, mask_message, remember_secret, secret_spans
from whetstone.plugins import OptionError
from whetstone.recipe.yaml_text import yaml_document

_REFERENCE = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<name>[^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LATER = ("stages", "ablations")
"""Sections that contain changes to the recipe; their variables are read when the changes are made."""
_SECRET = "[secret]"


def describe_unset(variable: str) -> str:
    """Format problem and remedy of an environment variable that is not set."""
    if variable.startswith(MASK):
        return f"the secret of this key was not stored with the recipe; export {variable} with its value"
    return f"the environment variable {variable} is not set; export it, or write $${{{variable}}} for a literal text"


def expand_variables(keys: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Replace each `${NAME}` in the keys of a recipe by the value of the variable.

    A reference to a variable that is not set stays unchanged. The values of credentials are masked in messages from now
    on.

    Returns:
        The keys, and (key, variable) of each variable that is not set.

    Raises:
        OptionError: If a reference is not a valid name of a variable.
    """
    unset: list[tuple[str, str]] = []

    def expand(path: tuple[str, ...], text: str) -> str:
        for name in find_variables(text):
            if not _NAME.fullmatch(name):
                problem = f"${{{name}}} is not an environment variable; write ${{NAME}}, or $${{ for a literal ${{"
                raise OptionError(".".join(path), problem)
        if path[0] in _LATER or "${" not in text:
            return text
        expanded = _REFERENCE.sub(lambda match: value(path, match), text)
        for start, end in secret_spans(path, expanded):  # such as the password of a URL that is a variable
            remember_secret(expanded[start:end], "***")
        return expanded

    def value(path: tuple[str, ...], match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "${"
        if name not in os.environ:
            unset.append((".".join(path), name))
            return match[0]
        if is_credential(path, name) or _is_masked_in(path, match):
            remember_secret(os.environ[name], match[0])
        return os.environ[name]

    return map_texts(keys, expand), unset


def _is_masked_in(path: tuple[str, ...], match: re.Match[str]) -> bool:
    """Return whether a text would contain a secret if a value replaced the reference."""
    probe = "x0" * 8
    text = match.string[: match.start()] + probe + match.string[match.end() :]
    return any(start <= match.start() < end for start, end in secret_spans(path, text))


def find_variables(text: str) -> Iterator[str]:
    """Yield the variable names in a text: the parts between `${` and `}`."""
    for match in _REFERENCE.finditer(text):
        if match["name"] is not None:
            yield match["name"]


def find_decisive_variables(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of variables that can affect results, by `key ${NAME}`.

    Variables with credentials are left out.
    """
    values_by_key: dict[str, str] = {}

    def note(path: tuple[str, ...], text: str) -> str:
        for name in find_variables(text):
            if path[0] not in _LATER and name in os.environ and not is_credential(path, name):
                values_by_key[f"{'.'.join(path)} ${{{name}}}"] = os.environ[name]
        return text

    map_texts(keys, note)
    return values_by_key


def with_references(values: Any, keys: Any) -> Any:
    """Return the values of a recipe with references instead of the values of variables.

    Args:
        values: All values of the recipe, with variables expanded.
        keys: Keys as they were written; a component can be only its name, and a list of one item only the item.
    """
    if isinstance(keys, str):
        if "${" in keys:
            return keys
        return values
    if isinstance(values, list) and isinstance(keys, Mapping):
        keys = [keys]
    if isinstance(values, Mapping) and isinstance(keys, Mapping):
        return {key: with_references(below, keys.get(key)) for key, below in values.items()}
    if isinstance(values, list) and isinstance(keys, list) and len(values) == len(keys):
        return [with_references(below, written) for below, written in zip(values, keys, strict=True)]
    return values


def mask_literals(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Replace literal secrets in the keys of a recipe by `${MASKED_KEY}`.

    The secrets are also masked in messages from now on.

    Returns:
        The keys, and the reference of each masked key by dotted key.
    """
    names: dict[str, str] = {}
    masked: dict[str, str] = {}

    def mask(path: tuple[str, ...], text: str) -> str:
        for start, end in reversed(secret_spans(path, text)):
            reference = _reference(path, text[start:end], names)
            remember_secret(text[start:end], reference)
            text = text[:start] + reference + text[end:]
            masked[".".join(path)] = reference
        return text

    return map_texts(keys, mask), masked


def mask_recipe_text(text: str) -> str:
    """Mask literal secrets in the text of a stored recipe.

    An earlier release stored them.
    """
    try:
        keys = yaml_document(text, "recipe.yaml", plain=True)
    except RecipeError:
        return mask_message(text)
    values_by_key: dict[str, str] = {}

    def note(path: tuple[str, ...], value: str) -> str:
        values_by_key.update({value[start:end]: f"${{{MASK.rstrip('_')}}}" for start, end in secret_spans(path, value)})
        return value

    map_texts(keys, note)
    for secret in sorted(values_by_key, key=len, reverse=True):
        text = text.replace(secret, values_by_key[secret])
    return text


def _reference(path: tuple[str, ...], value: str, names: dict[str, str]) -> str:
    """Return the reference that replaces a literal secret; equal secrets have one reference."""
    last = next(part for part in reversed(path) if not part.isdigit())
    base = name = MASK + re.sub(r"[^A-Za-z0-9]+", "_", last).strip("_").upper()
    number = 1
    while names.setdefault(name, value) != value:
        number += 1
        name = f"{base}_{number}"
    return f"${{{name}}}"


def without_secrets(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replace secrets, and references to them, by the same text.

    Two recipes that differ only in credentials are then equal: they are the same experiment.
    """

    def hide(path: tuple[str, ...], text: str) -> str:
        plain = _REFERENCE.sub(lambda match: "x0" * 8 if _is_masked_in(path, match) else match[0], text)
        for start, end in reversed(secret_spans(path, plain)):
            plain = plain[:start] + _SECRET + plain[end:]
        return plain

    hidden: dict[str, Any] = map_texts(keys, hide)
    return hidden
