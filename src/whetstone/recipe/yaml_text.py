"""Parsing of untrusted YAML, with limits that are checked before objects are created.

Errors have a line number.

Note:
    Nested aliases can expand to more than the available memory, and a thousand brackets exceed the recursion limit.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent, ScalarEvent

from whetstone.errors import RecipeError

_DEEPEST = 60
_BRACKETS = re.compile(r"[][{}]")
_LONG_NUMBER = re.compile(r"[-+]?(0[xo][0-9a-fA-F_]{300,}|[0-9_:.]{300,})")
_KINDS = ("str", "int", "float", "bool", "null", "map", "seq")
_TAGS = frozenset({"!", *(f"tag:yaml.org,2002:{kind}" for kind in _KINDS)})
_MOST_NODES = 200_000
"""Maximum number of values in a document, with aliases expanded."""


def yaml_document(
    text: str, label: str, *, plain: bool = False, max_characters: int = 1 << 20, most_nodes: int = _MOST_NODES
) -> Any:
    """Parse a YAML 1.2 document.

    Args:
        text: Text of the document.
        label: Name of the document, for error messages.
        plain: Whether plain values are returned instead of values with line numbers.
        max_characters: Maximum length of the text.
        most_nodes: Maximum number of values, with aliases expanded.

    Raises:
        RecipeError: If the text is not YAML, or exceeds a limit.
    """
    if len(text) > max_characters:
        raise RecipeError(f"{label}: longer than {max_characters} characters")
    kind: Literal["safe", "rt"] = "safe" if plain else "rt"
    _check_brackets(text, label)
    try:
        _measure(text, label, kind, most_nodes)
        return YAML(typ=kind).load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{label}:{line}  not YAML: {error.problem}") from None
    except RecursionError:
        raise RecipeError(f"{label}: nested too deep") from None
    except (YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # errors of the library for invalid dates, numbers and tags
        raise RecipeError(f"{label}: not YAML: {' '.join(str(error).split())[:160]}") from None


def _check_brackets(text: str, label: str) -> None:
    """Reject a line with too many open brackets.

    The scanner looks for the end of each possible key on its line, in time that is quadratic in the open brackets.

    Raises:
        RecipeError: If a line exceeds the limit.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.count("[") + line.count("{") <= _DEEPEST * 2:
            continue
        depth = 0
        for bracket in _BRACKETS.findall(line):
            depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
            if depth > _DEEPEST * 2:
                raise RecipeError(f"{label}:{number}  nested more than {_DEEPEST} deep")


def _measure(text: str, label: str, kind: Literal["safe", "rt"], most_nodes: int) -> None:
    """Check the depth and size of a document, with aliases expanded.

    Raises:
        RecipeError: If the document exceeds a limit.
    """
    nodes = 0
    sizes: dict[str, int] = {}
    open_at: list[
        tuple[str | None, int]
    ] = []  # the anchor of each enclosing collection, and the number of nodes before it
    for event in YAML(typ=kind).parse(text):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, CollectionEndEvent):
            anchor, before = open_at.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
            continue
        if isinstance(event, AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_at):
                raise RecipeError(f"{label}:{line}  *{event.anchor} contains itself")
            nodes += sizes.get(event.anchor, 1)
        elif isinstance(event, NodeEvent):
            nodes += 1
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in _TAGS:
            raise RecipeError(f"{label}:{line}  the tag {str(tag)[:60]}: tags are not allowed")
        if isinstance(event, ScalarEvent) and event.style is None and _LONG_NUMBER.fullmatch(event.value):
            raise RecipeError(f"{label}:{line}  a number of {len(event.value)} digits")
        if isinstance(event, CollectionStartEvent):
            open_at.append((event.anchor, nodes - 1))
            if len(open_at) > _DEEPEST:
                raise RecipeError(f"{label}:{line}  nested more than {_DEEPEST} deep")
        if nodes > most_nodes:
            raise RecipeError(f"{label}:{line}  more than {most_nodes} values, aliases expanded")
