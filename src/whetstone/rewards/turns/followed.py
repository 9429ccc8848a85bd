"""Which turns did what a recorded expert did? Made for episodes that walk a record (`environment_wrapper: log_replay`).

Easy to get wrong: in an evaluation nobody walks a record, and no turn says whether it followed one; the outcome stands.
"""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.protocol import Reward, provides
from whetstone.rewards.worlds.verdict import verdict
from whetstone.trajectory import EndReason, Score, Task, Trajectory


@provides("process_rewards", "matched")
async def expert_match(trajectory: Trajectory, task: Task, *, outcome: Reward = verdict) -> Score:
    """The outcome, and for each turn 1 if it matched the expert's action, 0 if the expert's replaced it.

    `log_replay` records it as the reward of the turn. An episode that it ended, with no patch left, has failed. This
    is the counterpart of `matched_calls` for environments with text actions.

    Args:
        outcome: Says how the episode went.

    Source: Lu et al. 2025 (UI-S1), arXiv:2509.11543, whose accuracy reward of a step is this; its reward of the format
    is the environment's business here.
    """
    if trajectory.ended is EndReason.EARLY_STOPPED:
        said = Score(0.0, {"success": 0.0}, success=False)
    else:
        said = await outcome(trajectory, task)
    if said.invalid:
        return said
    matched = tuple(float(turn.reward == 1.0) for turn in trajectory.turns)
    return replace(said, turns=matched, signals={**said.signals, "matched": matched})
