"""What does a function return that lives among foreign code? Only a literal comes across.

Who judges foreign code must not share an interpreter with it: it would read what is expected in a frame, replace
`assert` or `print`, or hand over an object that equals everything. Here each call goes to a session where the code
lives alone, and its result comes back as the text of a plain value, or not at all.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from whetstone.sandbox.protocol import Ending
from whetstone.sandbox.session import Session


async def called_there(session: Session, entry: str, arguments: str, *, seconds: float) -> tuple[str, str]:
    """("value", a literal), ("raised", the name of an exception) or ("unusable", why)

    Args:
        session: Where the function is.
        entry: Its name.
        arguments: The literal `(positional, keyword)`.
        seconds: How long it may take.

    Raises:
        InfrastructureError: The sandbox itself has failed; nothing is known of the code.
    """
    outcome = await session.python(
        f"(lambda asked: ({entry}(*asked[0], **asked[1]),))({arguments})", wall_seconds=seconds
    )
    if outcome.restarted or outcome.ending not in (Ending.OK, Ending.ERROR):
        return "unusable", outcome.error or str(outcome.ending)
    if outcome.ending is Ending.ERROR:
        last = (outcome.error or "").strip().splitlines()[-1:] or [""]
        return "raised", last[0].partition(":")[0].strip() or "Exception"
    try:
        (value,) = read_literal(outcome.value or "")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return "unusable", "the result is no plain value"
    return "value", repr(value)


def read_literal(text: str) -> Any:
    """A plain value from its `repr`: texts, numbers (inf and nan among them), lists, tuples, mappings, sets.

    Raises:
        ValueError, SyntaxError: It is something else.
    """
    tree = ast.parse(text.strip(), mode="eval")
    return ast.literal_eval(_Numbers().visit(tree))


def listed(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, tuple | list):
        return [listed(one) for one in value]
    return {key: listed(one) for key, one in value.items()} if isinstance(value, dict) else value


class _Numbers(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant({"inf": math.inf, "nan": math.nan}[node.id]) if node.id in ("inf", "nan") else node
