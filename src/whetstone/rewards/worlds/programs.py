"""Does a program print what it should for what it reads? Each run is an interpreter of its own, in a sandbox.

Easy to get wrong: what is the same. Lines are compared without the blanks around them, and numbers by their value, so
that `1.50` is `1.5`; a line more or less is another answer.

Source: Jain et al. 2024, LiveCodeBench, arXiv:2403.07974, for tests over standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from whetstone.sandbox import Ending, Session

_DRIVER = Path(__file__).with_name("program_driver.py").read_text(encoding="utf-8")


async def runs_passed(
    session: Session, code: str, runs: Sequence[Sequence[str]], *, seconds: float, total_seconds: float
) -> tuple[int, str]:
    """(runs that print what they should, before the first that does not; what is wrong with that one)

    Args:
        session: Of which each call has a new interpreter.
        runs: What is read and what is to be printed, of each.
        seconds: How long one may take.
        total_seconds: How long all of them may; those that are left then have failed.

    Raises:
        InfrastructureError: The sandbox failed; nothing is known of the code.
    """
    spent = 0.0
    for number, (given, wanted) in enumerate(runs):
        came = await session.python(f"{_DRIVER}\nrun({code!r}, {given!r})\nNone", wall_seconds=seconds)
        spent += came.seconds
        if spent > total_seconds:
            return number, f"all runs together took longer than {total_seconds:g} s"
        if came.ending is not Ending.OK:
            return number, came.error or str(came.ending)
        if not same_output(came.output, wanted):
            return number, f"it prints {came.output[:100]!r}, not {wanted[:100]!r}"
    return len(runs), ""


def same_output(printed: str, wanted: str) -> bool:
    """Whether two outputs are the same, line by line.

    >>> same_output("1.50 2 \\n", "1.5 2"), same_output("a b", "a  b"), same_output("1\\n", "1\\n1")
    (True, False, False)
    """
    lines, others = (text.strip().split("\n") for text in (printed, wanted))
    return len(lines) == len(others) and all(map(_same_line, lines, others))


def _same_line(line: str, other: str) -> bool:
    if line.strip() == other.strip():
        return True
    numbers, others = _numbers(line), _numbers(other)
    return numbers is not None and numbers == others


def _numbers(line: str) -> list[Decimal] | None:
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
