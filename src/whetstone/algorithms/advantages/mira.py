"""MiRA: potential-based reward shaping by a learned progress critic.

Note: Potential-based shaping is harmless only if the potential is fixed while returns are computed, and 0
after a terminated episode. The negative reward of the last turn is intended.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.advantages.gae import gae
from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.axes import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import next_values, reward_to_go
from whetstone.bounded_types import NotNegative, Share


def potential_shaping(
    potentials: PerTurn, last_potentials: PerTrajectory, trajectory: PerTurn, *, discount: Share = 0.95
) -> Tensor:
    """Return [M] shaping rewards of a potential.

        γ Φ_{t+1} − Φ_t,   Φ is 0 after a terminated episode

    Discounted and summed over an episode it is −Φ₁, independent of the actions.

    Args:
        potentials: [M] Φ before each turn.
        last_potentials: [N] Φ after the last turn if the episode was truncated, otherwise 0.
        trajectory: [M] index of the trajectory of each turn.
        discount: γ per turn; the one of the returns.

    Source: Ng, Harada & Russell 1999, "Policy invariance under reward transformations", theorem 1.
    """
    potentials = potentials.double()
    return discount * next_values(potentials, trajectory, last_potentials) - potentials


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
    """Compute GAE over turns with rewards that are shaped by a learned potential (MiRA).

        r̃_t = r_t + w (γ Φ_{t+1} − Φ_t);   Φ predicts progress, V the outcome

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        progress: [M] fraction of subgoals reached before each turn, in [0, 1].
        values: [M] value before each turn.
        last_values: [N] value after the last turn if the episode was truncated, otherwise 0.
        potentials: [M] Φ of the potential critic before each turn.
        last_potentials: [N] Φ after the last turn if the episode was truncated, otherwise 0.
        trajectory: [M] index of the trajectory of each turn.
        weight: Weight w of the shaping rewards.
        discount: γ per turn.
        trace: λ of GAE, in [0, 1].
        whiten: Bring the advantages of the batch to mean 0 and variance 1.

    Source: arXiv:2603.19685; its ingredients are stated, the blend, w and γ are not.
    """
    shaped = turn_rewards.double() + weight * potential_shaping(
        potentials, last_potentials, trajectory, discount=discount
    )
    estimates = gae(shaped, values, trajectory, last_values, discount=discount, trace=trace)
    to_come = reward_to_go(turn_rewards, trajectory)
    targets = {"values": to_come, "potentials": progress.double()}
    return Credit(whitened(estimates) if whiten else estimates, targets)
