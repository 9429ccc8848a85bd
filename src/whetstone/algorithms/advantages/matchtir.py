"""Which calls of a long trace were the useful ones? Turns rewarded by their match with gold calls, on two levels.

The rewards themselves come from `reward: matched_calls`; here they become credit.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.ranges import NotNegative, Share


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
    """The trajectory's sum of turn rewards, and each turn's return beside the same turn of its siblings (MatchTIR).

        A_it = (1 − w) z(Σ_t r_it) + w z(G_it over the task's turns number t)

    A turn that only one trajectory reached has 0 for its half; the code gives it the raw return.

    Args:
        process_rewards: [M] of each turn: how well its calls match gold calls, and the answer's score in the last.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        turn_index: [M] its number in the trajectory.
        discount: γ, a turn.
        weight: w, in [0, 1].
        epsilon: Added to deviations.

    Source: Qu et al. 2026, arXiv:2601.10712, and its code.
    """
    whole = process_rewards.new_zeros(len(group)).double().index_add_(0, trajectory, process_rewards.double())
    of_trajectory = normalised(whole, group, epsilon=epsilon)[trajectory]
    to_come = reward_to_go(process_rewards, trajectory, discount=discount)
    of_turn = normalised(to_come, joint_keys(group[trajectory], turn_index), epsilon=epsilon)
    return (1 - weight) * of_trajectory + weight * of_turn
