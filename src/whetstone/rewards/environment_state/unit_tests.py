"""Unit test reward: code and tests run in separate sandboxes.

    tests request a call → the call runs in the solution's sandbox → its result, as a plain value, is returned

So a solution cannot read the tests, replace `assert`, hook the test runner, end the process with success, or return an
object that equals everything: only literals are exchanged. Tests that need the next result are run again from the
start, with the results so far and the same random numbers, which the solution has, too. Arguments that a call changes
in place are returned as well and changed in the tests.

Whole programs are tested by standard input and output, each run in a separate interpreter in a sandbox. Lines are
compared without surrounding blanks, and numbers by value, so `1.50` equals `1.5`. An additional or missing line is a
difference.

Note: If the solution makes the tests fail, by a result that is too long or by its run time, the solution fails. Only if
tests fail before the first result is the score unknown.

Source: Jain et al. 2024, LiveCodeBench, arXiv:2403.07974, for tests over standard input.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from whetstone.rewards.calls.canonical import same_value
from whetstone.rewards.environment_state.extract_code import extract_code
from whetstone.sandbox import Ending, Limits, Outcome, Session, shared_sandbox
from whetstone.sandbox.guest_call import call_in_guest, read_literal, tuples_to_lists
from whetstone.trajectory import Score, Task, Trajectory

TESTS_LIMITS = Limits(output_characters=1 << 20)
"""Limits of the sessions of tests and of tested code."""
_MOST_CALLS = 2000
_DRIVER = Path(__file__).with_name("tests_driver.py").read_text()


@dataclass(frozen=True, slots=True)
class UnitTestResult:
    """Result of the unit tests of one solution."""

    passed: int
    """Number of tests that passed."""
    of: int
    """Number of tests of the task."""
    reason: str = ""
    """Reason of the first failure; empty if all tests passed."""


class UnitTests:
    """Returns 1 if the final answer's code passes the task's tests, else 0.

    `task.private` has `entry_point`, the function's name, and either `cases`, a list of `[arguments, result]`, or
    `test`, Python that asserts (with a function `check(candidate)`, or by the function's name). Optional: `prelude`,
    trusted code that is prepended to both. For a whole program it has `runs` instead, a list of `[standard input,
    expected output]`: lines are compared, and numbers by their value.

    Args:
        seconds: Timeout of a call or of a run of a program, in seconds.
        total_seconds: Timeout of all calls, in seconds; the remaining ones have then failed.
        partial_credit: Return the fraction of cases that pass: denser, but partial answers score. For `runs`, those
            before the first failure.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        InfrastructureError: If the sandbox fails; the score is then unknown.

    Source: Chen et al. 2021, arXiv:2107.03374, for the tests of HumanEval; Jain et al. 2024, arXiv:2403.07974, for
    programs.
    """

    def __init__(
        self, *, seconds: float = 3.0, total_seconds: float = 30.0, partial_credit: bool = False, sandbox: str = "auto"
    ) -> None:
        self.seconds, self.total_seconds, self.partial_credit, self.sandbox = (
            seconds,
            total_seconds,
            partial_credit,
            sandbox,
        )

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Run the task's tests on the final code of a trajectory; 0 without code.

        Raises:
            InfrastructureError: If the sandbox fails; the score is then unknown.
            ValueError: If the task's tests themselves cannot be run.
        """
        code, private = extract_code(trajectory), task.private
        if code is None:
            return Score(0.0, {"correct": 0.0, "passed": 0.0}, success=False)
        graded = await self._graded(code, private)
        right = graded.passed == graded.of > 0
        passed = graded.passed / max(1, graded.of)
        return Score(
            passed if self.partial_credit else float(right), {"correct": float(right), "passed": passed}, success=right
        )

    async def grade_code(self, code: str, private: Mapping[str, Any]) -> bool:
        """Return whether code passes all tests of a task.

        Args:
            code: Source of the solution.
            private: Tests, as in `Task.private`.

        Raises:
            InfrastructureError: If the sandbox fails.
            ValueError: If the tests themselves cannot be run.
        """
        graded = await self._graded(code, private)
        return graded.passed == graded.of > 0

    async def _graded(self, code: str, private: Mapping[str, Any]) -> UnitTestResult:
        pool, program = shared_sandbox(self.sandbox), "runs" in private
        solution = pool.session(limits=TESTS_LIMITS, persistent=not program)
        tests = pool.session(limits=TESTS_LIMITS) if "cases" not in private and not program else None
        try:
            return await self._graded_in(solution, tests, code, private)
        finally:
            solution.close()
            if tests is not None:
                tests.close()

    async def _graded_in(
        self, solution: Session, tests: Session | None, code: str, private: Mapping[str, Any]
    ) -> UnitTestResult:
        if (runs := private.get("runs")) is not None:
            limits = {"seconds": self.seconds, "total_seconds": self.total_seconds}
            passed, reason = await count_passed_runs(solution, code, runs, **limits)
            return UnitTestResult(passed, len(runs), reason)
        entry, prelude = str(private["entry_point"]), str(private.get("prelude", ""))
        source = join_source(prelude, code, entry)
        loaded = await solution.python(f"{source}\nNone", wall_seconds=self.seconds)
        cases: Sequence[Any] | None = private.get("cases")
        of = len(cases) if cases is not None else 1
        if loaded.ending is not Ending.OK or loaded.restarted:
            return UnitTestResult(0, of, loaded.error or str(loaded.ending))
        if cases is not None:
            passed, spent = 0, 0.0
            for arguments, wanted in cases:
                result = await call_in_guest(solution, entry, repr((tuple(arguments), {})), seconds=self.seconds)
                spent += result.seconds
                if spent > self.total_seconds:
                    return UnitTestResult(passed, of, self._late)
                passed += result.kind == "value" and same_value(
                    tuples_to_lists(read_literal(result.text)), tuples_to_lists(wanted)
                )
            return UnitTestResult(passed, of)
        assert tests is not None
        limits = {"seconds": self.seconds, "total_seconds": self.total_seconds}
        return await run_assertions(solution, tests, entry, prelude, str(private["test"]), **limits)

    @property
    def _late(self) -> str:
        return _describe_delay(self.total_seconds)


def join_source(prelude: str, code: str, entry: str) -> str:
    """Return a program of a task's prelude and code, which defines the function `entry` or continues its prelude."""
    return f"{prelude}\n{code}" if prelude and f"def {entry}" in code else f"{prelude}{code}"


def _describe_delay(total_seconds: float) -> str:
    return f"all calls together took longer than {total_seconds:g} s"


async def run_assertions(
    solution: Session,
    test_session: Session,
    entry: str,
    prelude: str,
    tests: str,
    *,
    seconds: float,
    total_seconds: float,
) -> UnitTestResult:
    """Run assertion tests in one session against a solution that is loaded in another, call by call.

    Args:
        solution: Session in which `entry` is defined.
        test_session: Session of the tests, without earlier tests.
        entry: Name of the tested function.
        prelude: Trusted code that is prepended to the tests.
        tests: Python that asserts.
        seconds: Timeout of a call, in seconds.
        total_seconds: Timeout of all calls, in seconds.

    Raises:
        InfrastructureError: If the sandbox fails; the result is then unknown.
        ValueError: If the tests cannot be compiled.
    """
    spent = 0.0
    started = await test_session.python(f"{_DRIVER}\nprepare({prelude!r}, {tests!r})", wall_seconds=10.0)
    if started.ending is not Ending.OK:
        raise ValueError(f"the task's tests cannot be run: {started.error}")
    for _ in range(_MOST_CALLS):
        kind, text = _parse_attempt(await test_session.python(f"attempt({entry!r})", wall_seconds=10.0))
        if kind == "passed":
            return UnitTestResult(1, 1)
        if kind == "failed":
            return UnitTestResult(0, 1, text)
        outcome = await call_in_guest(solution, entry, text, seconds=seconds)
        spent += outcome.seconds
        if outcome.kind == "unusable" or spent > total_seconds:
            return UnitTestResult(0, 1, outcome.text if outcome.kind == "unusable" else _describe_delay(total_seconds))
        result = (outcome.kind, outcome.text, outcome.changed_arguments)
        handed = await test_session.python(f"results.append({result!r})\nNone", wall_seconds=10.0)
        if handed.ending is not Ending.OK:
            return UnitTestResult(0, 1, f"its result cannot be passed to the tests: {handed.error}")
    return UnitTestResult(0, 1, f"more than {_MOST_CALLS} calls")


def _parse_attempt(outcome: Outcome) -> tuple[str, str]:
    if outcome.ending is not Ending.OK:
        return "failed", outcome.error or str(outcome.ending)
    try:
        kind, text = ast.literal_eval(outcome.value or "")
    except (ValueError, SyntaxError):  # truncated, since its arguments are too long
        return "failed", "the tests request a call with arguments that are too long"
    return str(kind), str(text)


_PROGRAM_DRIVER = Path(__file__).with_name("program_driver.py").read_text(encoding="utf-8")


async def count_passed_runs(
    session: Session, code: str, runs: Sequence[Sequence[str]], *, seconds: float, total_seconds: float
) -> tuple[int, str]:
    """Run the input-output tests of a program until the first failure.

    Args:
        session: Sandbox session with a new interpreter for each call.
        code: Source of the program.
        runs: (standard input, expected output) of each run.
        seconds: Timeout of a run, in seconds.
        total_seconds: Timeout of all runs, in seconds; the remaining ones have then failed.

    Returns:
        (number of passed runs, reason of the failure); the reason is empty if all passed.

    Raises:
        InfrastructureError: If the sandbox fails; the score is then unknown.
    """
    spent = 0.0
    for number, (stdin_text, wanted) in enumerate(runs):
        outcome = await session.python(f"{_PROGRAM_DRIVER}\nrun({code!r}, {stdin_text!r})\nNone", wall_seconds=seconds)
        spent += outcome.seconds
        if spent > total_seconds:
            return number, f"all runs together took longer than {total_seconds:g} s"
        if outcome.ending is not Ending.OK:
            return number, outcome.error or str(outcome.ending)
        if not same_output(outcome.output, wanted):
            return number, f"it prints {outcome.output[:100]!r}, not {wanted[:100]!r}"
    return len(runs), ""


def same_output(printed: str, wanted: str) -> bool:
    r"""Return whether the output of a program equals the expected one, line by line.

    >>> same_output("1.50 2 \n", "1.5 2"), same_output("a b", "a  b"), same_output("1\n", "1\n1")
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
