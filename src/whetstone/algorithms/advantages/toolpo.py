"""Credit for correct calls lands on the tokens of calls, and nowhere else."""

from __future__ import annotations

from whetstone.algorithms.axes import PerToken, PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets


def toolpo(
    outcomes: PerTrajectory,
    action_rewards: PerTrajectory,
    group: PerTrajectory,
    token_trajectory: PerToken,
    call_tokens: PerToken,
) -> PerToken:
    """Add an outcome advantage for all tokens and a tool-call advantage for tokens of calls (ToolPO); mean baseline.

        A_k = (R_i − mean R) + M_k (C_i − mean C)

    A trajectory without calls has no token for the second term.

    Use it with `reward: matched_calls`, or any that names how good its calls were (`action_rewards`).

    Args:
        outcomes: [N] outcome per trajectory.
        action_rewards: [N] C, how good its calls were. Counting calls rewards repetition: identical ones count once.
        group: [N] index of the task of each trajectory.
        token_trajectory: [K] index of the trajectory of each token.
        call_tokens: [K] not 0 on tokens of turns that call a tool.

    Source: Li et al. 2025 (DeepAgent), arXiv:2510.21618, §3.3; the weights inside C are not stated there, ours are 1.
    """
    of_outcome = normalize_in_sets(outcomes, group, scale="none")[token_trajectory]
    of_calls = normalize_in_sets(action_rewards, group, scale="none")[token_trajectory]
    return of_outcome + (call_tokens != 0).double() * of_calls
