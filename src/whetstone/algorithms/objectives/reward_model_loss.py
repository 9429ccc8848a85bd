"""Losses of reward models: Bradley-Terry on pairs, and process reward models trained on outcomes.

Note: A group in which all members failed or all succeeded has no pair. It adds no loss and is not an error.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.objectives.preference import SumLoss, preference_pairs
from whetstone.bounded_types import Positive


def bradley_terry(better: Tensor, worse: Tensor) -> Tensor:
    """Compute the Bradley-Terry loss −log σ(s_w − s_l), [P].

    Cooper trains its reward model this way, on rule-verified answers and corrupted ones that the rule rejects.

    Args:
        better: [P] scores with gradient.
        worse: [P] scores with gradient.

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
    """Compute the loss of a process model that prefers successes to failures of the same task (OPRL, implicit PRM).

        q = β (Σℓ_φ − Σℓ_old), over turns with `mean`;   L = mean over (success, failure) of −log σ(q₊ − q₋)

    Args:
        learner_sums: [S] Σℓ under the process model, with gradient.
        old_sums: [S] Σℓ under the sampling policy.
        rewards: [S] reward of each sum.
        group: [S] index of the task.
        turn_counts: [S] number of turns.
        beta: Factor β of the log-ratio, the implicit reward.
        pool: `mean` over turns as in the released code, or `sum` as in the paper.
        threshold: Rewards above it are successes.

    Source: Liu et al. 2025 (iStar), arXiv:2509.19199, eq. 3, and its code.
    """
    success = (rewards > threshold).double()
    pairs = preference_pairs(success, group)
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
    """Compute the cross-entropy of σ(β Σ(ℓ_φ − ℓ_ref)) with success, [S]: the process model loss of PRIME.

    Args:
        learner_sums: [S] Σℓ under the process model, with gradient.
        reference_sums: [S] Σℓ under the reference model.
        success: [S] 1 for a success, 0 for a failure.
        beta: Factor β of the log-ratio, the implicit reward.

    Source: Cui et al. 2025 (PRIME), arXiv:2502.01456, eq. 5.
    """
    logits = beta * (learner_sums - reference_sums.detach())
    return binary_cross_entropy_with_logits(logits, success.to(logits), reduction="none")


def referee_reward(scores: Tensor, truth: Tensor) -> float:
    """Compute a referee's reward: Kendall's τ of its scores [N] and the true scores [N], at least 0.

        τ = (concordant − discordant) / (N (N − 1) / 2);   ties count 0

    Source: Lu et al. 2025 (URPO), arXiv:2507.17515; the minimum of 0 is an addition.
    """
    n = len(scores)
    if n < 2:
        return 0.0
    agree = (scores[:, None] - scores[None, :]).sign() * (truth[:, None] - truth[None, :]).sign()
    return max(0.0, float(agree.triu(1).sum()) / (n * (n - 1) / 2))
