"""How does a model learn to judge? From pairs, from outcomes, or beside the policy it judges.

Easy to get wrong: a group in which all failed, or none did, has no pair. It teaches nothing, and is no error.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.objectives.preference import SumLoss, pairs_of
from whetstone.ranges import Positive


def bradley_terry(better: Tensor, worse: Tensor) -> Tensor:
    """[P] −log σ(s_w − s_l).

    Cooper trains its reward model so, on rule-verified answers and corruptions of them the rule rejects.

    Args:
        better: [P] scores with gradient.
        worse: [P]

    Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 1; Cooper: Hong et al. 2025, arXiv:2508.05613.
    """
    return -logsigmoid(better - worse)


def process_preference(
    learner_sums: PerTrajectory,
    old_sums: PerTrajectory,
    rewards: PerTrajectory,
    group: PerTrajectory,
    turn_counts: PerTrajectory,
    *,
    beta: Positive = 0.05,
    pool: Literal["mean", "sum"] = "mean",
    threshold: float = 0.0,
) -> SumLoss:
    """Teaches a process model to find successes likelier than failures of the same task (OPRL, implicit PRM).

        q = β (Σℓ_φ − Σℓ_old), over turns with `mean`;   L = mean over (success, failure) of −log σ(q₊ − q₋)

    Args:
        learner_sums: [S] Σℓ under the process model, with gradient.
        old_sums: [S] under the policy that sampled.
        rewards: [S]
        group: [S] which task.
        turn_counts: [S] turns of each.
        beta: β.
        pool: The released code's mean over turns, or the paper's sum.
        threshold: Rewards above it are successes.

    Source: Liu et al. 2025 (iStar), arXiv:2509.19199, eq. 3, and its code.
    """
    success = (rewards > threshold).double()
    pairs = pairs_of(success, group)
    if len(pairs) == 0:
        return SumLoss(0.0 * learner_sums.sum(), {"implicit_prm/pairs": 0.0})
    scores = beta * (learner_sums - old_sums.detach())
    if pool == "mean":
        scores = scores / turn_counts.clamp(min=1).to(scores)
    better, worse = pairs.unbind(1)
    loss = bradley_terry(scores[better], scores[worse])
    right = (scores[better] > scores[worse]).double().mean().item()
    return SumLoss(loss.mean(), {"implicit_prm/pairs": float(len(pairs)), "implicit_prm/accuracy": right})


def process_cross_entropy(
    learner_sums: Tensor, reference_sums: Tensor, success: Tensor, *, beta: Positive = 0.05
) -> Tensor:
    """[S] cross-entropy of σ(β Σ(ℓ_φ − ℓ_ref)) with success: what PRIME trains its process model by.

    Args:
        learner_sums: [S] with gradient.
        reference_sums: [S]
        success: [S] 0 or 1.
        beta: β.

    Source: Cui et al. 2025 (PRIME), arXiv:2502.01456, eq. 5.
    """
    logits = beta * (learner_sums - reference_sums.detach())
    return binary_cross_entropy_with_logits(logits, success.to(logits), reduction="none")


def referee_reward(scores: Tensor, truth: Tensor) -> float:
    """What a referee earns for scores [N] of candidates whose true worth is [N]: Kendall's τ, 0 where it is negative.

        τ = (concordant − discordant) / (N (N − 1) / 2);   ties count 0

    Source: Lu et al. 2025 (URPO), arXiv:2507.17515; cutting at 0 is ours.
    """
    n = len(scores)
    if n < 2:
        return 0.0
    agree = (scores[:, None] - scores[None, :]).sign() * (truth[:, None] - truth[None, :]).sign()
    return max(0.0, float(agree.triu(1).sum()) / (n * (n - 1) / 2))
