"""Changes of Python code that grade tests: mutants, which good tests detect, and recorded statements, for coverage.

Source: DeMillo, Lipton and Sayward 1978, "Hints on test data selection", for mutants.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from whetstone.python_syntax import parse_expression, parse_syntax

REACHED = "_reached_statements"
"""Name of the set of statement numbers in code of `record_statements`."""
_OTHER: Mapping[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
"""Operator → operator of a mutant."""


def create_mutants(source: str, *, max_mutants: int) -> list[str]:
    """Return variants of a program that differ in one place.

    A comparison, arithmetic operator, `and` or `or` is replaced by another one, a number by the next one, and a
    returned value by None. If there are more places than `max_mutants`, they are distributed evenly over the program.

    Args:
        source: Python source.
        max_mutants: Maximum number of variants.

    >>> [mutant.splitlines()[1].strip() for mutant in create_mutants("def f(a): return a < 2", max_mutants=5)]
    ['return None', 'return a <= 2', 'return a < 3']

    Raises:
        SyntaxError: If the source is not Python.
    """
    count = len(list(_find_changes(parse_syntax(source))))
    chosen = range(count) if count <= max_mutants else [number * count // max_mutants for number in range(max_mutants)]
    mutants = []
    for number in chosen:
        tree = parse_syntax(source)
        list(_find_changes(tree))[number]()
        mutants.append(ast.unparse(tree))
    return mutants


def _find_changes(tree: ast.AST) -> Iterator[Callable[[], None]]:
    """Yield one function per possible change of a tree; it changes the tree in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (_replace_item(node.ops, place) for place, of in enumerate(node.ops) if type(of) in _OTHER)
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _OTHER:
            yield _replace_operator(node)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield _increment(node)
        elif isinstance(node, ast.Return) and not _is_none(node.value):
            yield _return_none(node)


def _replace_item(operators: list[ast.cmpop], place: int) -> Callable[[], None]:
    def change() -> None:
        operators[place] = _OTHER[type(operators[place])]()

    return change


def _replace_operator(node: ast.BinOp | ast.BoolOp | ast.AugAssign) -> Callable[[], None]:
    def change() -> None:
        node.op = _OTHER[type(node.op)]()

    return change


def _increment(node: ast.Constant) -> Callable[[], None]:
    def change() -> None:
        assert isinstance(node.value, int | float)
        node.value = node.value + 1

    return change


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _return_none(node: ast.Return) -> Callable[[], None]:
    def change() -> None:
        node.value = ast.Constant(None)

    return change


def record_statements(source: str) -> tuple[str, int]:
    """Return a program that records which statements of its functions run, and the number of these statements.

    Docstrings, and the statements that define functions and classes, are not counted. The program adds the number of
    each statement, from 0, to the set `REACHED` before it runs.

    Raises:
        SyntaxError: If the source is not Python.
    """
    recorder = _Recorder()
    changed = ast.fix_missing_locations(recorder.visit(parse_syntax(source)))
    return f"{REACHED} = set()\n{ast.unparse(changed)}", recorder.count


class _Recorder(ast.NodeTransformer):
    """Inserts a record before each statement in a function."""

    def __init__(self) -> None:
        self.count, self._depth = 0, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(node, name, None)
                if isinstance(statements, list) and not isinstance(node, ast.ClassDef):
                    setattr(node, name, [each for one in statements for each in self._recorded(one)])
        return node

    def _recorded(self, statement: ast.stmt) -> list[ast.stmt]:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or isinstance(
            statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Global | ast.Nonlocal
        ):
            return [statement]
        record = parse_expression(f"{REACHED}.add({self.count})")
        self.count += 1
        return [ast.Expr(record), statement]
