"""Importance weights and trust regions: bias, bounds and the fraction of tokens that each objective leaves out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import TREE, Tree, enumerate_groups, gradient_of, group_gradients, max_gap, numbers
from whetstone.algorithms.advantage_transforms.m2po import m2po
from whetstone.algorithms.credit_filters import void_turns
from whetstone.algorithms.importance_sampling import masked, sequence_truncated, truncated
from whetstone.algorithms.objectives import cispo, clipped, gmpo, gspo, probability_difference, sapo
from whetstone.analysis.exact import Figure
from whetstone.rollout.strategies.doubt_injection import splice_logprobs

HINTED = Tree(TREE.paths, TREE.nodes, numbers([[-0.2, 0.3], [0.1, 0.8], [0.6, -0.4]]), TREE.rewards)
"""The same episodes under another policy: with a hint, or before several updates."""


def _expected_gradient(weights: Tensor) -> Tensor:
    """[P] expectation over the other policy's episodes of weight · reward · score; weights are [L, depth]."""
    groups = enumerate_groups(HINTED.probabilities, 1)
    return groups.mean_of(group_gradients(TREE, groups, weights * TREE.rewards[:, None]))


@exact(
    "guide",
    "agent-rlvr",
    of=(sequence_truncated, truncated),
    note="the recipe weights tokens in the clipped objective, as the paper does: exact for one turn, biased for two",
)
def hinted_episodes_train_the_policy_without_hint() -> list[Figure]:
    """Episodes sampled with a hint, weighted by the ratio of the whole episode, have the expected gradient of
    the policy without the hint; without weights the gradient is biased."""
    sequence = torch.arange(4).repeat_interleave(2)
    policy, hinted = TREE.logprobs.flatten(), HINTED.logprobs.flatten()
    episodes = sequence_truncated(policy, hinted, sequence, high=1e9).view(4, 2)
    tokens = truncated(policy, hinted, high=1e9).view(4, 2)
    unweighted = max_gap(_expected_gradient(torch.ones_like(episodes)), TREE.gradient)
    return [
        Figure("largest bias of a component, weights of episodes", "=", 0.0,
               max_gap(_expected_gradient(episodes), TREE.gradient)),
        Figure("the same without weights", ">", 0.05, unweighted),
        Figure("the same, weights of tokens, bound: without weights", "<", unweighted,
               max_gap(_expected_gradient(tokens), TREE.gradient)),
    ]  # fmt: skip


@exact("rex-rag", of=(splice_logprobs, sequence_truncated))
def spliced_sentences_have_their_exact_probability() -> list[Figure]:
    """The log-probabilities of a spliced sentence sum to that of choosing it from the pool, so that weights
    leave the gradient of the policy unbiased."""
    pool = [(1, 2, 3), (1, 2, 4), (1, 5, 6), (7, 8, 9)]
    sums = numbers([sum(splice_logprobs(pool, sentence)) for sentence in pool])
    # the policy writes sentence k with the softmax of logits; reward k/3
    policy, rewards = numbers([0.3, -0.2, 0.5, 0.0]).log_softmax(0), numbers([0.0, 1 / 3, 2 / 3, 1.0])
    weights = sequence_truncated(policy, sums, torch.arange(4), high=1e9)
    scores = torch.eye(4, dtype=torch.float64) - policy.exp()
    result = (sums.exp() * weights * rewards) @ scores
    return [
        Figure("largest gap of a sentence's probability to 1/4", "=", 0.0, max_gap(sums.exp(), numbers([0.25] * 4))),
        Figure("largest bias of a component", "=", 0.0, max_gap(result, (policy.exp() * rewards) @ scores)),
    ]


@exact("decoupled-ppo", of=(masked, clipped))
def trust_region_is_around_the_fresh_policy() -> list[Figure]:
    """With the ratio to the policy before the update and the weight to the sampler, a stale token inside the
    clip has the exact off-policy gradient; the ratio to the stale sampler clips it."""
    sampler, old = numbers([0.2]).log(), numbers([0.5]).log()  # the policy moved by a factor of 2.5 since sampling

    def gradient(reference: Tensor, weight: Tensor) -> float:
        loss = gradient_of(lambda x: (weight * clipped(x, reference, numbers([1.0])).loss).sum(), old)
        return float(loss[0])

    return [
        Figure("gradient, decoupled (ratio 1, weight 2.5)", "=", -2.5, gradient(old, masked(old, sampler, high=5.0))),
        Figure("gradient, ratio to the stale sampler", "=", 0.0, gradient(sampler, numbers([1.0]))),
    ]


