"""Entropy: the first-order law, tokens held back by covariance, bands, and the optimum under an entropy bonus."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import gradient_of, max_gap, numbers
from whetstone.algorithms.advantage_transforms import clip_cov, entropy_aware, entropy_modulated
from whetstone.algorithms.advantage_transforms.clip_cov import covariances
from whetstone.algorithms.advantage_transforms.high_entropy_turns import high_entropy_turns
from whetstone.algorithms.objectives import (
    clipped,
    entropy_balanced,
    entropy_bonus,
    entropy_smoothing,
    kl_cov,
    policy_gradient,
)
from whetstone.analysis.exact import Figure

TOKENS = torch.repeat_interleave(torch.arange(4), torch.tensor([8, 4, 2, 2]))
"""Sixteen samples in exact proportion to the probabilities 1/2, 1/4, 1/8 and 1/8."""
LOGITS = numbers([8.0, 4.0, 2.0, 2.0]).log()
ADVANTAGES = numbers([1.0, -1.0, 0.5, -2.5])[TOKENS]
"""Mean 0 over the samples, and positive for the most probable token."""


def _entropy(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def _entropy_change(advantages: Tensor, step: float = 1e-5) -> float:
    """Change of entropy per unit of step after one update with the clipped objective at ratio 1."""
    old = LOGITS.log_softmax(-1)[TOKENS]
    slope = gradient_of(lambda z: clipped(z.log_softmax(-1)[TOKENS], old, advantages).loss.mean(), LOGITS)
    return float(_entropy(LOGITS - step * slope) - _entropy(LOGITS)) / step


@exact("entropy-mechanism", of=covariances)
def entropy_falls_by_the_covariance() -> list[Figure]:
    """A natural-gradient step of size η changes the entropy by -η times the covariance of log-probability and
    advantage, which the component measures."""
    logprobs = LOGITS.log_softmax(-1)
    measured = float(covariances(ADVANTAGES, logprobs[TOKENS]).mean())
    step = 1e-5
    change = float(_entropy(LOGITS + step * numbers([1.0, -1.0, 0.5, -2.5])) - _entropy(LOGITS)) / step
    # mean of log p is -(1/2 * 1 + 1/4 * 2 + 1/8 * 3 * 2) log 2 = -1.75 log 2
    covariance = math.log(2) * (0.5 * 1 * 0.75 + 0.25 * -1 * -0.25 + 0.125 * 0.5 * -1.25 + 0.125 * -2.5 * -1.25)
    return [
        Figure("covariance", "=", covariance, measured),
        Figure("gap of the change per step to its negative", "<", 1e-4, abs(change + covariance)),
    ]


@exact("entropy-mechanism", of=clip_cov)
def entropy_falls_less_without_covering_tokens() -> list[Figure]:
    """Without the tokens of highest covariance, one exact step lowers the entropy less; only their credit
    changes."""
    old = LOGITS.log_softmax(-1)[TOKENS]
    covariance = covariances(ADVANTAGES, old)
    clipped_credit = clip_cov(ADVANTAGES, old, torch.linspace(0, 1, 16), fraction=0.5, low=0.4, high=5.0)
    changed = clipped_credit != ADVANTAGES
    return [
        Figure("tokens removed, half of 16", "=", 8, float(changed.sum())),
        Figure("smallest covariance among them", ">", 0.4, float(covariance[changed].min())),
        Figure("change of entropy per step, plain", "<", 0.0, _entropy_change(ADVANTAGES)),
        Figure("the same without them, bound: plain", ">", _entropy_change(ADVANTAGES),
               _entropy_change(clipped_credit)),
    ]  # fmt: skip


@exact("entropy-mechanism", of=kl_cov)
def covering_tokens_are_pulled_back() -> list[Figure]:
    """The tokens of highest covariance have a penalty on their movement: once they moved up, their gradient is
    smaller by its weight; the other tokens are unchanged."""
    old = numbers([-1.0] * 4)
    rank = numbers([0.0, 0.25, 0.5, 0.75])
    now = old + math.log(1.1)

    def slopes(weight: float) -> Tensor:
        return gradient_of(lambda x: kl_cov(x, old, torch.ones(4), rank, fraction=0.1, weight=weight).loss.sum(), now)

    change = slopes(0.6) - slopes(0.0)
    return [
        Figure("change of the gradient of the token of highest covariance", "=", 0.6, float(change[0])),
        Figure("largest change of the others", "=", 0.0, float(change[1:].abs().max())),
    ]


@exact("aem", of=entropy_modulated)
def confident_turns_count_more() -> list[Figure]:
    """Weights fall with a turn's entropy and average 1 in a group, so that failures of confident turns raise
    entropy more than plain credit does and successes lower it more."""
    entropies, trajectory, group = numbers([0.1, 0.5, 0.9, 1.3]), torch.arange(4), torch.zeros(4, dtype=torch.long)
    weights = entropy_modulated(torch.ones(4), entropies, trajectory, group, strength=1.0)
    losses = entropy_modulated(-torch.ones(4), entropies, trajectory, group, strength=1.0)
    return [
        Figure("mean weight", "=", 1.0, float(weights.mean())),
        Figure("most confident over least confident turn (e)", "=", math.e, float(weights[0] / weights[3])),
        Figure("largest step of the weight with entropy", "<", 0.0, float(weights.diff().max())),
        Figure("gap of a failure's weight to a success's", "=", 0.0, max_gap(losses, -weights)),
    ]


@exact("entropy-balanced", of=(entropy_balanced, clipped, entropy_aware))
def tokens_above_the_clip_keep_a_bounded_gradient() -> list[Figure]:
    """Above the upper clip the gradient stays at that of the bound, and is 0 under the plain clip; unsure
    tokens count more and no advantage turns its sign."""
    old, ones = numbers([-3.0] * 3), torch.ones(3, dtype=torch.float64)
    now = old + numbers([1.28, 2.0, 4.0]).log() + 1e-6
    balanced = gradient_of(lambda x: entropy_balanced(x, old, ones).loss.sum(), now)
    plain = gradient_of(lambda x: clipped(x, old, ones, clip_high=0.28).loss.sum(), now)
    weights = entropy_aware(ones, numbers([0.1, 0.4, 1.0]))
    return [
        Figure(
            "largest gap of the gradient to -1.28 at ratios of 1.28, 2 and 4",
            "=",
            0.0,
            float((balanced + 1.28).abs().max()),
        ),
        Figure("gradient of the plain clip", "=", 0.0, float(plain.abs().max())),
        Figure("smallest step of the weight with entropy", ">", 0.0, float(weights.diff().min())),
        Figure("mean weight", "=", 1.0, float(weights.mean())),
    ]


@exact("epo", of=entropy_smoothing)
def band_pulls_entropy_back() -> list[Figure]:
    """The bonus is stronger below the band of past entropy, plain inside and a pull downward above it."""
    past = numbers([1.0, 1.0, 1.0])
    slope = gradient_of(lambda h: entropy_smoothing(h, past).loss.sum(), numbers([0.5, 1.0, 1.5]))
    indicator = gradient_of(lambda h: entropy_smoothing(h, past, form="indicator").loss.sum(), numbers([0.5, 1.0, 1.5]))
    return [
        Figure("gradient at half the past entropy", "=", -3.0, float(slope[0])),
        Figure("inside the band", "=", -1.0, float(slope[1])),
        Figure("at one and a half of it", "=", 1.0, float(slope[2])),
        Figure(
            "largest gap of the released code's penalty to a plain bonus", "=", 0.0, float((indicator + 1).abs().max())
        ),
    ]


@exact("dart", of=high_entropy_turns)
def unsure_turns_are_trained() -> list[Figure]:
    """Exactly the turns of highest entropy keep their advantage."""
    entropies = numbers([0.3, 1.2, 0.1, 0.8, 0.5])
    credit = high_entropy_turns(torch.ones(5), entropies, fraction=0.6)
    return [
        Figure("turns kept of 5, fraction 0.6", "=", 3, float(credit.sum())),
        Figure("least entropy kept, bound: largest dropped", ">", float(entropies[credit == 0].max()),
               float(entropies[credit != 0].min())),
    ]  # fmt: skip


@exact("policy-cliff", of=(policy_gradient, entropy_bonus))
def entropy_turns_the_cliff_into_a_slope() -> list[Figure]:
    """With an entropy bonus τ the optimum is softmax(r/τ), which moves little with a nudge of the reward;
    without it the only optimum is the better answer, however small the nudge."""

    def slope(left: float, nudge: float, bonus: float) -> float:
        rewards = numbers([1.0 + nudge, 1.0])

        def loss(z: Tensor) -> Tensor:
            logprobs = torch.stack([z, torch.zeros_like(z)]).log_softmax(0)
            chances = logprobs.detach().exp()
            gradient = (chances * policy_gradient(logprobs, rewards - (chances * rewards).sum()).loss).sum()
            return gradient + bonus * entropy_bonus(-(logprobs.exp() * logprobs).sum().reshape(1)).loss.sum()

        return float(gradient_of(loss, torch.tensor(math.log(left / (1 - left)), dtype=torch.float64)))

    def optimum(nudge: float, bonus: float) -> float:
        low, high = 1e-6, 1 - 1e-6
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle, nudge, bonus) < 0 else (low, middle)
        return low

    interior = [slope(k / 100, nudge, 0.0) * (1 if nudge < 0 else -1) for k in range(1, 100) for nudge in (-0.05, 0.05)]
    return [
        Figure("left at the optimum, nudge +0.05, τ 0.1", "=", 1 / (1 + math.exp(-0.5)), optimum(0.05, 0.1)),
        Figure("left at the optimum, nudge -0.05, τ 0.1", "=", 1 / (1 + math.exp(0.5)), optimum(-0.05, 0.1)),
        Figure("least push toward the nudged answer without a bonus, 99 policies", ">", 0.0, min(interior)),
    ]


@exact("advancing-language-model-reasoning-through-reinforcement", of=entropy_bonus)
def bonus_raises_entropy_of_every_policy() -> list[Figure]:
    """A step on the bonus raises the entropy of every policy that is not uniform."""
    changes = []
    for logits in itertools.product((-1.0, 0.0, 1.5), repeat=3):
        z = numbers(logits)
        slope = gradient_of(lambda x: entropy_bonus(_entropy(x).reshape(1)).loss.sum(), z)
        if len(set(logits)) > 1:
            changes.append(float(_entropy(z - 1e-3 * slope) - _entropy(z)))
    return [Figure("least change over 24 policies", ">", 0.0, 1e3 * min(changes))]
