"""Expert match reward per turn, for episodes that replay a recorded trajectory (`environment_wrapper: log_replay`).

Note: In an evaluation there is no recorded trajectory, and turns have no match reward; only the outcome counts.
"""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.environment_state.environment_outcome import verdict
from whetstone.rewards.protocol import Reward, provides
from whetstone.trajectory import EndReason, Score, Task, Trajectory


@provides("process_rewards", "matched")
async def expert_match(trajectory: Trajectory, task: Task, *, outcome: Reward = verdict) -> Score:
    """Score the outcome, and each turn by whether its action matched the expert's: 1, or 0 if it was replaced.

    The environment wrapper `log_replay` records the match as the reward of the turn. An episode that the wrapper ended,
    with no patch left, has failed. This is the counterpart of `matched_calls` for environments with text actions.

    Args:
        outcome: Reward of the episode.

    Source: the step accuracy reward of Lu et al. 2025 (UI-S1), arXiv:2509.11543; its format reward is left to the
    environment here.
    """
    if trajectory.ended is EndReason.EARLY_STOPPED:
        score = Score(0.0, {"success": 0.0}, success=False)
    else:
        score = await outcome(trajectory, task)
    if score.invalid:
        return score
    matched = tuple(float(turn.reward == 1.0) for turn in trajectory.turns)
    return replace(score, turns=matched, signals={**score.signals, "matched": matched})
