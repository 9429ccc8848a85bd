"""MatchTIR: rewards of turns by their match with gold calls, on trajectory and turn level.

The rewards themselves come from `reward: matched_calls`; this module computes advantages.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.algorithms.returns import reward_to_go
from whetstone.bounded_types import NotNegative, Share


def matchtir(
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
    *,
    discount: Share = 0.9,
    weight: Share = 0.5,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute advantages of the sum of turn rewards and of returns among turns at the same position (MatchTIR).

        A_it = (1 − w) z(Σ_t r_it) + w z(G_it over the task's turns number t)

    A turn that only one trajectory reached has 0 for its half; the code gives it the raw return.

    Args:
        process_rewards: [M] of each turn: how well its calls match gold calls, and the answer's score in the last.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        turn_index: [M] position of each turn in its trajectory.
        discount: γ per turn.
        weight: w, in [0, 1].
        epsilon: Added to deviations.

    Source: Qu et al. 2026, arXiv:2601.10712, and its code.
    """
    totals = process_rewards.new_zeros(len(group)).double().index_add_(0, trajectory, process_rewards.double())
    of_trajectory = normalize_in_sets(totals, group, epsilon=epsilon)[trajectory]
    to_come = reward_to_go(process_rewards, trajectory, discount=discount)
    of_turn = normalize_in_sets(to_come, combine_keys(group[trajectory], turn_index), epsilon=epsilon)
    return (1 - weight) * of_trajectory + weight * of_turn
