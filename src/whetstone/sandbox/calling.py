"""What does a function return that lives among foreign code? Only a literal comes across.

Who judges foreign code must not share an interpreter with it: it would read what is expected in a frame, replace
`assert` or `print`, or hand over an object that equals everything. Here each call goes to a session where the code
lives alone, and its result comes back as the text of a plain value, or not at all.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.python_syntax import parse_syntax
from whetstone.sandbox.protocol import Ending
from whetstone.sandbox.session import Session

_MOST_CHARACTERS = 110_000
"""Of a literal: more than an honest value is shown with. A mebibyte of brackets takes gigabytes and seconds to read."""


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call."""

    kind: Literal["value", "raised", "unusable"]
    said: str
    """A literal, the name of an exception, or why there is neither."""
    left: str = ""
    """The literal `(positional, keyword)` of its arguments as the call left them, where it changed them in place."""
    seconds: float = 0.0
    """How long it took, waiting for a place not counted."""


async def called_there(session: Session, entry: str, arguments: str, *, seconds: float) -> Called:
    """Call a function where it lives. Whatever it does, it is its own doing.

    Args:
        session: Where the function is.
        entry: Its name.
        arguments: The literal `(positional, keyword)`.
        seconds: How long it may take.

    Raises:
        InfrastructureError: The sandbox itself has failed; nothing is known of the code.
    """
    outcome = await session.python(
        f"(lambda _asked: (lambda _before: ({entry}(*_asked[0], **_asked[1]), "
        f"None if repr(_asked) == _before else _asked))(repr(_asked)))({arguments})",
        wall_seconds=seconds,
    )
    if outcome.restarted or outcome.ending not in (Ending.OK, Ending.ERROR):
        return Called("unusable", outcome.error or str(outcome.ending), seconds=outcome.seconds)
    if outcome.ending is Ending.ERROR:
        last = (outcome.error or "").strip().splitlines()[-1:] or [""]
        return Called("raised", last[0].partition(":")[0].strip() or "Exception", seconds=outcome.seconds)
    try:
        value, left = read_literal(outcome.value or "")
        if left is not None:
            positional, keyword = left
            left = (tuple(positional), dict(keyword))
        return Called("value", repr(value), "" if left is None else repr(left), outcome.seconds)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # a long number is read, and not written
        return Called("unusable", "the result is no plain value", seconds=outcome.seconds)


def read_literal(text: str) -> Any:
    """A plain value from its `repr`: texts, numbers (inf and nan among them), lists, tuples, mappings, sets.

    Raises:
        ValueError, SyntaxError, TypeError, MemoryError, RecursionError: It is something else, or too long or deep.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"a literal of {len(text)} characters is not read")
    tree = parse_syntax(text.strip(), mode="eval")
    return ast.literal_eval(_Numbers().visit(tree))


def listed(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, tuple | list):
        return [listed(one) for one in value]
    return {key: listed(one) for key, one in value.items()} if isinstance(value, dict) else value


class _Numbers(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant({"inf": math.inf, "nan": math.nan}[node.id]) if node.id in ("inf", "nan") else node
