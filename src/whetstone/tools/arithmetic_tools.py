"""Calculator tools: `calculator` for expressions, `pocket_calculator` for a single operation.

Note:
    `eval` would run any Python, and `9**9**9` never ends. The expression is therefore parsed, only + − × ÷ and
    parentheses are accepted, and values are exact fractions until they are formatted.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from fractions import Fraction

from whetstone.errors import ToolError
from whetstone.python_syntax import parse_expression
from whetstone.tools.side_effects import effects

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_CHARACTERS = 200
# a model writes things like `12or`; Python's remarks on them are not for the person who watches the run
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")


@effects("read")
def calculator(expression: str) -> str:
    """Evaluate an expression of numbers, + - * / and parentheses.

    Args:
        expression: The expression; numbers may have decimals.
    """
    return format_number(evaluate_expression(expression))


@effects("read")
def pocket_calculator(expression: str) -> str:
    """One operation on two numbers.

    Args:
        expression: Two numbers with one of + - * / between them.
    """
    tree = _parse(expression)
    if not isinstance(tree, ast.BinOp) or not (_is_number(tree.left) and _is_number(tree.right)):
        raise ToolError("one operation on two numbers at a time")
    return format_number(_value(tree))


def evaluate_expression(expression: str) -> Fraction:
    """Return the exact value of an expression of numbers, + - * / and parentheses.

    Raises:
        ToolError: If the expression does not parse, uses anything else, divides by zero, or is longer than 200
            characters.
    """
    return _value(_parse(expression))


def format_number(value: Fraction) -> str:
    """Return a value as text: an integer as such, any other value with up to ten significant digits."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _parse(expression: str) -> ast.expr:
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(f"the expression is longer than {_MAX_CHARACTERS} characters")
    try:
        return parse_expression(expression.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError("not an expression") from None


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and _is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        try:
            exact = node.value if isinstance(node.value, int) else str(node.value)  # through text 0.1 is a tenth
            return Fraction(exact)
        except ValueError:
            raise ToolError("a number is too large") from None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ToolError("division by zero")
        return _OPERATIONS[type(node.op)](left, right)
    raise ToolError("only numbers, + - * / and parentheses")