def _stale(staleness: float, tokens: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """New and old log-probabilities of a sequence whose log-ratios have a deviation in proportion to staleness."""
    noise = torch.special.ndtri((torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens)  # normal quantiles
    noise = noise[torch.arange(tokens) * 29 % tokens]
    old = numbers([-1.0 - 0.02 * k for k in range(tokens)])
    return old + staleness * noise, old, noise


@exact("gspo", of=gspo)
def sequence_ratios_spread_less() -> list[Figure]:
    """The log-ratio of a sequence is the mean of its tokens' log-ratios: its spread is that of tokens over √n."""
    new, old, noise = _stale(0.3)
    sequence = torch.arange(4).repeat_interleave(16)
    turn = torch.zeros(64, dtype=torch.long)
    result = gspo(new, old, torch.ones(64), sequence, turn)
    means = result.metrics["policy/ratio"].log().view(4, 16)
    expected = (0.3 * noise).view(4, 16).mean(1)
    tokens = 0.3 * noise
    return [
        Figure("largest gap of a sequence's log-ratio to the mean", "=", 0.0, max_gap(means[:, 0], expected)),
        Figure("largest log-ratio of a sequence, bound: of a token / √16 · 1.5", "<",
               float(tokens.abs().max()) / 4 * 1.5, float(means.abs().max())),
        Figure("tokens of a sequence with different ratios", "=", 0, float((means.std(1) > 1e-12).sum())),
    ]  # fmt: skip


@exact("gmpo", of=gmpo)
def geometric_mean_is_below_the_arithmetic_one() -> list[Figure]:
    """The geometric mean of ratios is at most their arithmetic mean, and one wild token moves it by the n-th
    root only."""
    sequence = torch.zeros(16, dtype=torch.long)
    old = torch.full((16,), -2.0, dtype=torch.float64)

    def value(gap: float) -> float:
        new = old + numbers([0.1, -0.1] * 8)
        new[0] = -2.0 + gap
        return -float(gmpo(new, old, torch.ones(16), sequence, clip=10.0).loss[0])

    new, before, noise = _stale(0.5, 16)
    geometric = -float(gmpo(new, before, torch.ones(16), sequence, clip=10.0).loss[0])
    return [
        Figure("geometric mean, bound: arithmetic mean", "<", float((0.5 * noise).exp().mean()), geometric),
        Figure(
            "factor of the objective when one token of 16 rises by e^1.6", "=", math.exp(0.1), value(1.7) / value(0.1)
        ),
    ]


@exact("cispo", of=(cispo, clipped))
def no_token_loses_its_gradient() -> list[Figure]:
    """With the weight clipped and not the gradient, every token has a gradient at any staleness; the clipped
    surrogate silences a fraction that grows with staleness."""

    def silent(objective: str, staleness: float) -> float:
        new, old, _ = _stale(staleness)
        advantages = numbers([1.0, -1.0] * 32)
        loss = cispo if objective == "cispo" else clipped
        return float((gradient_of(lambda x: loss(x, old, advantages).loss.sum(), new) == 0).double().mean())

    def outside(staleness: float) -> float:
        ratio, positive = (staleness * _stale(1.0)[2]).exp(), numbers([1.0, -1.0] * 32) > 0
        return float(torch.where(positive, ratio > 1.2, ratio < 0.8).double().mean())

    return [
        Figure("fraction of silent tokens, CISPO, deviation of log-ratios 0.8", "=", 0.0, silent("cispo", 0.8)),
        Figure("the same, clip, deviation 0.1", "=", outside(0.1), silent("clipped", 0.1)),
        Figure("the same, clip, deviation 0.8", "=", outside(0.8), silent("clipped", 0.8)),
    ]


@exact("sapo", of=(sapo, clipped))
def soft_gate_has_no_edge() -> list[Figure]:
    """The slope of the gate is that of PPO at ratio 1, falls without a jump and never reaches 0; the clip's
    slope jumps."""
    log_ratios = torch.linspace(-1.0, 1.0, 2001, dtype=torch.float64)
    old = torch.full_like(log_ratios, -3.0)
    ones = torch.ones_like(old)

    def slopes(loss: object) -> Tensor:
        objective = sapo if loss is sapo else clipped
        gradient = gradient_of(lambda x: objective(x, old, ones).loss.sum(), old + log_ratios)
        return gradient / log_ratios.exp()  # with respect to the ratio

    soft, hard = slopes(sapo), slopes(clipped)
    return [
        Figure("slope at ratio 1", "=", -1.0, float(soft[1000])),
        Figure("largest jump of the slope over steps of 0.001", "<", 0.001, float(soft.diff().abs().max())),
        Figure("the same, clip", "=", 1.0, float(hard.diff().abs().max())),
        Figure("smallest slope", ">", 0.0, float(soft.abs().min())),
    ]


@exact("probability-difference", of=(probability_difference, clipped))
def rare_tokens_may_move_by_more_than_the_ratio() -> list[Figure]:
    """A bound on the difference of probabilities lets a rare token rise by a large factor and stops a frequent
    one before the clip would."""

    def stops(sampler: float, new: float) -> tuple[bool, bool]:
        mu, pi, one = numbers([sampler]).log(), numbers([new]).log(), numbers([1.0])
        region = gradient_of(lambda x: probability_difference(x, mu, one, pull=0.0).loss.sum(), pi)
        clip = gradient_of(lambda x: clipped(x, mu, one).loss.sum(), pi)
        return bool(region == 0), bool(clip == 0)

    rare, frequent = stops(0.01, 0.15), stops(0.6, 0.85)
    mass = max(p / 100 for p in range(1, 99) if not stops(0.01, p / 100)[0]) - 0.01
    return [
        Figure("0.01 to 0.15 (factor 15) stopped by the difference", "=", 0, rare[0]),
        Figure("the same stopped by the clip", "=", 1, rare[1]),
        Figure("0.6 to 0.85 stopped by the difference", "=", 1, frequent[0]),
        Figure("largest rise of a probability with a gradient (bound 0.2)", "<=", 0.2, mass),
    ]


@exact("m2po", of=m2po)
def second_moment_stays_below_its_bound() -> list[Figure]:
    """The second moment of the log-ratios of the tokens that are kept is below the bound at any staleness, and
    the largest ratios leave first."""

    def keep(staleness: float) -> tuple[float, float, bool]:
        new, old, _ = _stale(staleness)
        result = m2po(torch.ones(64, dtype=torch.float64), new, old, bound=0.04)
        squares = (new - old).square()
        inside, outside = squares[result != 0], squares[result == 0]
        ordered = len(outside) == 0 or float(inside.max()) <= float(outside.min())
        return float(inside.mean()), len(inside) / 64, ordered

    rows = [keep(staleness) for staleness in (0.1, 0.3, 1.0, 3.0)]
    return [
        Figure("largest second moment kept, deviations 0.1 to 3 (bound 0.04)", "<", 0.04, max(row[0] for row in rows)),
        Figure("fraction of tokens kept at deviation 0.1", "=", 1.0, rows[0][1]),
        Figure("fraction kept at deviation 1, bound: at 0.3", "<", rows[1][1], rows[2][1]),
        Figure("stalenesses at which a token left before a larger one", "=", 0, sum(not row[2] for row in rows)),
    ]


@exact("simpletir", of=void_turns)
def filter_drops_exactly_the_void_episodes() -> list[Figure]:
    """For each of the 64 patterns of void turns over three episodes of two turns, exactly the episodes with a
    void turn leave the loss."""
    wrong = 0
    for pattern in range(64):
        void = torch.tensor([pattern >> turn & 1 for turn in range(6)])
        result = void_turns(torch.zeros(3), void, torch.arange(3).repeat_interleave(2))
        wrong += int((result.bool() == void.view(3, 2).any(1)).sum())
    return [Figure("episodes kept with a void turn or dropped without one", "=", 0, wrong)]
