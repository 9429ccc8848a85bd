"""Scoring of trajectories: calls the reward and stores the score, or marks the trajectory invalid with the reason.

Note: An error in a reward must never become a number. After an exception, a non-finite value, rewards for more turns
than there are, or an unavailable judge, the trajectory is excluded from the statistics and counted. The metrics show it
by its end reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from whetstone.errors import InfrastructureError, WhetstoneError, exception_text
from whetstone.rewards.adapting import to_score
from whetstone.rewards.judges.judge_log import capture_judgments
from whetstone.rewards.protocol import GroupReward, Reward
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import EndReason, Judgement, RemovalScope, Score, Task, Trajectory
from whetstone.user_code import describe_exception

REWARD_FAILED = "the reward failed: "
"""Prefix of a trajectory's error if its reward failed."""


async def score_trajectory(
    reward: Reward, trajectory: Trajectory, task: Task, *, seconds: float | None = None
) -> Trajectory:
    """Compute the reward of a trajectory and store the score in it.

    If the end reason is invalid or the reward fails, the trajectory has no score and is removed from all statistics;
    the error names the reason.

    Args:
        reward: Reward of the recipe.
        trajectory: Finished trajectory.
        task: Task of the trajectory.
        seconds: Timeout of the reward, in seconds; None: no timeout.

    Raises:
        WhetstoneError: If the user has to fix something, such as a judge that does not exist.
    """
    if not trajectory.ended.valid:
        return replace(trajectory, removal=RemovalScope.BEFORE_BASELINE)
    try:
        with capture_judgments() as judgments:
            score = await _within(seconds, call_user_function(reward, trajectory, task))
        return _with(trajectory, score, judgments)
    except WhetstoneError:
        raise
    except KeyError as failure:
        keys = ", ".join(map(str, task.private)) or "nothing"
        return _failed(trajectory, failure, f" (the task's private data has {keys})")
    except (Exception, SystemExit) as failure:  # `sys.exit` in a reward ends the reward, not the run
        return _failed(trajectory, failure)


async def score_group(
    reward: Reward, trajectories: Sequence[Trajectory], task: Task, *, seconds: float | None = None
) -> tuple[Trajectory, ...]:
    """Score the trajectories of a group in comparison with each other if the reward is a `GroupReward`.

    Trajectories without a score are left out. If the reward fails, all compared trajectories lose their scores.

    Args:
        reward: Reward of the recipe.
        trajectories: Trajectories of one group, scored by `score_trajectory`.
        task: Task of the group.
        seconds: Timeout of the reward, in seconds; None: no timeout.

    Returns:
        The trajectories in the same order; unchanged if the reward does not compare.

    Raises:
        WhetstoneError: If the user has to fix something, such as a judge that does not exist.
    """
    if not isinstance(reward, GroupReward):
        return tuple(trajectories)
    places = [place for place, trajectory in enumerate(trajectories) if trajectory.score is not None]
    changed = list(trajectories)
    try:
        judged = [trajectories[place] for place in places]
        scores = await _within(seconds, call_user_function(reward.compared, judged, task))
        if len(scores) != len(places):
            raise ValueError(
                f"it returned {len(scores)} scores for {len(places)} trajectories; return one per trajectory"
            )
    except WhetstoneError:
        raise
    except (Exception, SystemExit) as failure:
        for place in places:
            changed[place] = _failed(trajectories[place], failure)
        return tuple(changed)
    for place, score in zip(places, scores, strict=True):
        try:
            changed[place] = _with(trajectories[place], score)
        except (TypeError, ValueError) as failure:
            changed[place] = _failed(trajectories[place], failure)
    return tuple(changed)


async def _within(seconds: float | None, judging: Awaitable[Any]) -> Any:
    """Await the reward with a timeout.

    Raises:
        InfrastructureError: If the timeout expires.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await judging
    except TimeoutError:
        if limit.expired():
            raise InfrastructureError(
                f"the reward returned no answer within {seconds:g} s (rollout.reward_timeout_seconds)"
            ) from None
        raise


def _with(trajectory: Trajectory, score: Any, judgments: Sequence[Judgement] = ()) -> Trajectory:
    score = to_score(score)
    if score.invalid:
        return _failed(trajectory, InfrastructureError(score.invalid))
    score = _in_numbers(score)
    for name, row in {"turns": score.turns, **score.signals}.items():
        if row is not None and len(row) != len(trajectory.turns):
            raise ValueError(f"it returned {len(row)} {name} for {len(trajectory.turns)} turns; return one per turn")
    values = {"value": score.value, **{f"part {name}": value for name, value in score.parts.items()}}
    values |= {f"turn {number}": value for number, value in enumerate(score.turns or ())}
    values |= {f"signal {name}": math.fsum(row) for name, row in score.signals.items()}
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"it returned {value} as {name}; return a finite number")
    return replace(trajectory, score=replace(score, judgements=score.judgements or tuple(judgments)))


def _in_numbers(score: Score) -> Score:
    """Convert the numbers of a score, from any library, to Python numbers.

    Raises:
        TypeError: If a value is not a number, or `success` is not a boolean.
    """
    return replace(
        score,
        value=_number(score.value, "value"),
        parts={str(name): _number(value, f"part {name}") for name, value in score.parts.items()},
        turns=None if score.turns is None else tuple(_number(value, "turns") for value in score.turns),
        success=_truth(score.success),
        signals={
            str(name): tuple(_number(value, f"signal {name}") for value in row) for name, row in score.signals.items()
        },
    )


def _number(value: Any, name: str) -> float:
    number = value.item() if hasattr(value, "item") else value  # of NumPy or PyTorch
    if not isinstance(number, Real):
        raise TypeError(f"{name}: {_short(value)} is not a number")
    return float(number)


def _truth(value: Any) -> bool | None:
    truth = value.item() if hasattr(value, "item") else value
    if truth is not None and not isinstance(truth, bool):
        raise TypeError(f"success must be True, False or None, got {_short(value)}")
    return truth


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:59]}…"


def _failed(trajectory: Trajectory, failure: BaseException, more: str = "") -> Trajectory:
    server = isinstance(failure, InfrastructureError)
    text = exception_text(failure) if server else describe_exception(failure)
    return replace(
        trajectory,
        ended=EndReason.INFRASTRUCTURE if server else EndReason.ERROR,
        error=f"{REWARD_FAILED}{text}{more}",
        score=None,
        removal=RemovalScope.BEFORE_BASELINE,
    )
