"""Preference losses (DPO and variants) on sums of log-probs of trajectories or turns.

A sum is over the tokens that are compared, no others. All tokens of a sum have the same gradient, so a run first
computes these losses from sums and then passes each token the gradient of its sum.

Note: Two equal answers are not a pair, and a shared prefix only cancels if its tokens are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.bounded_types import NotNegative, Positive, Share


@dataclass(frozen=True, slots=True)
class SumLoss:
    """A loss on sums of log-probs."""

    loss: Tensor
    """[] mean over pairs or samples; 0 if there are none."""
    metrics: dict[str, float]


def preference_pairs(rewards: Tensor, group: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return index pairs (better, worse) of all members of a group whose rewards differ, [P, 2].

    Args:
        rewards: [S] reward of each sum.
        group: [S] index of the comparable set: a task, or a task and a common state.
        keys: [S] equal for equal actions; such pairs are excluded.

    Source: Rafailov et al. 2023, arXiv:2305.18290; all pairs of a group: arXiv:2509.19199.
    """
    better = (group[:, None] == group[None, :]) & (rewards[:, None] > rewards[None, :])
    if keys is not None:
        better &= keys[:, None] != keys[None, :]
    return torch.nonzero(better)


def dpo(
    learner_sums: PerTrajectory,
    reference_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    beta: Positive = 0.1,
    smoothing: Share = 0.0,
    normalize_length: bool = False,
    imitate: NotNegative = 0.0,
) -> SumLoss:
    """Compute the DPO loss on pairs of trajectories of a task.

        Δ = (Σℓ_w − Σref_w) − (Σℓ_l − Σref_l);   L = −log σ(β Δ)

    At Δ = 0 the gradient is −β/2 on each token of the better. Long trajectories saturate: β of 0.01 to 0.05, or
    `normalize_length`.

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        reference_sums: [S] Σℓ under the policy at the start of the phase.
        rewards: [S] reward of the trajectory or turn of each sum.
        group: [S] index of the comparable set.
        action_keys: [S] equal for equal actions.
        lengths: [S] number of tokens in each sum.
        beta: Strength β of the penalty for leaving the reference; smaller values allow larger log-ratios.
        smoothing: Assumed fraction of pairs with the wrong order.
        normalize_length: Divide each log-ratio by its number of tokens first.
        imitate: Weight of the negative log-likelihood per token of the better one, so that it does not fall.

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; trajectories: Song et al. 2024 (ETO), arXiv:2403.02502;
    lengths: Shi et al. 2024 (DMPO), arXiv:2406.14868.
    """
    pairs = preference_pairs(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    size = lengths.clamp(min=1).to(learner_sums) if normalize_length else torch.ones_like(learner_sums)
    ratios = (learner_sums - reference_sums.detach()) / size
    better, worse = pairs.unbind(1)
    margin = beta * (ratios[better] - ratios[worse])
    loss = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
    if imitate > 0:
        loss = loss - imitate * learner_sums[better] / lengths[better].clamp(min=1).to(learner_sums)
    return SumLoss(loss.mean(), _margin_metrics(margin))


def ipo(
    learner_sums: PerTrajectory,
    reference_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    beta: Positive = 0.1,
    normalize_length: bool = True,
) -> SumLoss:
    """Compute the IPO loss: pairs are separated up to a margin and no further.

        Δ see `dpo`;   L = (Δ − 1 / 2β)²

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        reference_sums: [S] Σℓ under the policy at the start of the phase.
        rewards: [S] reward of the trajectory or turn of each sum.
        group: [S] index of the comparable set.
        action_keys: [S] equal for equal actions.
        lengths: [S] number of tokens in each sum.
        beta: Inverse margin β: pairs are separated up to 1 / 2β.
        normalize_length: Divide each log-ratio by its number of tokens first, as TRL does; the paper has single sums.

    Source: Azar et al. 2023, arXiv:2310.12036, eq. 17.
    """
    pairs = preference_pairs(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    size = lengths.clamp(min=1).to(learner_sums) if normalize_length else torch.ones_like(learner_sums)
    ratios = (learner_sums - reference_sums.detach()) / size
    better, worse = pairs.unbind(1)
    margin = ratios[better] - ratios[worse]
    return SumLoss((margin - 1 / (2 * beta)).square().mean(), _margin_metrics(beta * margin))


def simpo(
    learner_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    beta: Positive = 2.0,
    margin: NotNegative = 1.0,
) -> SumLoss:
    """Compute the SimPO loss: a margin between log-probs per token, without a reference model.

        L = −log σ(β (ℓ̄_w − ℓ̄_l) − γ),   ℓ̄ = Σℓ / |y|

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        rewards: [S] reward of the trajectory or turn of each sum.
        group: [S] index of the comparable set.
        action_keys: [S] equal for equal actions.
        lengths: [S] number of tokens in each sum.
        beta: Factor β of the difference of log-probs per token.
        margin: Target margin γ between the better and the worse answer.

    Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """
    pairs = preference_pairs(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    means = learner_sums / lengths.clamp(min=1).to(learner_sums)
    better, worse = pairs.unbind(1)
    scaled_gap = beta * (means[better] - means[worse])
    return SumLoss(-logsigmoid(scaled_gap - margin).mean(), _margin_metrics(scaled_gap))


def orpo(
    learner_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    weight: NotNegative = 0.1,
) -> SumLoss:
    """Compute the ORPO loss: imitation of the better one plus a log-odds ratio, without a reference model.

        L = −ℓ̄_w − λ log σ(log odds_w − log odds_l),   odds = p / (1 − p),   p = exp ℓ̄

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        rewards: [S] reward of the trajectory or turn of each sum.
        group: [S] index of the comparable set.
        action_keys: [S] equal for equal actions.
        lengths: [S] number of tokens in each sum.
        weight: Weight λ of the log-odds ratio.

    Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7.
    """
    pairs = preference_pairs(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    means = learner_sums / lengths.clamp(min=1).to(learner_sums)
    # 1 − p is 0 for a certain answer
    odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-6)))
    better, worse = pairs.unbind(1)
    log_odds_ratio = odds[better] - odds[worse]
    return SumLoss((-means[better] - weight * logsigmoid(log_odds_ratio)).mean(), _margin_metrics(log_odds_ratio))


def _margin_metrics(margin: Tensor) -> dict[str, float]:
    margin = margin.detach()
    return {
        "preference/pairs": float(len(margin)),
        "preference/margin": margin.mean().item(),
        "preference/accuracy": (margin > 0).double().mean().item(),
    }


def step_dpo(
    learner_sums: PerTurn,
    reference_sums: PerTurn,
    rewards: PerTurn,
    group: PerTurn,
    action_keys: PerTurn,
    lengths: PerTurn,
    *,
    beta: Positive = 0.1,
    smoothing: Share = 0.0,
    imitate: NotNegative = 0.0,
) -> SumLoss:
    """Compute the DPO loss on pairs of steps from the same state (step-wise DPO).

    The loss of `dpo` on the tokens of one turn, given the preceding turns.

    Args:
        learner_sums: [S] Σℓ over the tokens of a turn, with gradient.
        reference_sums: [S] Σℓ under the policy at the start of the phase.
        rewards: [S] mean reward of the trajectories through the turn.
        group: [S] the preceding turn that they share.
        action_keys: [S] equal for equal actions.
        lengths: [S] number of tokens in each sum.
        beta: Strength β of the penalty for leaving the reference; see `dpo`.
        smoothing: Assumed fraction of pairs with the wrong order.
        imitate: Weight of the negative log-likelihood per token of the better one.

    Source: Chen et al. 2024 (TP-LLaMA), arXiv:2406.07115; Li et al. 2025 (SPORT), arXiv:2504.21561.
    """
    return dpo(
        learner_sums,
        reference_sums,
        rewards,
        group,
        action_keys,
        lengths,
        beta=beta,
        smoothing=smoothing,
        imitate=imitate,
    )


def kto(
    learner_sums: PerTrajectory,
    reference_sums: PerTrajectory,
    rewards: PerTrajectory,
    *,
    beta: Positive = 0.1,
    desirable: NotNegative = 1.0,
    undesirable: NotNegative = 1.0,
    threshold: float = 0.5,
    reference_point: float | None = None,
) -> SumLoss:
    """Compute the KTO loss on unpaired successes and failures, relative to the mean log-ratio of the batch.

        x = Σℓ − Σref,   z = max(0, mean x);   success: λ_D (1 − σ(β (x − z))),   failure: λ_U (1 − σ(β (z − x)))

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        reference_sums: [S] Σℓ under the policy at the start of the phase.
        rewards: [S] reward of each sum.
        beta: Strength β of the penalty for leaving the reference.
        desirable: Weight λ_D of successes; balance so that weight times count is 1 to 4/3 of that of failures.
        undesirable: Weight λ_U of failures.
        threshold: Minimum reward of a success.
        reference_point: z, if it is known; None: mean of the batch, without gradient.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8; z from the batch's own log-ratios instead of mismatched
    pairs.
    """
    if len(learner_sums) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {})
    x = learner_sums - reference_sums.detach()
    z = x.detach().mean().clamp(min=0) if reference_point is None else x.new_tensor(reference_point)
    good = rewards >= threshold
    loss = torch.where(
        good, desirable * (1 - torch.sigmoid(beta * (x - z))), undesirable * (1 - torch.sigmoid(beta * (z - x)))
    )
    return SumLoss(loss.mean(), {"preference/reference_point": z.item()})


