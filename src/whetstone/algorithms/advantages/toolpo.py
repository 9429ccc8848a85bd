"""Credit for correct calls lands on the tokens of calls, and nowhere else."""

from __future__ import annotations

from whetstone.algorithms.levels import PerToken, PerTrajectory
from whetstone.algorithms.sets import normalised


def toolpo(
    outcomes: PerTrajectory,
    action_rewards: PerTrajectory,
    group: PerTrajectory,
    token_trajectory: PerToken,
    call_tokens: PerToken,
) -> PerToken:
    """Success for all tokens, correct calls for tokens of calls (ToolPO); both against the group's mean, unscaled.

        A_k = (R_i − mean R) + M_k (C_i − mean C)

    A trajectory without calls has no token for the second term.

    Use it with `reward: matched_calls`, or any that names how good its calls were (`action_rewards`).

    Args:
        outcomes: [N] of each trajectory.
        action_rewards: [N] C, how good its calls were. Counting calls rewards repetition: identical ones count once.
        group: [N] which task a trajectory belongs to.
        token_trajectory: [K] which trajectory the token belongs to.
        call_tokens: [K] not 0 on tokens of turns that call a tool.

    Source: Li et al. 2025 (DeepAgent), arXiv:2510.21618, §3.3; the weights inside C are not stated there, ours are 1.
    """
    of_outcome = normalised(outcomes, group, scale="none")[token_trajectory]
    of_calls = normalised(action_rewards, group, scale="none")[token_trajectory]
    return of_outcome + (call_tokens != 0).double() * of_calls
