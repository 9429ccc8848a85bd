"""Checks whether a component implements an optional protocol or misspells its members.

    if implements_protocol(environment, Snapshots):
        snapshot = await environment.snapshot()

Note:
    From Python 3.12 on, `isinstance` with a protocol ignores `__getattr__` and is slow. A wrapper around another
    environment (noise, a partner) would lose the optional methods of the inner one. `implements_protocol` uses
    `hasattr`, and accepts classes, too.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeGuard, TypeVar, cast

from whetstone.errors import RecipeError

Contract = TypeVar("Contract")
_ALIKE = 0.85
"""Similarity, 0 to 1, above which two names count as one misspelled name: `replayble` and `replayable` have 0.95."""


def implements_protocol(part: object, contract: Callable[..., Contract]) -> TypeGuard[Contract]:
    """Return whether a component has all members of a protocol.

    Members that the component forwards through `__getattr__` count.

    Args:
        part: Component: an object or a class.
        contract: Protocol class.
    """
    return all(hasattr(part, name) for name in protocol_members(cast(type, contract)))


@functools.cache
def protocol_members(*contracts: type) -> frozenset[str]:
    """Return the names of the public methods and attributes of protocols, and `__call__`."""
    named: set[str] = set()
    for contract in contracts:
        for kind in contract.__mro__:
            if kind not in (object, Protocol, Generic):
                named |= {*vars(kind), *vars(kind).get("__annotations__", {})}
    return frozenset(name for name in named if name == "__call__" or not name.startswith("_"))


def check_spelling(kind: str, name: str, named: Iterable[str], contracts: Iterable[type]) -> None:
    """Reject a component with a misspelled optional member, which would be ignored.

    Members that resemble no optional member are allowed.

    Args:
        kind: Kind of the component, for the message.
        name: Name of the component, for the message.
        named: Names of the component's members; private names are ignored.
        contracts: Optional protocols of this kind of component.

    Raises:
        RecipeError: If a member has almost the name of an optional member that the component lacks.
    """
    having = {each for each in named if not each.startswith("_")}
    missing = protocol_members(*contracts) - having
    for each in sorted(having - protocol_members(*contracts)):
        near = difflib.get_close_matches(each, sorted(missing), n=1, cutoff=_ALIKE)
        if near:
            raise RecipeError(f'{kind} "{name}": {each}: did you mean {near[0]}?')