def refuel(
    learner_sums: PerTurn,
    old_sums: PerTurn,
    rewards: PerTurn,
    group: PerTurn,
    *,
    reward_scale: Positive = 1.0,
) -> SumLoss:
    """Regress differences of log-ratios to differences of rewards-to-go (REFUEL; REBEL).

        Δ = (Σℓ_a − Σold_a) − (Σℓ_b − Σold_b);   L = (Δ − η (G_a − G_b))²

    Every two members of a set are a pair, also if their rewards are equal. The gradient is 0 at the target; no clip.

    Args:
        learner_sums: [S] Σℓ over the turn at which continuations differ, with gradient.
        old_sums: [S] Σℓ under the sampling policy.
        rewards: [S] reward-to-go from that turn.
        group: [S] index of the state that the members continue from.
        reward_scale: η on the difference of rewards, as in the code; the papers' 1/η on Δ scales with its square.

    Source: Gao et al. 2024, arXiv:2410.04612, eq. 3, and its code; single turns: arXiv:2404.16767.
    """
    pairs = torch.nonzero((group[:, None] == group[None, :]).triu(1))
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    a, b = pairs.unbind(1)
    moved = learner_sums - old_sums.detach()
    miss = (moved[a] - moved[b]) - reward_scale * (rewards[a] - rewards[b]).to(moved)
    metrics = {"preference/pairs": float(len(pairs)), "preference/regression_error": miss.detach().abs().mean().item()}
    return SumLoss(miss.square().mean(), metrics)
