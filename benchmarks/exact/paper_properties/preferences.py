"""Preferences and regression: each loss has its minimum at the soft-optimal policy, and shared prefixes cancel."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import TREE, gradient_of, max_gap, numbers
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.algorithms.advantages import b_coder, digirl
from whetstone.algorithms.objectives import (
    advantage_regression,
    advantage_weighted,
    dpo,
    ipo,
    kto,
    policy_gradient,
    refuel,
    step_dpo,
    supervised,
)
from whetstone.analysis.exact import Figure
from whetstone.rewards.judge_rewards.pairwise import Preferred
from whetstone.rewards.judges import Question, ScriptedJudge

REFERENCE = TREE.logprobs.sum(1)
"""[4] log-probability of each episode of the tree."""
REWARDS = TREE.rewards
GROUP = torch.zeros(4, dtype=torch.long)
KEYS = torch.arange(4)
LENGTHS = torch.full((4,), 2)


def _soft_optimum(temperature: float) -> Tensor:
    """[4] log-probabilities of the policy that maximizes reward minus temperature times the divergence."""
    return (REFERENCE + REWARDS / temperature).log_softmax(0)


@exact("dpo", of=dpo)
def preferences_have_the_soft_optimal_policy_as_minimum() -> list[Figure]:
    """With labels that follow the rewards as in the Bradley-Terry model, the gradient of the loss is 0 at the
    policy that maximizes reward minus β times the divergence, for each pair of the tree."""
    beta, largest, away = 0.5, 0.0, 0.0
    optimum = _soft_optimum(beta)
    for pair in itertools.combinations(range(4), 2):
        index = torch.tensor(pair)
        gap = abs(float(REWARDS[pair[0]] - REWARDS[pair[1]]))
        flipped = 1 / (1 + math.exp(gap))

        def loss(sums: Tensor, index: Tensor = index, flipped: float = flipped) -> Tensor:
            columns = (REFERENCE[index], REWARDS[index], GROUP[index], KEYS[index], LENGTHS[index])
            return dpo(sums, *columns, beta=beta, smoothing=flipped).loss

        largest = max(largest, float(gradient_of(loss, optimum[index]).abs().max()))
        away = max(away, float(gradient_of(loss, REFERENCE[index]).abs().max()))
    return [
        Figure("largest gradient of 6 pairs at the optimum", "=", 0.0, largest),
        Figure("largest gradient at the reference", ">", 0.01, away),
    ]


@exact("dpo", of=ipo)
def margins_stop_at_their_target() -> list[Figure]:
    """The squared loss on pairs is 0 with gradient 0 at a margin of 1 / 2β, and pulls back beyond it."""

    def slope(margin: float) -> float:
        sums = numbers([margin, 0.0])
        columns = (torch.zeros(2), numbers([1.0, 0.0]), GROUP[:2], KEYS[:2], torch.ones(2))
        return float(gradient_of(lambda x: ipo(x, *columns, beta=0.1).loss, sums)[0])

    return [
        Figure("gradient on the better one at a margin of 5", "=", 0.0, slope(5.0)),
        Figure("at 4", "=", -2.0, slope(4.0)),
        Figure("at 6", "=", 2.0, slope(6.0)),
    ]


@exact("refuel", of=refuel)
def regression_ends_at_the_soft_optimal_policy() -> list[Figure]:
    """The loss is 0 at the policy that is the old one times exp(η return), up to its norm, and has a gradient
    elsewhere."""
    optimum = _soft_optimum(1 / 0.7)

    def loss(sums: Tensor) -> Tensor:
        return refuel(sums, REFERENCE, REWARDS, GROUP, reward_scale=0.7).loss

    return [
        Figure("loss at the optimum, η = 0.7", "=", 0.0, float(loss(optimum))),
        Figure("largest gradient at the optimum", "=", 0.0, float(gradient_of(loss, optimum).abs().max())),
        Figure("largest gradient at the old policy", ">", 0.01, float(gradient_of(loss, REFERENCE).abs().max())),
    ]


@exact("kto", of=kto)
def unpaired_outcomes_have_opposite_gradients() -> list[Figure]:
    """Without pairs, a success rises and a failure falls; at the reference point both have the gradient βλ/4,
    which fades away from it."""

    def slopes(gap: float, **options: float) -> Tensor:
        rewards = numbers([1.0, 0.0])
        sums = numbers([gap, gap])
        return 2 * gradient_of(
            lambda x: kto(x, torch.zeros(2), rewards, beta=0.4, reference_point=0.0, **options).loss, sums
        )

    return [
        Figure("success at the reference point, β = 0.4", "=", -0.1, float(slopes(0.0)[0])),
        Figure("failure at the reference point, weight 1.5", "=", 0.15, float(slopes(0.0, undesirable=1.5)[1])),
        Figure("success far above it", ">", -0.01, float(slopes(20.0)[0])),
    ]


@exact("tp-llama", "sport", of=(dpo, step_dpo))
def shared_steps_cancel() -> list[Figure]:
    """In a pair of episodes with a common first turn, that turn has no gradient, so the loss of the pair is the
    loss of the turn at which they part."""
    first, second = numbers([-0.7]), numbers([-1.2, -0.4])
    reference = numbers([-0.9, -0.8])
    columns = (numbers([1.0, 0.0]), GROUP[:2], KEYS[:2], LENGTHS[:2])

    def loss(prefix: Tensor) -> Tensor:
        return dpo(prefix + second, reference - 0.7, *columns, beta=0.3).loss

    step = step_dpo(second, reference, *columns, beta=0.3).loss
    return [
        Figure("gradient on the shared turn", "=", 0.0, float(gradient_of(loss, first))),
        Figure("gap of the episode's loss to the step's", "=", 0.0, float(loss(first) - step)),
    ]


@exact("webrl", of=advantage_regression)
def regression_target_is_the_constrained_optimum() -> list[Figure]:
    """The gradient is 0 where β times the mean log-ratio of a turn equals its advantage, the optimum of reward
    minus β times the divergence, and turns back beyond it."""
    reference, advantages, index = numbers([-1.0, -2.0]), numbers([0.6, 0.6]), torch.zeros(2, dtype=torch.long)

    def slope(ratio: float) -> float:
        return float(
            gradient_of(
                lambda x: advantage_regression(x, reference, advantages, index, index, temperature=2.0).loss.sum(),
                reference + ratio,
            ).sum()
        )

    return [
        Figure("gradient at a log-ratio of 0.3, β = 2", "=", 0.0, slope(0.3)),
        Figure("at 0.2", "<", 0.0, slope(0.2)),
        Figure("at 0.4", ">", 0.0, slope(0.4)),
    ]


@exact("rejection-fine-tuning", of=(supervised, policy_gradient))
def imitation_of_successes_is_policy_gradient() -> list[Figure]:
    """Imitation of successes has the gradient of the plain policy gradient with rewards of 0 and 1, and its
    minimum is the policy given success."""
    success = (REWARDS >= 0.8).double()
    chances = REFERENCE.exp()

    def imitation(z: Tensor) -> Tensor:
        return (chances * success * supervised(z.log_softmax(0)).loss).sum()

    def reinforced(z: Tensor) -> Tensor:
        return (chances * policy_gradient(z.log_softmax(0), success).loss).sum()

    conditional = (chances * success / (chances * success).sum()).clamp(min=1e-12).log()
    return [
        Figure("largest gap of both gradients at the sampling policy", "=", 0.0,
               max_gap(gradient_of(imitation, REFERENCE), gradient_of(reinforced, REFERENCE))),
        Figure("largest gradient of imitation at the policy given success", "=", 0.0,
               float(gradient_of(imitation, conditional).abs().max())),
    ]  # fmt: skip


@exact("digirl", of=digirl)
def uneventful_turns_of_failures_are_dropped() -> list[Figure]:
    """With true values, the filter keeps a turn if it raises the value or its episode succeeds, and drops turns
    of a failure that change nothing."""
    # a success whose first turn decides, and two failures: one loses the value at its second turn
    values = numbers([0.5, 1.0, 0.5, 0.5, 0.5, 0.9])
    rewards = numbers([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    trajectory, last = torch.arange(3).repeat_interleave(2), torch.zeros(3).double()
    credit = digirl(rewards, values, last, values, last, trajectory).advantages
    return [
        Figure("turns kept of the success", "=", 2, float(credit[:2].sum())),
        Figure("turns kept of the failure that changed nothing", "=", 0, float(credit[2:4].sum())),
        Figure("turn of a failure that raised the value by 0.4", "=", 1, float(credit[4])),
        Figure("turn of a failure that lost it", "=", 0, float(credit[5])),
    ]


@exact("b-coder", of=b_coder)
def residual_is_the_gradient_of_the_bellman_error() -> list[Figure]:
    """Credit times the score is, up to the factor β, the gradient of half the squared Bellman residual in the
    policy's part of Q."""
    logprobs, values = numbers([-0.5, -1.5, -0.2]), numbers([0.3, 0.1, 0.6])
    rewards, last, index = numbers([0.0, 0.0, 1.0]), numbers([0.0]), torch.zeros(3, dtype=torch.long)
    beta = 0.05
    credit = b_coder(rewards, values, last, logprobs, index, temperature=beta).advantages

    def error(x: Tensor) -> Tensor:
        q = values + beta * x
        ahead = torch.cat([q[1:], last]).detach()
        return (rewards + ahead - q).square().sum() / 2

    return [Figure("largest gap", "=", 0.0, max_gap(gradient_of(error, logprobs), -beta * credit))]


