"""How does a student learn from a teacher on its own samples? From each token's log-prob under both.

Easy to get wrong: the log-ratio to the teacher, put into the loss and differentiated, has an expected gradient of 0. It
is an advantage, without gradient; or the whole distribution is compared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.clipped import clipped
from whetstone.algorithms.objectives.token_loss import (
    SamplerRatioLoss,
    TokenLoss,
    log_ratio,
    ratio_metrics,
    same_length,
)
from whetstone.ranges import NotNegative, Positive, Share


def teacher_advantages(teacher_logprobs: Tensor, logprobs: Tensor, *, bound: Positive = 10.0) -> Tensor:
    """[T] how much likelier the teacher finds each token, in nats; no gradient, within ± `bound`.

    Source: Thinking Machines 2025, "On-Policy Distillation", https://thinkingmachines.ai/blog/on-policy-distillation/;
    the bound is ours.
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
    """The clipped surrogate with the teacher's log-ratio as advantage: on-policy distillation.

        a = ℓ_T − ℓ_old;   A ← w_T a + w_R A

    An unbiased estimate of the reverse KL's gradient of each next token. No reward is needed. The teacher reads
    the same context as the policy, with `teacher.privileged_context` also additional text; the teacher can be the
    policy itself (privileged, hindsight-guided or self-distillation).

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        teacher_logprobs: [T] of the same tokens under the teacher.
        advantages: [T] of rewards.
        teacher_weight: w_T.
        reward_weight: w_R.
        clip_low: As in PPO.
        clip_high: As in PPO.
        bound: Of a, in nats.

    Source: Agarwal et al. 2024, arXiv:2306.13649; as an advantage added to that of rewards: slime, and the objective of
    OpenClaw-RL, arXiv:2603.10165.
    """
    same_length(learner_logprobs, old_logprobs, teacher_logprobs, advantages)
    a = teacher_advantages(teacher_logprobs, old_logprobs, bound=bound)
    found = clipped(
        learner_logprobs,
        old_logprobs,
        teacher_weight * a + reward_weight * advantages,
        clip_low=clip_low,
        clip_high=clip_high,
    )
    return TokenLoss(found.loss, found.metrics | {"distillation/advantage": a})


def importance_weighted_distillation(
    learner_logprobs: PerToken,
    sampler_logprobs: PerToken,
    teacher_logprobs: PerToken,
    *,
    low: NotNegative = 0.2,
    pull: NotNegative = 1e-3,
    bound: Positive = 10.0,
) -> SamplerRatioLoss:
    """Importance-weighted distillation by the present policy's distance to the teacher.

        a = sg[ℓ_T − ℓ];   L = −a exp(ℓ − ℓ_sampler) + τ (ℓ − ℓ_sampler)²

    Tokens whose probability fell by more than `low` below the sampler's keep only the second term. The ratio includes
    the mismatch: use no `importance_correction`.

    Args:
        learner_logprobs: [T] with gradient.
        sampler_logprobs: [T] as drawn; where nobody drew (NaN) the token's ratio is 1.
        teacher_logprobs: [T] under the teacher.
        low: Largest fall of a probability.
        pull: τ.
        bound: Of a, in nats.

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
    """[T] reverse KL over the teacher's likeliest tokens and one bin for all others; gradient through the student.

        Σ_v π(v) (log π(v) − log π_T(v)),   v over K tokens and the tail

    A tail is taken for a ten-millionth at least, or for what the width of its numbers can tell from nothing.

    Args:
        student_logits: [T, V] with gradient.
        teacher_top: [T, K] ids.
        teacher_logprobs: [T, K] of those.

    Source: Gu et al. 2024 (MiniLLM), arXiv:2306.08543; the tail bin as in OpenClaw-RL, arXiv:2603.10165.
    """
    student = student_logits.log_softmax(-1).gather(-1, teacher_top)
    student, teacher = _with_tail(student), _with_tail(teacher_logprobs.detach())
    return (student.exp() * (student - teacher)).sum(-1)


def _with_tail(logprobs: Tensor) -> Tensor:
    """[T, K + 1]: the log-prob of everything else behind them."""
    least = max(1e-7, torch.finfo(logprobs.dtype).eps)  # in half widths 1 − 1e-7 is 1, and the slope there infinite
    rest = torch.log1p(-logprobs.exp().sum(-1, keepdim=True).clamp(max=1 - least))
    return torch.cat([logprobs, rest], -1)
