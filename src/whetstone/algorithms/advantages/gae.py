"""Generalized advantage estimation (GAE) over turns or tokens.

Note: A step is a turn or an action token. The step after one is the next *action*, even if observations are in between.
Targets are computed before advantages are normalized.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.axes import Credit, CreditPerToken, CreditPerTurn, PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.returns import next_values, reward_to_go
from whetstone.bounded_types import Share


def gae(
    rewards: Tensor,  # [n] of each step
    values: Tensor,  # [n] value of the state before each step
    run: Tensor,  # [n] ascending: which trajectory the step belongs to
    last_values: Tensor,  # [N] value of the state after the last step of each trajectory
    *,
    discount: Share = 0.99,
    trace: Share = 0.95,
) -> Tensor:  # [n]
    """Compute advantages over steps of any kind in float64. The critic's targets are advantages + values.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1}

    `last_values` are 0 for terminated episodes, and values of the critic for truncated ones.

    Args:
        discount: γ per step, in [0, 1].
        trace: λ, in [0, 1]; 1 is reward-to-go minus value, 0 one step ahead.

    Raises:
        ValueError: If the tensors differ in shape, or a factor is out of range.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    if rewards.shape != values.shape:
        raise ValueError(f"rewards and values must have the same shape, got {[*rewards.shape]} and {[*values.shape]}")
    if not (0 <= discount <= 1 and 0 <= trace <= 1):
        raise ValueError(f"discount and trace must be in [0, 1], got {discount:g} and {trace:g}")
    values = values.double()
    surprise = rewards + discount * next_values(values, run, last_values) - values
    return reward_to_go(surprise, run, discount=discount * trace)


def turn_gae(
    turn_rewards: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    trajectory: PerTurn,
    *,
    discount: Share = 0.99,
    trace: Share = 0.95,
    whiten: bool = True,
) -> CreditPerTurn:
    """Compute generalized advantage estimation (GAE) over turns (VL-DAC, Odysseus).

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   target_t = A_t + V_t

    An episode with one turn has r − V. A turn without action tokens stays in the recurrence.

    Use it for long horizons, with `critic`: one prediction per turn, from the context before its first token.

    Args:
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        values: [M] value before each turn.
        last_values: [N] value after the last turn if the episode was truncated, otherwise 0.
        trajectory: [M] index of the trajectory of each turn.
        discount: γ per turn, in [0, 1].
        trace: λ, in [0, 1].
        whiten: Normalize the advantages of the batch to mean 0 and variance 1, over turns.

    Source: recurrence: Schulman et al. 2016, arXiv:1506.02438; over turns: arXiv:2508.04280 and arXiv:2605.00347,
    which state no defaults.
    """
    estimates = gae(turn_rewards, values, trajectory, last_values, discount=discount, trace=trace)
    return Credit(whitened(estimates) if whiten else estimates, {"values": estimates + values})


def token_gae(
    token_rewards: PerToken,
    token_values: PerToken,
    last_token_values: PerTrajectory,
    token_trajectory: PerToken,
    *,
    discount: Share = 1.0,
    trace: Share = 1.0,
    whiten: bool = True,
) -> CreditPerToken:
    """Compute generalized advantage estimation (GAE) over action tokens, as in PPO.

    The next token is the next *action* token, even if observations are in between. A discount below 1 punishes
    long turns; `turn_gae` discounts turns.

    Args:
        token_rewards: [K] rewards: that of a turn at its last action token, the outcome at the last one.
        token_values: [K] value before each action token.
        last_token_values: [N] value after the last token if the episode was truncated, otherwise 0.
        token_trajectory: [K] index of the trajectory of each token.
        discount: γ per action token, in [0, 1].
        trace: λ, in [0, 1].
        whiten: Normalize the advantages of the batch to mean 0 and variance 1, over tokens.

    Source: Schulman et al. 2016, arXiv:1506.02438; in PPO: Schulman et al. 2017, arXiv:1707.06347.
    """
    estimates = gae(token_rewards, token_values, token_trajectory, last_token_values, discount=discount, trace=trace)
    return Credit(whitened(estimates) if whiten else estimates, {"token_values": estimates + token_values})
