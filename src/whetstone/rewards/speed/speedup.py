"""How much faster is it than the reference, where it does the same? The median ratio of paired runs, on this machine.

    correct on fresh inputs?  → pairs of runs in random order, each on inputs of its own → median of t_ref / t_new
    → steady enough?  → a gain that is too good is measured once more

Easy to get wrong: what is timed is what will be cheated. Reference and solution live in sandboxes of their own and are
timed from outside, so no clock can be replaced; every timed call has inputs nobody saw before and its output, as a
plain value, is compared with the reference's, so nothing is cached, put off or left out. And a solution can be unsteady
on purpose: whether the machine is, the reference's times alone tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.rewards.worlds.solution import solution_of
from whetstone.sandbox import Ending, Limits, Outcome, Session, shared_sandbox
from whetstone.sandbox.calling import read_literal
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

_LIMITS = Limits(output_characters=1 << 20)


@dataclass(frozen=True, slots=True)
class Timed:
    """Paired runs."""

    ratios: tuple[float, ...]
    """t_ref / t_new of each pair."""
    reference: tuple[float, ...] = ()
    """Seconds of the reference."""
    wrong: str = ""
    """Why the solution is none."""


class Speedup:
    """The median ratio of the reference's time to the solution's where every output is the same, else 0.

    `task.private` has `reference`, code; `entry_point`, the function's name in both; and `inputs`, code with a function
    `inputs(seed)` that gives the arguments as a tuple of plain values, large enough to take some milliseconds.

    Args:
        pairs: Runs of each.
        seconds: How long each may take.
        spread: How far the middle half of the reference's times may lie apart, over their median, before nothing is
            known; where the ratios alone lie further apart, the solution is unsteady, and the lowest quarter counts.
        suspicious: A ratio from which on all is measured once more, on other inputs; the lower one counts.
        tolerance: Relative, of numbers in outputs.
        sandbox: As of the tool `python`.

    Raises:
        InfrastructureError: The machine was too unsteady to tell.

    Source: Li et al. 2025 (CUDA-L1), arXiv:2507.14111, on the CPU; what unsteady is, is ours.
    """

    def __init__(
        self,
        *,
        pairs: int = 9,
        seconds: float = 10.0,
        spread: float = 0.5,
        suspicious: float = 5.0,
        tolerance: float = 1e-6,
        sandbox: str = "auto",
    ) -> None:
        if pairs < 3:
            raise ValueError(f"pairs is 3 or more, got {pairs}")
        self.pairs, self.seconds, self.spread, self.suspicious = pairs, seconds, spread, suspicious
        self.tolerance, self.sandbox = tolerance, sandbox

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Measure it."""
        code = solution_of(trajectory)
        if code is None:
            return _score(0.0)
        timed = await self._measured(code, task, 0)
        if timed.wrong:
            return _score(0.0)
        ratio = self._ratio(timed)
        if ratio >= self.suspicious:
            again = await self._measured(code, task, 1)
            if again.wrong:
                return _score(0.0)
            ratio = min(ratio, self._ratio(again))
        return _score(ratio)

    def _ratio(self, timed: Timed) -> float:
        if unsteadiness(timed.ratios) <= self.spread:
            return statistics.median(timed.ratios)
        return statistics.quantiles(timed.ratios, n=4)[0]

    async def _measured(self, code: str, task: Task, turn: int) -> Timed:
        """Paired runs, three times over where the machine is unsteady.

        Raises:
            InfrastructureError: It stayed unsteady.
        """
        for attempt in range(3):
            timed = await self._pairs(code, task, turn * 3 + attempt)
            if timed.wrong or unsteadiness(timed.ratios) <= self.spread:
                return timed
        if unsteadiness(timed.reference) <= self.spread:
            return timed
        raise InfrastructureError("times are too unsteady on this machine to tell a speedup")

    async def _pairs(self, code: str, task: Task, attempt: int) -> Timed:
        pool, private = shared_sandbox(self.sandbox), task.private
        ours, theirs = pool.session(limits=_LIMITS), pool.session(limits=_LIMITS)
        try:
            begun = await ours.python(f"{private['reference']}\n{private['inputs']}\nNone", wall_seconds=self.seconds)
            if begun.ending is not Ending.OK:
                raise ValueError(f"the task's reference or inputs do not run: {begun.error}")
            begun = await theirs.python(f"{code}\nNone", wall_seconds=self.seconds)
            if begun.ending is not Ending.OK or begun.restarted:
                return Timed((), wrong=f"it does not run: {begun.error}")
            draw = derive_random("speedup", task.id, attempt)
            ratios, reference = [], []
            for number in range(self.pairs + 1):  # the first pair only warms up
                seed, reference_first = draw.getrandbits(32), draw.random() < 0.5
                given = await ours.python(f"inputs({seed})", wall_seconds=self.seconds)
                if given.ending is not Ending.OK or given.value is None:
                    raise ValueError(f"the task's inputs cannot be made: {given.error}")
                sides = [ours, theirs] if reference_first else [theirs, ours]
                outcomes = {id(side): await self._run(side, str(private["entry_point"]), given.value) for side in sides}
                mine, other = outcomes[id(ours)], outcomes[id(theirs)]
                if mine.ending is not Ending.OK:
                    raise ValueError(f"the task's reference does not run: {mine.error}")
                if other.ending is not Ending.OK:
                    return Timed((), wrong=f"it fails: {other.error}")
                if not _same_output(mine.value, other.value, self.tolerance):
                    return Timed((), wrong="its output is another")
                if number:
                    ratios.append(mine.seconds / max(other.seconds, 1e-9))
                    reference.append(mine.seconds)
            return Timed(tuple(ratios), tuple(reference))
        finally:
            ours.close()
            theirs.close()

    async def _run(self, session: Session, entry: str, given: str) -> Outcome:
        """A call, with its arguments in place before the clock starts and its output a value when it stops."""
        put = await session.python(f"_given = {given}\nNone", wall_seconds=self.seconds)
        if put.ending is not Ending.OK:
            return put
        return await session.python(f"({entry}(*_given),)", wall_seconds=self.seconds)


def unsteadiness(ratios: Sequence[float]) -> float:
    """How far the middle half lies apart, over the median."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / middle


def smoothed(speedups: Sequence[float], *, most: float = 1.5) -> list[float]:
    """[N] clip((r − μ) / σ, −k, k), μ and σ over all of them; 0 where they are all the same.

    Source: Li et al. 2025 (CUDA-L1), arXiv:2507.14111, §2.
    """
    mean, deviation = statistics.fmean(speedups), statistics.pstdev(speedups)
    if deviation == 0:
        return [0.0] * len(speedups)
    return [min(most, max(-most, (speedup - mean) / deviation)) for speedup in speedups]


def _same_output(one: str | None, other: str | None, tolerance: float) -> bool:
    try:
        return _same(read_literal(one or ""), read_literal(other or ""), tolerance)
    except (ValueError, SyntaxError, TypeError, KeyError, ArithmeticError, MemoryError, RecursionError):
        return False


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= tolerance * max(1.0, abs(one)) or one == other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], tolerance) for key in one)
    return type(one) is type(other) and bool(one == other)


def _score(ratio: float) -> Score:
    right = ratio > 0
    return Score(ratio, {"correct": float(right), "speedup": ratio, "faster": float(ratio > 1)}, success=right)
