"""What becomes of a trajectory when its reward is asked? It has a score, or it is invalid and says why.

Easy to get wrong: whatever goes wrong in a reward, a number must not come of it. An exception, a value that is not
finite, rewards for more turns than there are, a judge that is down: each takes the trajectory out of the statistics, is
counted, and is seen in the metrics by the way the episode ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from whetstone.errors import InfrastructureError, WhetstoneError, said_by
from whetstone.rewards.adapting import to_score
from whetstone.rewards.judges.heard import judgements_heard
from whetstone.rewards.protocol import Compares, Reward
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import EndReason, Judgement, RemovalScope, Score, Task, Trajectory
from whetstone.user_code import describe_exception

REWARD_FAILED = "the reward failed: "
"""What the error of a trajectory begins with whose reward did."""


async def scored(reward: Reward, trajectory: Trajectory, task: Task, *, seconds: float | None = None) -> Trajectory:
    """The trajectory with its score; without one, and removed, where its ending or its reward is not valid.

    Args:
        seconds: The reward may take; None: any.

    Raises:
        WhetstoneError: Something a person has to mend, such as a judge that does not exist.
    """
    if not trajectory.ended.valid:
        return replace(trajectory, removal=RemovalScope.BEFORE_BASELINE)
    try:
        with judgements_heard() as heard:
            score = await _within(seconds, call_user_function(reward, trajectory, task))
        return _with(trajectory, score, heard)
    except WhetstoneError:
        raise
    except KeyError as failure:
        there = ", ".join(map(str, task.private)) or "nothing"
        return _failed(trajectory, failure, f" (the task's private data has {there})")
    except (Exception, SystemExit) as failure:  # `sys.exit` in a reward ends the reward, not the run
        return _failed(trajectory, failure)


async def compared(
    reward: Reward, trajectories: Sequence[Trajectory], task: Task, *, seconds: float | None = None
) -> tuple[Trajectory, ...]:
    """The trajectories of a group with the scores they have beside each other; as they are where the reward looks at
    each alone.

    Args:
        seconds: The reward may take; None: any.
    """
    if not isinstance(reward, Compares):
        return tuple(trajectories)
    places = [place for place, trajectory in enumerate(trajectories) if trajectory.score is not None]
    changed = list(trajectories)
    try:
        judged = [trajectories[place] for place in places]
        scores = await _within(seconds, call_user_function(reward.compared, judged, task))
        if len(scores) != len(places):
            raise ValueError(f"it said {len(scores)} scores of {len(places)} trajectories")
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
    """What the reward says.

    Raises:
        InfrastructureError: It did not say it in time.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await judging
    except TimeoutError:
        if limit.expired():
            raise InfrastructureError(f"no answer within {seconds:g} s (rollout.reward_timeout_seconds)") from None
        raise


def _with(trajectory: Trajectory, score: Any, heard: Sequence[Judgement] = ()) -> Trajectory:
    score = to_score(score)
    if score.invalid:
        return _failed(trajectory, InfrastructureError(score.invalid))
    score = _in_numbers(score)
    for name, row in {"turns": score.turns, **score.signals}.items():
        if row is not None and len(row) != len(trajectory.turns):
            raise ValueError(f"it said {len(row)} {name} of {len(trajectory.turns)} turns")
    said = {"value": score.value, **{f"part {name}": value for name, value in score.parts.items()}}
    said |= {f"turn {number}": value for number, value in enumerate(score.turns or ())}
    said |= {f"signal {name}": math.fsum(row) for name, row in score.signals.items()}
    for name, value in said.items():
        if not math.isfinite(value):
            raise ValueError(f"it said {value} as {name}")
    return replace(trajectory, score=replace(score, judgements=score.judgements or tuple(heard)))


def _in_numbers(score: Score) -> Score:
    """The score in Python's own numbers, whatever library they came from.

    Raises:
        TypeError: Something in it is not a number, or `success` is neither true nor false.
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
    found = value.item() if hasattr(value, "item") else value  # of NumPy or PyTorch
    if not isinstance(found, Real):
        raise TypeError(f"{name}: {_short(value)} is not a number")
    return float(found)


def _truth(value: Any) -> bool | None:
    found = value.item() if hasattr(value, "item") else value
    if found is not None and not isinstance(found, bool):
        raise TypeError(f"it said {_short(value)} as success, which is True, False or None")
    return found


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:59]}…"


def _failed(trajectory: Trajectory, failure: BaseException, more: str = "") -> Trajectory:
    server = isinstance(failure, InfrastructureError)
    said = said_by(failure) if server else describe_exception(failure)
    return replace(
        trajectory,
        ended=EndReason.INFRASTRUCTURE if server else EndReason.ERROR,
        error=f"{REWARD_FAILED}{said}{more}",
        score=None,
        removal=RemovalScope.BEFORE_BASELINE,
    )
