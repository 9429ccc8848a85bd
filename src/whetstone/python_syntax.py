"""Parsing of Python syntax in one thread at a time.

Note:
    CPython counts the depth of a syntax tree once per process. Two threads that build trees at once can fail with
    `SystemError: AST constructor recursion depth mismatch`, which a tool would report as an error of the model.
"""

from __future__ import annotations

import ast
import threading
from typing import Literal

_lock = threading.Lock()


def parse_syntax(text: str, *, mode: Literal["exec", "eval"] = "exec") -> ast.mod:
    """Parse Python source like `ast.parse`, while no other thread parses.

    Args:
        text: Python source.
        mode: `exec` for statements, `eval` for one expression.

    Raises:
        SyntaxError: If the text is not Python.
        ValueError: If the text contains a null byte.
        RecursionError: If the text is nested too deeply.
    """
    with _lock:
        return ast.parse(text, mode=mode)


def parse_expression(text: str) -> ast.expr:
    """Parse one Python expression, while no other thread parses.

    Raises:
        SyntaxError, ValueError, RecursionError: Same as for `parse_syntax`.
    """
    tree = parse_syntax(text, mode="eval")
    assert isinstance(tree, ast.Expression)
    return tree.body