@exact("digirl", of=advantage_weighted, note="the offline start; the online stage filters turns instead")
def weighted_imitation_is_the_tilted_policy() -> list[Figure]:
    """Imitation weighted by exp(A / β) has its minimum at the sampling policy times exp(A / β), up to its norm."""
    chances = REFERENCE.exp()
    optimum = _soft_optimum(0.8)

    def loss(z: Tensor) -> Tensor:
        return (chances * advantage_weighted(z.log_softmax(0), REWARDS, temperature=0.8).loss).sum()

    return [Figure("largest gradient at the tilted policy", "=", 0.0, float(gradient_of(loss, optimum).abs().max()))]


def _win_rates(prefers: Callable[[float, float], str]) -> Tensor:
    """[4] win rates of the episodes of the tree, judged in pairs by a function of their rewards."""

    def answers(question: Question) -> dict[str, str]:
        first, second = (float(question.material[name].rpartition(" ")[2]) for name in ("first", "second"))
        return {"reason": "", "better": prefers(first, second)}

    episodes = [make_episode([make_turn(f"{reward:g}")]) for reward in REWARDS.tolist()]
    scores = asyncio.run(Preferred(judge=ScriptedJudge(answers=answers)).compared(episodes, TASK))
    return numbers([score.value for score in scores])


