"""Does the code do what its tests ask? Code and tests never meet: each runs in a sandbox of its own.

    tests ask for a call → the call is made where the solution lives → its result, as a plain value, goes back

So a solution cannot read the tests, replace `assert`, hook the test runner, end the process with success, or hand over
an object that equals everything: all that comes across is a literal. Tests that are in need of the next result are run
again from their start, with the results so far; their random numbers begin alike each time, as the solution's do.
Arguments that a call changes in place come back, too, and are changed where the tests hold them.

Easy to get wrong: a failure of the tests that the solution has brought about, by a result that is too long to be handed
on or by the time it takes, is a solution that fails. Only tests that fail before it has said anything say nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.rewards.calls.canonical import same_value
from whetstone.rewards.worlds.programs import runs_passed
from whetstone.rewards.worlds.solution import solution_of
from whetstone.sandbox import Ending, Limits, Outcome, Session, shared_sandbox
from whetstone.sandbox.calling import called_there, listed, read_literal
from whetstone.trajectory import Score, Task, Trajectory

_LIMITS = Limits(output_characters=1 << 20)
_MOST_CALLS = 2000
_DRIVER = Path(__file__).with_name("tests_driver.py").read_text()


@dataclass(frozen=True, slots=True)
class Graded:
    """What tests came to."""

    passed: int
    of: int
    said: str = ""
    """Of the first that failed."""


class UnitTests:
    """1 where the final answer's code passes the task's tests, else 0.

    `task.private` has `entry_point`, the function's name, and either `cases`, a list of `[arguments, result]`, or
    `test`, Python that asserts (with a function `check(candidate)`, or by the function's name); and `prelude`, trusted
    code that stands in front of both, where there is some. Of a whole program it has `runs` instead, a list of
    `[standard input, what is to be printed]`: lines are compared, and numbers by their value.

    Args:
        seconds: How long each call may take, and each run of a program.
        total_seconds: How long all of them may; those that are left then have failed.
        partial_credit: Return the fraction of cases that pass: denser, and met by half an answer. Of runs, those
            before the first that fails.
        sandbox: As of the tool `python`.

    Raises:
        InfrastructureError: The sandbox failed; nothing is known of the code.

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
        """Run them."""
        code, private = solution_of(trajectory), task.private
        if code is None:
            return Score(0.0, {"correct": 0.0, "passed": 0.0}, success=False)
        pool = shared_sandbox(self.sandbox)
        program = "runs" in private
        theirs = pool.session(limits=_LIMITS, persistent=not program)
        ours = pool.session(limits=_LIMITS) if "cases" not in private and not program else None
        try:
            graded = await self._graded(theirs, ours, code, private)
        finally:
            theirs.close()
            if ours is not None:
                ours.close()
        right = graded.passed == graded.of > 0
        passed = graded.passed / max(1, graded.of)
        return Score(
            passed if self.partial_credit else float(right), {"correct": float(right), "passed": passed}, success=right
        )

    async def _graded(self, theirs: Session, ours: Session | None, code: str, private: Any) -> Graded:
        if (runs := private.get("runs")) is not None:
            limits = {"seconds": self.seconds, "total_seconds": self.total_seconds}
            passed, said = await runs_passed(theirs, code, runs, **limits)
            return Graded(passed, len(runs), said)
        entry, prelude = str(private["entry_point"]), str(private.get("prelude", ""))
        whole = f"{prelude}\n{code}" if prelude and f"def {entry}" in code else f"{prelude}{code}"
        loaded = await theirs.python(f"{whole}\nNone", wall_seconds=self.seconds)
        cases: Sequence[Any] | None = private.get("cases")
        of = len(cases) if cases is not None else 1
        if loaded.ending is not Ending.OK or loaded.restarted:
            return Graded(0, of, loaded.error or str(loaded.ending))
        if cases is not None:
            passed, spent = 0, 0.0
            for arguments, wanted in cases:
                came = await called_there(theirs, entry, repr((tuple(arguments), {})), seconds=self.seconds)
                spent += came.seconds
                if spent > self.total_seconds:
                    return Graded(passed, of, self._late)
                passed += came.kind == "value" and same_value(listed(read_literal(came.said)), listed(wanted))
            return Graded(passed, of)
        assert ours is not None
        return await self._asserted(theirs, ours, entry, prelude, str(private["test"]))

    @property
    def _late(self) -> str:
        return f"all calls together took longer than {self.total_seconds:g} s"

    async def _asserted(self, theirs: Session, ours: Session, entry: str, prelude: str, tests: str) -> Graded:
        """Play the tests against the solution, call by call.

        Raises:
            ValueError: The tests themselves cannot be run.
        """
        spent = 0.0
        started = await ours.python(f"{_DRIVER}\nprepare({prelude!r}, {tests!r})", wall_seconds=10.0)
        if started.ending is not Ending.OK:
            raise ValueError(f"the task's tests cannot be run: {started.error}")
        for _ in range(_MOST_CALLS):
            kind, said = _pair(await ours.python(f"attempt({entry!r})", wall_seconds=10.0))
            if kind == "passed":
                return Graded(1, 1)
            if kind == "failed":
                return Graded(0, 1, said)
            came = await called_there(theirs, entry, said, seconds=self.seconds)
            spent += came.seconds
            if came.kind == "unusable" or spent > self.total_seconds:
                return Graded(0, 1, came.said if came.kind == "unusable" else self._late)
            result = (came.kind, came.said, came.left)
            handed = await ours.python(f"results.append({result!r})\nNone", wall_seconds=10.0)
            if handed.ending is not Ending.OK:
                return Graded(0, 1, f"its result cannot be handed on: {handed.error}")
        return Graded(0, 1, f"more than {_MOST_CALLS} calls")


def _pair(outcome: Outcome) -> tuple[str, str]:
    if outcome.ending is not Ending.OK:
        return "failed", outcome.error or str(outcome.ending)
    try:
        kind, said = ast.literal_eval(outcome.value or "")
    except (ValueError, SyntaxError):  # cut off, since its arguments are longer than anybody hands over
        return "failed", "the tests ask for a call with arguments that are too long"
    return str(kind), str(said)
