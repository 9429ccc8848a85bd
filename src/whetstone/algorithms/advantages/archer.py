"""ArCHer: turn-level Q and V critics, two of each, with slow target copies.

Note: No minimum goes into the targets. Each critic bootstraps from its own twin's slow copy; the minimum
only enters the advantage.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import next_values
from whetstone.bounded_types import Share


def archer(
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    action_values: PerTurn,
    twin_action_values: PerTurn,
    values: PerTurn,
    twin_values: PerTurn,
    slow_action_values: PerTurn,
    slow_twin_action_values: PerTurn,
    slow_values: PerTurn,
    slow_twin_values: PerTurn,
    last_slow_values: PerTrajectory,
    last_slow_twin_values: PerTrajectory,
    *,
    discount: Share = 0.95,
) -> CreditPerTurn:
    """Compute the action value minus the state value, each the minimum of two critics.

        A = min(Q₁, Q₂)(o, a) − min(V₁, V₂)(o)
        Q_j → r + γ V̄_j(o'),   V_j → Q̄_j(o, a)      bars: slow copies

    After the end of an episode V̄ is 0; after a truncation it is the value of the critic.

    Use it with `critic` for long episodes of long turns; made for `objective: policy_gradient`.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        trajectory: [M] index of the trajectory of each turn.
        action_values: [M] Q₁ after the action of each turn, before its end-of-turn token.
        twin_action_values: [M] Q₂.
        values: [M] V₁ before each turn.
        twin_values: [M] V₂.
        slow_action_values: [M] Q̄₁.
        slow_twin_action_values: [M] Q̄₂.
        slow_values: [M] V̄₁.
        slow_twin_values: [M] V̄₂.
        last_slow_values: [N] V̄₁ after the last turn, 0 if the episode terminated.
        last_slow_twin_values: [N] V̄₂.
        discount: γ per turn, in [0, 1].

    Source: Zhou et al. 2024, arXiv:2402.19446, §4, and its code. Differs from it: V is trained on the stored action,
    which is on-policy here, instead of a new sample; and critics read the policy's states instead of an encoder's.
    """
    ahead = next_values(slow_values.double(), trajectory, last_slow_values)
    twin_ahead = next_values(slow_twin_values.double(), trajectory, last_slow_twin_values)
    targets = {
        "action_values": turn_rewards + discount * ahead,
        "twin_action_values": turn_rewards + discount * twin_ahead,
        "values": slow_action_values.double(),
        "twin_values": slow_twin_action_values.double(),
    }
    q = torch.minimum(action_values.double(), twin_action_values.double())
    return Credit(q - torch.minimum(values.double(), twin_values.double()), targets)
