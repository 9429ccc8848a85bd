"""What may a part have beside what its place asks for, and has it? Each such thing is a small protocol of the room.

    if fulfils(environment, Snapshots):
        kept = await environment.snapshot()

Easy to get wrong: `isinstance` with a protocol looks past `__getattr__` from Python 3.12 on, so an environment around
another (noise, a partner) would silently lose what the other has; and it is slow. `fulfils` asks the object itself,
and classes, too.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeGuard, TypeVar, cast

from whetstone.errors import RecipeError

Contract = TypeVar("Contract")
_ALIKE = 0.85
"""From here on two names are one of them misspelt: `replayble` and `replayable` are 0.95 alike."""


def fulfils(part: object, contract: Callable[..., Contract]) -> TypeGuard[Contract]:
    """Whether a part has everything a protocol names; with its own `__getattr__`, where it has one.

    Args:
        contract: The protocol.
    """
    return all(hasattr(part, name) for name in names_of(cast(type, contract)))


@functools.cache
def names_of(*contracts: type) -> frozenset[str]:
    """The methods and attributes that protocols name: all public ones, and `__call__`."""
    named: set[str] = set()
    for contract in contracts:
        for kind in contract.__mro__:
            if kind not in (object, Protocol, Generic):
                named |= {*vars(kind), *vars(kind).get("__annotations__", {})}
    return frozenset(name for name in named if name == "__call__" or not name.startswith("_"))


def check_spelling(kind: str, name: str, named: Iterable[str], contracts: Iterable[type]) -> None:
    """See that nothing a part has is what it may have, misspelt: nobody would ever ask for it.

    Names that are like none are the part's own business.

    Args:
        kind: What it is, and `name` what it is called, for the message.
        named: Names of what it has; private ones are not looked at.
        contracts: What it may have.

    Raises:
        RecipeError: One is nearly an optional name, which the part does not have besides.
    """
    having = {each for each in named if not each.startswith("_")}
    missing = names_of(*contracts) - having
    for each in sorted(having - names_of(*contracts)):
        near = difflib.get_close_matches(each, sorted(missing), n=1, cutoff=_ALIKE)
        if near:
            raise RecipeError(f'{kind} "{name}": {each}: did you mean {near[0]}?')
