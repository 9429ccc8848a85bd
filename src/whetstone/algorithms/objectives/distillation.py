"""On-policy distillation: trains a student on its own samples with a teacher's log-probs.

Note: The log-ratio to the teacher, used as a differentiated loss, has an expected gradient of 0. Use it as an
advantage, without gradient, or compare the whole distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.clipped import clipped
from whetstone.algorithms.objectives.token_loss import (
    SamplerRatioLoss,
    TokenLoss,
    log_ratio,
    ratio_metrics,
    same_length,
)
from whetstone.bounded_types import NotNegative, Positive, Share


def teacher_advantages(teacher_logprobs: Tensor, logprobs: Tensor, *, bound: Positive = 10.0) -> Tensor:
    """Compute the log-ratio of teacher to student per token, [T] nats, within ± `bound` and without gradient.

    Source: Thinking Machines 2025, "On-Policy Distillation", https://thinkingmachines.ai/blog/on-policy-distillation/;
    the bound is an addition.
    """
    return (teacher_logprobs.detach() - logprobs.detach()).clamp(-bound, bound)


def on_policy_distillation(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    teacher_logprobs: PerToken,
    advantages: PerToken,
    *,
    teacher_weight: NotNegative = 1.0,
    reward_weight: NotNegative = 0.0,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.2,
    bound: Positive = 10.0,
) -> TokenLoss:
    """Compute the clipped surrogate with the teacher's log-ratio as advantage (on-policy distillation).

        a = ℓ_T − ℓ_old;   A ← w_T a + w_R A

    An unbiased estimate of the reverse KL's gradient of each next token. No reward is needed. The teacher reads
    the same context as the policy, with `teacher.privileged_context` also additional text; the teacher can be the
    policy itself (privileged, hindsight-guided or self-distillation).

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        teacher_logprobs: [T] log-probs of the same tokens under the teacher.
        advantages: [T] advantages of the rewards.
        teacher_weight: Weight w_T of the log-ratio to the teacher.
        reward_weight: Weight w_R of the advantages of the rewards; 0 needs no reward.
        clip_low: Maximum decrease of the ratio below 1, as in PPO.
        clip_high: Maximum increase of the ratio above 1, as in PPO.
        bound: Maximum absolute log-ratio |a| to the teacher, in nats.

    Source: Agarwal et al. 2024, arXiv:2306.13649; as an advantage added to that of rewards: slime, and the objective of
    OpenClaw-RL, arXiv:2603.10165.
    """
    same_length(learner_logprobs, old_logprobs, teacher_logprobs, advantages)
    a = teacher_advantages(teacher_logprobs, old_logprobs, bound=bound)
    surrogate = clipped(
        learner_logprobs,
        old_logprobs,
        teacher_weight * a + reward_weight * advantages,
        clip_low=clip_low,
        clip_high=clip_high,
    )
    return TokenLoss(surrogate.loss, surrogate.metrics | {"distillation/advantage": a})


def importance_weighted_distillation(
    learner_logprobs: PerToken,
    sampler_logprobs: PerToken,
    teacher_logprobs: PerToken,
    *,
    low: NotNegative = 0.2,
    pull: NotNegative = 1e-3,
    bound: Positive = 10.0,
) -> SamplerRatioLoss:
    """Compute an importance-weighted distillation loss from the current policy's log-ratio to the teacher.

        a = sg[ℓ_T − ℓ];   L = −a exp(ℓ − ℓ_sampler) + τ (ℓ − ℓ_sampler)²

    Tokens whose probability fell by more than `low` below the sampler's keep only the second term. The ratio includes
    the mismatch of sampler and learner: use no `importance_correction`.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        sampler_logprobs: [T] log-probs of the sampler; the ratio of tokens that were not sampled (NaN) is 1.
        teacher_logprobs: [T] log-probs of the same tokens under the teacher.
        low: Maximum decrease of a probability.
        pull: Weight τ of the squared log-ratio to the sampler.
        bound: Maximum absolute log-ratio |a| to the teacher, in nats.

    Source: prime-rl's `ref_kl_loss_fn`; KDRL, arXiv:2506.02208.
    """
    same_length(learner_logprobs, sampler_logprobs, teacher_logprobs)
    sampler = torch.where(sampler_logprobs.isnan(), learner_logprobs.detach(), sampler_logprobs)
    a = teacher_advantages(teacher_logprobs, learner_logprobs, bound=bound)
    log_ratios = log_ratio(learner_logprobs, sampler)
    fallen = learner_logprobs.detach().exp() - sampler.exp() < -low
    loss = torch.where(fallen, 0.0, -a * log_ratios.exp()) + pull * log_ratios.square()
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=fallen) | {"distillation/advantage": a})


def top_k_kl(student_logits: Tensor, teacher_top: Tensor, teacher_logprobs: Tensor) -> Tensor:
    """Compute the reverse KL over the teacher's top-k tokens and one bin for all others, [T].

        Σ_v π(v) (log π(v) − log π_T(v)),   v over K tokens and the tail

    The tail's probability is at least 1e-7, or the machine epsilon of the data type if that is larger. The gradient
    flows through the student.

    Args:
        student_logits: [T, V] with gradient.
        teacher_top: [T, K] token IDs.
        teacher_logprobs: [T, K] log-probs of these tokens under the teacher.

    Source: Gu et al. 2024 (MiniLLM), arXiv:2306.08543; the tail bin as in OpenClaw-RL, arXiv:2603.10165.
    """
    student = student_logits.log_softmax(-1).gather(-1, teacher_top)
    student, teacher = _with_tail(student), _with_tail(teacher_logprobs.detach())
    return (student.exp() * (student - teacher)).sum(-1)


def _with_tail(logprobs: Tensor) -> Tensor:
    """Append the log-prob of all other tokens, [T, K + 1]."""
    min_rest = max(1e-7, torch.finfo(logprobs.dtype).eps)  # in half widths 1 − 1e-7 is 1, and the slope there infinite
    rest = torch.log1p(-logprobs.exp().sum(-1, keepdim=True).clamp(max=1 - min_rest))
    return torch.cat([logprobs, rest], -1)