@exact(
    "real-world-offline-reinforcement-learning-vision",
    of=(Preferred, dpo),
    note="episodes are text, the judge is scripted, and the policy is enumerated",
)
def pairs_that_a_judge_labels_train_a_policy() -> list[Figure]:
    """Win rates of stored episodes, judged in pairs without a reward, have the order of the rewards; the exact
    gradient of the preference loss on these labels raises the true reward of a policy that samples nothing new. A
    judge that prefers a position labels nothing."""
    labels = _win_rates(lambda first, second: "first" if first > second else "second")
    biased = _win_rates(lambda first, second: "first")
    pairs = torch.tensor(list(itertools.combinations(range(4), 2))).flatten()
    columns = (
        REFERENCE[pairs],
        labels[pairs],
        torch.arange(6).repeat_interleave(2),
        torch.arange(12),
        LENGTHS.repeat(3),
    )

    def sums(logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)[TREE.nodes, TREE.paths].sum(1)

    def loss(logits: Tensor) -> Tensor:
        return dpo(sums(logits)[pairs], *columns, beta=0.5).loss

    logits, before = TREE.logits, float(TREE.probabilities @ REWARDS)
    for _ in range(300):
        logits = logits - gradient_of(loss, logits)
    after = sums(logits).exp()
    return [
        # three others each: wins of rewards 1, 0, 0.3, 0.8
        Figure("largest gap of win rates to 1, 0, 1/3, 2/3", "=", 0.0, max_gap(labels, numbers([1, 0, 1 / 3, 2 / 3]))),
        Figure(
            "largest gap of win rates to 1/2, judge that prefers the first", "=", 0.0, float((biased - 0.5).abs().max())
        ),
        Figure("true reward after training on the labels, bound: before", ">", before, float(after @ REWARDS)),
        Figure("probability of the best episode", ">", 0.9, float(after[0])),
    ]
