"""Speedup reward: the median ratio of paired run times of reference and solution, if their outputs are equal.

    correct on fresh inputs?  → pairs of runs in random order, each on separate inputs → median of t_ref / t_new
    → small spread?  → a suspiciously large gain is measured again

Note: A policy cheats whatever is timed. Reference and solution run in separate sandboxes and are timed from outside, so
no clock can be replaced. Every timed call has new inputs, and its output, as a plain value, is compared with the
reference's, so nothing can be cached, deferred or skipped. A solution can vary its times on purpose, so only the
reference's times show whether the machine is noisy.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.errors import InfrastructureError
from whetstone.rewards.environment_state.extract_code import extract_code
from whetstone.sandbox import Ending, Limits, Outcome, Session, shared_sandbox
from whetstone.sandbox.guest_call import read_literal
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

_LIMITS = Limits(output_characters=1 << 20)


@dataclass(frozen=True, slots=True)
class Timed:
    """Result of paired runs of reference and solution."""

    ratios: tuple[float, ...]
    """Ratio t_ref / t_new of each pair."""
    reference: tuple[float, ...] = ()
    """Run times of the reference, in seconds."""
    wrong: str = ""
    """Reason why the solution is invalid; empty if it is valid."""


class Speedup:
    """Returns the median ratio of the reference's time to the solution's if all outputs are equal, else 0.

    `task.private` has `reference`, code; `entry_point`, the function's name in both; and `inputs`, code with a function
    `inputs(seed)` that returns the arguments as a tuple of plain values, large enough to take some milliseconds.

    Args:
        pairs: Number of timed runs of each.
        seconds: Timeout of a run, in seconds.
        spread: Maximum interquartile range of the reference's times over their median; above it the score is unknown.
            If only the ratios spread more, the solution varies its times, and the lower quartile counts.
        suspicious: Ratio from which everything is measured again on other inputs; the lower ratio counts.
        tolerance: Relative tolerance of numbers in outputs.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        InfrastructureError: If times on this machine vary too much.

    Source: Li et al. 2025 (CUDA-L1), arXiv:2507.14111, on the CPU; the definition of the spread is ours.
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
            raise ValueError(f"pairs must be at least 3, got {pairs}")
        self.pairs, self.seconds, self.spread, self.suspicious = pairs, seconds, spread, suspicious
        self.tolerance, self.sandbox = tolerance, sandbox

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the measured speedup of its final code.

        Returns 0 without code or with wrong outputs.

        Raises:
            InfrastructureError: If times on this machine vary too much.
            ValueError: If the task's reference or inputs do not run.
        """
        code = extract_code(trajectory)
        if code is None:
            return _score(0.0)
        timed = await self._measured(code, task, 0)
        if timed.wrong:
            return _score(0.0)
        ratio = self._ratio(timed)
        if ratio >= self.suspicious:
            second = await self._measured(code, task, 1)
            if second.wrong:
                return _score(0.0)
            ratio = min(ratio, self._ratio(second))
        return _score(ratio)

    def _ratio(self, timed: Timed) -> float:
        if relative_iqr(timed.ratios) <= self.spread:
            return statistics.median(timed.ratios)
        return statistics.quantiles(timed.ratios, n=4)[0]

    async def _measured(self, code: str, task: Task, turn: int) -> Timed:
        """Measure paired runs, up to three times if the machine is noisy.

        Raises:
            InfrastructureError: If the machine stays noisy.
        """
        for attempt in range(3):
            timed = await self._pairs(code, task, turn * 3 + attempt)
            if timed.wrong or relative_iqr(timed.ratios) <= self.spread:
                return timed
        if relative_iqr(timed.reference) <= self.spread:
            return timed
        raise InfrastructureError("run times on this machine vary too much to measure a speedup; stop other processes")

    async def _pairs(self, code: str, task: Task, attempt: int) -> Timed:
        pool, private = shared_sandbox(self.sandbox), task.private
        reference_session, solution_session = pool.session(limits=_LIMITS), pool.session(limits=_LIMITS)
        try:
            loaded = await reference_session.python(
                f"{private['reference']}\n{private['inputs']}\nNone", wall_seconds=self.seconds
            )
            if loaded.ending is not Ending.OK:
                raise ValueError(f"the task's reference or inputs do not run: {loaded.error}")
            loaded = await solution_session.python(f"{code}\nNone", wall_seconds=self.seconds)
            if loaded.ending is not Ending.OK or loaded.restarted:
                return Timed((), wrong=f"it does not run: {loaded.error}")
            rng = derive_random("speedup", task.id, attempt)
            ratios, reference = [], []
            for number in range(self.pairs + 1):  # the first pair only warms up
                seed, reference_first = rng.getrandbits(32), rng.random() < 0.5
                inputs = await reference_session.python(f"inputs({seed})", wall_seconds=self.seconds)
                if inputs.ending is not Ending.OK or inputs.value is None:
                    raise ValueError(f"the task's inputs cannot be created: {inputs.error}")
                sides = (
                    [reference_session, solution_session] if reference_first else [solution_session, reference_session]
                )
                outcomes = {
                    id(side): await self._run(side, str(private["entry_point"]), inputs.value) for side in sides
                }
                expected, actual = outcomes[id(reference_session)], outcomes[id(solution_session)]
                if expected.ending is not Ending.OK:
                    raise ValueError(f"the task's reference does not run: {expected.error}")
                if actual.ending is not Ending.OK:
                    return Timed((), wrong=f"it fails: {actual.error}")
                if not _same_output(expected.value, actual.value, self.tolerance):
                    return Timed((), wrong="its output differs")
                if number:
                    ratios.append(expected.seconds / max(actual.seconds, 1e-9))
                    reference.append(expected.seconds)
            return Timed(tuple(ratios), tuple(reference))
        finally:
            reference_session.close()
            solution_session.close()

    async def _run(self, session: Session, entry: str, arguments: str) -> Outcome:
        """Time one call; arguments are set before the clock starts, and the output is a plain value when it stops."""
        put = await session.python(f"_given = {arguments}\nNone", wall_seconds=self.seconds)
        if put.ending is not Ending.OK:
            return put
        return await session.python(f"({entry}(*_given),)", wall_seconds=self.seconds)


def relative_iqr(ratios: Sequence[float]) -> float:
    """Compute the interquartile range divided by the median."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / middle


def standardize_speedups(speedups: Sequence[float], *, limit: float = 1.5) -> list[float]:
    """Compute [N] standardized speedups clip((r − μ) / σ, −k, k), with μ and σ over all.

    Returns 0 if all are equal. k is `limit`.

    Source: Li et al. 2025 (CUDA-L1), arXiv:2507.14111, §2.
    """
    mean, deviation = statistics.fmean(speedups), statistics.pstdev(speedups)
    if deviation == 0:
        return [0.0] * len(speedups)
    return [min(limit, max(-limit, (speedup - mean) / deviation)) for speedup in speedups]


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
