"""Calls of functions in a sandbox session that return plain values only, to grade untrusted code.

Code that grades untrusted code must not share an interpreter with it. Untrusted code could read the expected value in a
frame, replace `assert` or `print`, or return an object that equals everything. Each call therefore runs in a session,
and only the text of a plain value returns.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.python_syntax import parse_syntax
from whetstone.sandbox.protocol import Ending
from whetstone.sandbox.session import Session

_MAX_CHARACTERS = 110_000
"""Maximum length of a literal in characters; parsing a mebibyte of brackets takes gigabytes and seconds."""


@dataclass(frozen=True, slots=True)
class GuestCallResult:
    """Result of a function call in the sandbox."""

    kind: Literal["value", "raised", "unusable"]
    """Kind of result: a plain `value`, a `raised` exception, or `unusable`."""
    text: str
    """Literal of the value, name of the exception, or reason why there is neither."""
    changed_arguments: str = ""
    """Literal `(positional, keyword)` of the arguments after the call if it modified them; otherwise empty."""
    seconds: float = 0.0
    """Duration of the call in seconds, without waiting for a free slot."""


async def call_in_guest(session: Session, entry: str, arguments: str, *, seconds: float) -> GuestCallResult:
    """Call a function inside the sandbox and return its result.

    A failure of the function is part of the result.

    Args:
        session: Session in which the function is defined.
        entry: Name of the function.
        arguments: Literal `(positional, keyword)` of the arguments.
        seconds: Time limit in seconds.

    Raises:
        InfrastructureError: If the sandbox itself has failed, so that nothing is known about the code.
    """
    outcome = await session.python(
        f"(lambda _asked: (lambda _before: ({entry}(*_asked[0], **_asked[1]), "
        f"None if repr(_asked) == _before else _asked))(repr(_asked)))({arguments})",
        wall_seconds=seconds,
    )
    if outcome.restarted or outcome.ending not in (Ending.OK, Ending.ERROR):
        return GuestCallResult("unusable", outcome.error or str(outcome.ending), seconds=outcome.seconds)
    if outcome.ending is Ending.ERROR:
        last = (outcome.error or "").strip().splitlines()[-1:] or [""]
        return GuestCallResult("raised", last[0].partition(":")[0].strip() or "Exception", seconds=outcome.seconds)
    try:
        value, changed_arguments = read_literal(outcome.value or "")
        if changed_arguments is not None:
            positional, keyword = changed_arguments
            changed_arguments = (tuple(positional), dict(keyword))
        return GuestCallResult(
            "value", repr(value), "" if changed_arguments is None else repr(changed_arguments), outcome.seconds
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # a long integer has no `repr`
        return GuestCallResult("unusable", "the result is no plain value", seconds=outcome.seconds)


def read_literal(text: str) -> Any:
    """Parse a plain value from its `repr`: texts, numbers (also inf and nan), lists, tuples, mappings and sets.

    Raises:
        ValueError, SyntaxError, TypeError, MemoryError, RecursionError: If the text is anything else, or is too long or
            too deep.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a literal of {len(text)} characters is not read")
    tree = parse_syntax(text.strip(), mode="eval")
    return ast.literal_eval(_Numbers().visit(tree))


def tuples_to_lists(value: Any) -> Any:
    """Return a value with all tuples converted to lists, at every level, as JSON would have them."""
    if isinstance(value, tuple | list):
        return [tuples_to_lists(one) for one in value]
    return {key: tuples_to_lists(one) for key, one in value.items()} if isinstance(value, dict) else value


class _Numbers(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant({"inf": math.inf, "nan": math.nan}[node.id]) if node.id in ("inf", "nan") else node
