"""What if it is only known which was better? Losses on sums of log-probs: of trajectories, or of turns.

A sum is over the tokens that are compared, no others. Gradient flows to it, and from it to each token alike, so a run
computes these losses from sums first and hands each token its sum's gradient.

Easy to get wrong: a pair that says the same is no pair, and what both share cancels only where it is the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.ranges import NotNegative, Positive, Share


@dataclass(frozen=True, slots=True)
class SumLoss:
    """A loss on sums of log-probs."""

    loss: Tensor
    """[] the mean over pairs, or over what is compared; 0 where there is nothing to."""
    metrics: dict[str, float]


def pairs_of(rewards: Tensor, group: Tensor, keys: Tensor | None = None) -> Tensor:
    """[P, 2] (better, worse) for every two of a group whose rewards differ.

    Args:
        rewards: [S]
        group: [S] what may be compared: a task, or a task and the state they went on from.
        keys: [S] equal where two did the same; such pairs are left out.

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
    """The better of each pair of a task made likelier than the worse (DPO on pairs of trajectories).

        Δ = (Σℓ_w − Σref_w) − (Σℓ_l − Σref_l);   L = −log σ(β Δ)

    At Δ = 0 the gradient is −β/2 on each token of the better. Long trajectories saturate: β of 0.01 to 0.05, or
    `normalize_length`.

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        reference_sums: [S] under the policy at the start of the phase.
        rewards: [S] of what each sum is of.
        group: [S] what is compared.
        action_keys: [S] equal where two did the same.
        lengths: [S] tokens in each sum.
        beta: β.
        smoothing: Share of pairs taken to be the wrong way round.
        normalize_length: Divide each log-ratio by its tokens first.
        imitate: Weight of the better one's negative log-likelihood a token, against its falling.

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; trajectories: Song et al. 2024 (ETO), arXiv:2403.02502;
    lengths: Shi et al. 2024 (DMPO), arXiv:2406.14868.
    """
    pairs = pairs_of(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    size = lengths.clamp(min=1).to(learner_sums) if normalize_length else torch.ones_like(learner_sums)
    ratios = (learner_sums - reference_sums.detach()) / size
    better, worse = pairs.unbind(1)
    margin = beta * (ratios[better] - ratios[worse])
    loss = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
    if imitate > 0:
        loss = loss - imitate * learner_sums[better] / lengths[better].clamp(min=1).to(learner_sums)
    return SumLoss(loss.mean(), _said(margin))


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
    """Pairs drawn apart to a margin and no further (IPO).

        Δ as of `dpo`;   L = (Δ − 1 / 2β)²

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        reference_sums: [S] under the policy at the start of the phase.
        rewards: [S] of what each sum is of.
        group: [S] what is compared.
        action_keys: [S] equal where two did the same.
        lengths: [S] tokens in each sum.
        beta: β: the margin is 1 / 2β.
        normalize_length: Divide each log-ratio by its tokens first, as TRL does; the paper has single sums.

    Source: Azar et al. 2023, arXiv:2310.12036, eq. 17.
    """
    pairs = pairs_of(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    size = lengths.clamp(min=1).to(learner_sums) if normalize_length else torch.ones_like(learner_sums)
    ratios = (learner_sums - reference_sums.detach()) / size
    better, worse = pairs.unbind(1)
    margin = ratios[better] - ratios[worse]
    return SumLoss((margin - 1 / (2 * beta)).square().mean(), _said(beta * margin))


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
    """The better likelier a token than the worse by a margin; no reference is held (SimPO).

        L = −log σ(β (ℓ̄_w − ℓ̄_l) − γ),   ℓ̄ = Σℓ / |y|

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        rewards: [S] of what each sum is of.
        group: [S] what is compared.
        action_keys: [S] equal where two did the same.
        lengths: [S] tokens in each sum.
        beta: β.
        margin: γ.

    Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """
    pairs = pairs_of(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    means = learner_sums / lengths.clamp(min=1).to(learner_sums)
    better, worse = pairs.unbind(1)
    apart = beta * (means[better] - means[worse])
    return SumLoss(-logsigmoid(apart - margin).mean(), _said(apart))


def orpo(
    learner_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    weight: NotNegative = 0.1,
) -> SumLoss:
    """The better imitated, and its odds raised over the worse's in the same loss; no reference is held (ORPO).

        L = −ℓ̄_w − λ log σ(log odds_w − log odds_l),   odds = p / (1 − p),   p = exp ℓ̄

    Args:
        learner_sums: [S] Σℓ over action tokens, with gradient.
        rewards: [S] of what each sum is of.
        group: [S] what is compared.
        action_keys: [S] equal where two did the same.
        lengths: [S] tokens in each sum.
        weight: λ.

    Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7.
    """
    pairs = pairs_of(rewards, group, action_keys)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"preference/pairs": 0.0})
    means = learner_sums / lengths.clamp(min=1).to(learner_sums)
    # 1 − p is 0 for what is certain
    odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-6)))
    better, worse = pairs.unbind(1)
    apart = odds[better] - odds[worse]
    return SumLoss((-means[better] - weight * logsigmoid(apart)).mean(), _said(apart))


def _said(margin: Tensor) -> dict[str, float]:
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
    """The better of two steps from the same state made likelier than the worse (step-wise DPO).

    The loss of `dpo` on the tokens of one turn, given the path in front of it.

    Args:
        learner_sums: [S] Σℓ over the tokens of a turn, with gradient.
        reference_sums: [S] under the policy at the start of the phase.
        rewards: [S] what came of it in the mean.
        group: [S] the turn they all went on from.
        action_keys: [S] equal where two did the same.
        lengths: [S] tokens in each sum.
        beta: β.
        smoothing: Share of pairs taken to be the wrong way round.
        imitate: Weight of the better one's negative log-likelihood a token.

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
    """Unpaired successes and failures, each against how far the policy has moved anyway (KTO).

        x = Σℓ − Σref,   z = max(0, mean x);   success: λ_D (1 − σ(β (x − z))),   failure: λ_U (1 − σ(β (z − x)))

    Args:
        learner_sums: [S] Σℓ, with gradient.
        reference_sums: [S] under the reference.
        rewards: [S]
        beta: β.
        desirable: λ_D; balance so that weight times count lies within 1 to 4/3 of the other's.
        undesirable: λ_U.
        threshold: Rewards of it and above are successes.
        reference_point: z, where it is known; None: the batch's mean, without gradient.

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
    """Differences of log-ratios regressed to differences of what was still to come (REFUEL; REBEL).

        Δ = (Σℓ_a − Σold_a) − (Σℓ_b − Σold_b);   L = (Δ − η (G_a − G_b))²

    Every two of a set are a pair, equal ones too, which are held together. Stops exactly at its target; no clip.

    Args:
        learner_sums: [S] Σℓ over the turn at which continuations part, with gradient.
        old_sums: [S] under the policy that sampled.
        rewards: [S] what came of it from that turn on.
        group: [S] which went on from the same state.
        reward_scale: η on the gap of rewards, as the code has it; the papers' 1/η on Δ has its size squared.

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
