"""DigiRL and WebRL: Monte-Carlo outcome plus one-step TD of success classifiers.

The critics are classifiers: their values are probabilities of success in [0, 1] (`critic.loss: success`), and the
minimum of two is used.

Note: The released code differs from the papers. The papers mix the two estimates by a weight; the code
adds them up, takes 0.05 off, and keeps the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import next_values, reward_to_go
from whetstone.bounded_types import NotNegative, Share


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
    """Compute the mixture of Monte-Carlo return and one-step TD, as in the papers.

        A_t = (1 − w)(r_t + V_{t+1} − V_t) + w (MC_t − V_t)

    V is the minimum of both critics, which predict whether the future return is above 0.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        values: [M] probability of success before each turn.
        last_values: [N] probability of success after the last turn if the episode was truncated, otherwise 0.
        twin_values: [M] values of the second critic.
        last_twin_values: [N] values of the second critic.
        trajectory: [M] index of the trajectory of each turn.
        discount: γ of the Monte-Carlo return, per turn.
        weight: w, in [0, 1].

    Source: the mixture of Bai et al. 2024 (DigiRL), arXiv:2406.11896, §4, with a weight instead of its λ.
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
    """Compute 1 for turns with a positive estimate, otherwise 0 (DigiRL as released): filtered behavior cloning.

        a_t = V_{t+1} − V_t − 0.05 + r_t + MC_t,   A_t = 1[clamp(a_t, 0, 1) > 0]

    An uneventful turn of a failed episode is discarded, by the step cost. Made for `objective: policy_gradient`.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        values: [M] probability of success before each turn.
        last_values: [N] probability of success after the last turn if the episode was truncated, otherwise 0.
        twin_values: [M] values of the second critic.
        last_twin_values: [N] values of the second critic.
        trajectory: [M] index of the trajectory of each turn.
        discount: γ of the Monte-Carlo return, per turn.
        step_cost: Threshold that the estimate of a turn must exceed.

    Source: Bai et al. 2024, arXiv:2406.11896, and its code; V is 0 after a terminated episode, which is not stated.
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
    """Compute +1 for turns with a nonnegative estimate, otherwise −0.6 (WebRL as released).

        a_t = V_{t+1} − V_t − 0.05 + r_t + MC_t,   A_t = 1 where a_t ≥ 0, else −0.6

    Made for `objective: advantage_regression`, which regresses the log-ratio to it and drops negatives by default.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        values: [M] probability of success before each turn.
        last_values: [N] probability of success after the last turn if the episode was truncated, otherwise 0.
        twin_values: [M] values of the second critic.
        last_twin_values: [N] values of the second critic.
        trajectory: [M] index of the trajectory of each turn.
        discount: γ of the Monte-Carlo return, per turn.
        step_cost: Threshold that the estimate of a turn must exceed.
        negative: Advantage of turns below the threshold.

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
    """Return (current V, next V, Monte Carlo return, targets), each [M]."""
    values, twin = values.double(), twin.double()
    ahead = torch.minimum(next_values(values, trajectory, last), next_values(twin, trajectory, last_twin))
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
