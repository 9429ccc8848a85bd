"""How do milestones give sparse rewards a slope, without changing what is best? As a potential that is 0 at the end.

Easy to get wrong: potential-based shaping is harmless only if the potential is fixed while returns are computed, and 0
behind a terminated episode. The negative reward it leaves in the last turn is meant.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.advantages.gae import gae
from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.levels import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import following, reward_to_go
from whetstone.ranges import NotNegative, Share


def potential_shaping(
    potentials: PerTurn, last_potentials: PerTrajectory, trajectory: PerTurn, *, discount: Share = 0.95
) -> Tensor:
    """[M] what a potential adds to each turn's reward.

        γ Φ_{t+1} − Φ_t,   Φ behind a terminated episode 0

    Discounted and summed over an episode it comes to −Φ₁, whatever happened.

    Args:
        potentials: [M] Φ in front of each turn.
        last_potentials: [N] Φ behind the last turn: of the state reached where a limit cut the episode, else 0.
        trajectory: [M] which trajectory the turn belongs to.
        discount: γ, a turn; the one of the returns.

    Source: Ng, Harada & Russell 1999, "Policy invariance under reward transformations", theorem 1.
    """
    potentials = potentials.double()
    return discount * following(potentials, trajectory, last_potentials) - potentials


def mira(
    turn_rewards: PerTurn,
    progress: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    potentials: PerTurn,
    last_potentials: PerTrajectory,
    trajectory: PerTurn,
    *,
    weight: NotNegative = 0.3,
    discount: Share = 0.95,
    trace: Share = 0.95,
    whiten: bool = True,
) -> CreditPerTurn:
    """Rewards shaped by a learned potential, then generalised advantage estimation over turns (MiRA).

        r̃_t = r_t + w (γ Φ_{t+1} − Φ_t);   Φ learns progress, V the outcome to come

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        progress: [M] share of subgoals reached in front of each turn, in [0, 1].
        values: [M] the value critic's, in front of each turn.
        last_values: [N] the critic's behind the last turn where a limit cut the episode short, else 0.
        potentials: [M] Φ, the potential critic's, in front of each turn.
        last_potentials: [N] Φ of the state reached where a limit cut the episode short, else 0.
        trajectory: [M] which trajectory the turn belongs to.
        weight: w.
        discount: γ, a turn.
        trace: λ.
        whiten: Bring the advantages of the batch to mean 0 and variance 1.

    Source: arXiv:2603.19685; its ingredients are stated, the blend, w and γ are ours.
    """
    shaped = turn_rewards.double() + weight * potential_shaping(
        potentials, last_potentials, trajectory, discount=discount
    )
    found = gae(shaped, values, trajectory, last_values, discount=discount, trace=trace)
    to_come = reward_to_go(turn_rewards, trajectory)
    targets = {"values": to_come, "potentials": progress.double()}
    return Credit(whitened(found) if whiten else found, targets)
