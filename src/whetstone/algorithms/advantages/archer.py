"""How good was this action beside what the state promised? Turn-level Q and V, twice each, with slow copies (ArCHer).

Easy to get wrong: no minimum goes into the targets. Each critic bootstraps from its own twin's slow copy; the minimum
enters the advantage alone.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import following
from whetstone.ranges import Share


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
    """The value of the action minus that of the state, each the smaller of two critics.

        A = min(Q₁, Q₂)(o, a) − min(V₁, V₂)(o)
        Q_j → r + γ V̄_j(o'),   V_j → Q̄_j(o, a)      bars: slow copies

    Behind the end of an episode V̄ is 0; where a limit cut it short it is the critic's.

    Use it with `critic` for long episodes of long turns; made for `objective: policy_gradient`.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        trajectory: [M] which trajectory the turn belongs to.
        action_values: [M] Q₁, read behind the turn's action, in front of its end-of-turn token.
        twin_action_values: [M] Q₂.
        values: [M] V₁, read in front of the turn.
        twin_values: [M] V₂.
        slow_action_values: [M] Q̄₁.
        slow_twin_action_values: [M] Q̄₂.
        slow_values: [M] V̄₁.
        slow_twin_values: [M] V̄₂.
        last_slow_values: [N] V̄₁ behind the last turn, 0 where the episode was over.
        last_slow_twin_values: [N] V̄₂.
        discount: γ, a turn, in [0, 1].

    Source: Zhou et al. 2024, arXiv:2402.19446, §4, and its code. Departs from it: V learns from the stored action,
    which is on-policy here, instead of one sampled anew; and critics read the policy's states instead of an encoder's.
    """
    ahead = following(slow_values.double(), trajectory, last_slow_values)
    twin_ahead = following(slow_twin_values.double(), trajectory, last_slow_twin_values)
    targets = {
        "action_values": turn_rewards + discount * ahead,
        "twin_action_values": turn_rewards + discount * twin_ahead,
        "values": slow_action_values.double(),
        "twin_values": slow_twin_action_values.double(),
    }
    q = torch.minimum(action_values.double(), twin_action_values.double())
    return Credit(q - torch.minimum(values.double(), twin_values.double()), targets)
