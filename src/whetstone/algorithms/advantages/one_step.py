"""What does a weak critic still say reliably? Whether a turn was worth it: Monte-Carlo outcome plus one step ahead.

The critics are classifiers: their values are probabilities of success in [0, 1] (`critic.loss: success`), and the
smaller of two is believed.

Easy to get wrong: what was released is not what was written. The papers mix the two estimates by a weight; the code
adds them up, takes 0.05 off, and keeps the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import following, reward_to_go
from whetstone.ranges import NotNegative, Share


def one_step_td(
    turn_rewards: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    twin_values: PerTurn,
    last_twin_values: PerTrajectory,
    trajectory: PerTurn,
    *,
    discount: Share = 0.9,
    weight: Share = 0.5,
) -> CreditPerTurn:
    """Monte-Carlo return and one step ahead, mixed: the estimate as the papers write it.

        A_t = (1 − w)(r_t + V_{t+1} − V_t) + w (MC_t − V_t)

    V is the smaller of the twins. Both are to say whether the return to come is above 0.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        values: [M] probability of success in front of each turn.
        last_values: [N] behind the last turn where a limit cut the episode short, else 0.
        twin_values: [M] the second critic's.
        last_twin_values: [N] the second critic's.
        trajectory: [M] which trajectory the turn belongs to.
        discount: γ of the Monte-Carlo return, a turn.
        weight: w, in [0, 1].

    Source: the mixture of Bai et al. 2024 (DigiRL), arXiv:2406.11896, §4, with a weight of our own for its λ.
    """
    now, ahead, to_come, targets = _read(
        turn_rewards, values, last_values, twin_values, last_twin_values, trajectory, discount
    )
    step = turn_rewards.double() + ahead - now
    return Credit((1 - weight) * step + weight * (to_come - now), targets)


def digirl(
    turn_rewards: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    twin_values: PerTurn,
    last_twin_values: PerTrajectory,
    trajectory: PerTurn,
    *,
    discount: Share = 0.5,
    step_cost: NotNegative = 0.05,
) -> CreditPerTurn:
    """1 for a turn that was worth it, 0 for the rest (DigiRL as released): filtered imitation of oneself.

        a_t = V_{t+1} − V_t − 0.05 + r_t + MC_t,   A_t = 1[clamp(a_t, 0, 1) > 0]

    An uneventful turn of a failed episode is discarded, by the step cost. Made for `objective: policy_gradient`.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        values: [M] probability of success in front of each turn.
        last_values: [N] behind the last turn where a limit cut the episode short, else 0.
        twin_values: [M] the second critic's.
        last_twin_values: [N] the second critic's.
        trajectory: [M] which trajectory the turn belongs to.
        discount: γ of the Monte-Carlo return, a turn.
        step_cost: What a turn must bring to be worth it.

    Source: Bai et al. 2024, arXiv:2406.11896, and its code; V behind a terminated episode is 0, which is ours.
    """
    a, targets = _released(
        turn_rewards, values, last_values, twin_values, last_twin_values, trajectory, discount, step_cost
    )
    return Credit((a > 0).double(), targets)


def webrl(
    turn_rewards: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    twin_values: PerTurn,
    last_twin_values: PerTrajectory,
    trajectory: PerTurn,
    *,
    discount: Share = 0.9,
    step_cost: NotNegative = 0.05,
    negative: float = -0.6,
) -> CreditPerTurn:
    """+1 for a turn that was worth it, −0.6 for one that was not (WebRL as released).

        a_t = V_{t+1} − V_t − 0.05 + r_t + MC_t,   A_t = 1 where a_t ≥ 0, else −0.6

    Made for `objective: advantage_regression`, which regresses the log-ratio to it and drops negatives by default.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        values: [M] probability of success in front of each turn.
        last_values: [N] behind the last turn where a limit cut the episode short, else 0.
        twin_values: [M] the second critic's.
        last_twin_values: [N] the second critic's.
        trajectory: [M] which trajectory the turn belongs to.
        discount: γ of the Monte-Carlo return, a turn.
        step_cost: What a turn must bring to be worth it.
        negative: What one that was not worth it comes to.

    Source: Qi et al. 2024, arXiv:2411.02337, and its code.
    """
    a, targets = _released(
        turn_rewards, values, last_values, twin_values, last_twin_values, trajectory, discount, step_cost
    )
    return Credit(torch.where(a >= 0, torch.ones_like(a), negative), targets)


def _read(
    rewards: Tensor,
    values: Tensor,
    last: Tensor,
    twin: Tensor,
    last_twin: Tensor,
    trajectory: Tensor,
    discount: float,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """(V of now, V ahead, Monte-Carlo return, targets), each [M]."""
    values, twin = values.double(), twin.double()
    ahead = torch.minimum(following(values, trajectory, last), following(twin, trajectory, last_twin))
    to_come = reward_to_go(rewards, trajectory, discount=discount)
    label = (to_come > 0).double()
    return torch.minimum(values, twin), ahead, to_come, {"values": label, "twin_values": label}


def _released(
    rewards: Tensor,
    values: Tensor,
    last: Tensor,
    twin: Tensor,
    last_twin: Tensor,
    trajectory: Tensor,
    discount: float,
    step_cost: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    now, ahead, to_come, targets = _read(rewards, values, last, twin, last_twin, trajectory, discount)
    return ahead - now - step_cost + rewards + to_come, targets
