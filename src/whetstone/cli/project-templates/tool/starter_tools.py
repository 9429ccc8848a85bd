"""A tool. Calls are validated against the signature; the docstring is the description for the model."""

import operator
import re

from whetstone.errors import ToolError
from whetstone.tools import effects

_TERM = re.compile(r"\s*(-?\d+)\s*([-+*])\s*(-?\d+)\s*")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@effects("read")  # changes nothing outside of the episode; else "write" or "destructive"
def compute(expression: str) -> int:
    """One operation on two whole numbers.

    Args:
        expression: Two numbers with one of + - * between them.
    """
    read = _TERM.fullmatch(expression)
    if read is None:
        raise ToolError("two whole numbers with one of + - * between them")  # the model reads this, and may try again
    return int(_OPERATIONS[read[2]](int(read[1]), int(read[3])))
