"""What did each step add to what was expected? Generalised advantage estimation over turns or tokens.

Easy to get wrong: a step is what the critic predicts at, a turn or an action token. With observations in between
the next step is the next *action*; and targets are taken before advantages are normalised.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.levels import Credit, CreditPerToken, CreditPerTurn, PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.returns import following, reward_to_go
from whetstone.ranges import Share


def gae(
    rewards: Tensor,  # [n] of each step
    values: Tensor,  # [n] of the state in front of each step
    run: Tensor,  # [n] ascending: which trajectory the step belongs to
    last_values: Tensor,  # [N] of the state behind the last step of each trajectory
    *,
    discount: Share = 0.99,
    trace: Share = 0.95,
) -> Tensor:  # [n]
    """Advantages over steps of any kind; float64. The critic's targets are advantages + values.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1}

    `last_values` are 0 where an episode was over, and the critic's where it was cut short.

    Args:
        discount: γ, a step, in [0, 1].
        trace: λ, in [0, 1]; 1 is reward-to-go minus value, 0 one step ahead.

    Raises:
        ValueError: The tensors differ in shape, or a factor is out of range.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    if rewards.shape != values.shape:
        raise ValueError(f"one value per reward: got {[*rewards.shape]} and {[*values.shape]}")
    if not (0 <= discount <= 1 and 0 <= trace <= 1):
        raise ValueError(f"discount and trace are in [0, 1]: got {discount:g}, {trace:g}")
    values = values.double()
    surprise = rewards + discount * following(values, run, last_values) - values
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
    """Generalised advantage estimation over turns: value belongs to what changes the world (VL-DAC, Odysseus).

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γ λ A_{t+1},   target_t = A_t + V_t

    An episode of one turn comes to r − V. A turn without action tokens stays in the recurrence.

    Use it for long horizons, with `critic`: one prediction a turn, from the context in front of its first token.

    Args:
        turn_rewards: [M] of each turn, the outcome with the last.
        values: [M] the critic's, in front of each turn.
        last_values: [N] the critic's behind the last turn where a limit cut the episode short, else 0.
        trajectory: [M] which trajectory the turn belongs to.
        discount: γ, a turn, in [0, 1].
        trace: λ, in [0, 1].
        whiten: Bring the advantages of the batch to mean 0 and variance 1, over turns.

    Source: recurrence: Schulman et al. 2016, arXiv:1506.02438; over turns: arXiv:2508.04280 and arXiv:2605.00347,
    which state no defaults; those here are ours.
    """
    found = gae(turn_rewards, values, trajectory, last_values, discount=discount, trace=trace)
    return Credit(whitened(found) if whiten else found, {"values": found + values})


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
    """Generalised advantage estimation over action tokens, as PPO has it.

    The next token is the next *action* token, whatever the environment wrote between. A discount below 1 punishes
    long turns; `turn_gae` discounts turns.

    Args:
        token_rewards: [K] a turn's reward on its last action token, the outcome on the last of all.
        token_values: [K] the critic's, in front of each action token.
        last_token_values: [N] the critic's behind the last token where a limit cut the episode short, else 0.
        token_trajectory: [K] which trajectory the token belongs to.
        discount: γ, an action token, in [0, 1].
        trace: λ, in [0, 1].
        whiten: Bring the advantages of the batch to mean 0 and variance 1, over tokens.

    Source: Schulman et al. 2016, arXiv:1506.02438; in PPO: Schulman et al. 2017, arXiv:1707.06347.
    """
    found = gae(token_rewards, token_values, token_trajectory, last_token_values, discount=discount, trace=trace)
    return Credit(whitened(found) if whiten else found, {"token_values": found + token_values})
