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
    """Parse a text as `ast.parse` does, while no other thread parses.

    Raises:
        SyntaxError: The text is not Python.
        ValueError: It contains a null byte.
        RecursionError: It is nested too deeply.
    """
    with _lock:
        return ast.parse(text, mode=mode)


def parse_expression(text: str) -> ast.expr:
    """Parse one expression, while no other thread parses; raises what `parse_syntax` raises."""
    tree = parse_syntax(text, mode="eval")
    assert isinstance(tree, ast.Expression)
    return tree.body
