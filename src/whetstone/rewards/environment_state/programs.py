"""Tests of whole programs by standard input and output, each run in a separate interpreter in a sandbox.

Note: Lines are compared without surrounding blanks, and numbers by value, so `1.50` equals `1.5`. An additional or
missing line is a difference.

Source: Jain et al. 2024, LiveCodeBench, arXiv:2403.07974, for tests over standard input.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from whetstone.sandbox import Ending, Session

_DRIVER = Path(__file__).with_name("program_driver.py").read_text(encoding="utf-8")


async def count_passed_runs(
    session: Session, code: str, runs: Sequence[Sequence[str]], *, seconds: float, total_seconds: float
) -> tuple[int, str]:
    """Run the tests until the first failure; return (number of passed runs, reason of the failure).

    Args:
        session: Sandbox session with a new interpreter for each call.
        runs: (standard input, expected output) of each run.
        seconds: Timeout of a run, in seconds.
        total_seconds: Timeout of all runs, in seconds; the remaining ones have then failed.

    Raises:
        InfrastructureError: If the sandbox fails; the score is then unknown.
    """
    spent = 0.0
    for number, (stdin_text, wanted) in enumerate(runs):
        outcome = await session.python(f"{_DRIVER}\nrun({code!r}, {stdin_text!r})\nNone", wall_seconds=seconds)
        spent += outcome.seconds
        if spent > total_seconds:
            return number, f"all runs together took longer than {total_seconds:g} s"
        if outcome.ending is not Ending.OK:
            return number, outcome.error or str(outcome.ending)
        if not same_output(outcome.output, wanted):
            return number, f"it prints {outcome.output[:100]!r}, not {wanted[:100]!r}"
    return len(runs), ""


def same_output(printed: str, wanted: str) -> bool:
    """Return whether two outputs are equal, line by line.

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
