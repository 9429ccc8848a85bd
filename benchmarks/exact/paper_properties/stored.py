"""Offline data: density ratios, pessimism, balance by state, and mixtures that reduce to the on-policy method."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import gradient_of, max_gap, numbers
from whetstone.algorithms.advantage_transforms.famo2o import balance_coefficient, famo2o
from whetstone.algorithms.advantage_transforms.probability_band import probability_band
from whetstone.algorithms.objectives.consistency import consistency
from whetstone.algorithms.objectives.distillation import on_policy_distillation
from whetstone.algorithms.objectives.offline_to_online import (
    hybrid_weight,
    pessimistic_value,
    reptile_step,
    simulation_penalty,
)
from whetstone.analysis.exact import Figure
from whetstone.data.offline_mixture import compute_improvement, compute_priorities
from whetstone.learning.dynamics_discriminator import log_odds


def _transitions(counts: list[int]) -> Tensor:
    """[Σ counts, K] one-hot rows of K transitions."""
    return torch.eye(len(counts), dtype=torch.float64)[
        torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    ]


@exact("when-trust-your-simulator", of=(log_odds, simulation_penalty))
def learned_ratio_is_the_true_one() -> list[Figure]:
    """Without a ridge the discriminator's log-odds on tabular transitions equal the log-ratio of the simulated
    and the real frequency; the penalty weighs simulated values by it, and is the log-mean-exp where dynamics
    are equal."""
    # a slippery step of a lake: real 1/3 each way, simulated 3/4, 1/8, 1/8
    simulated, real = [18, 3, 3], [8, 8, 8]
    estimate = log_odds(_transitions(simulated), _transitions(real), ridge=1e-9)
    expected = numbers([18 / 8, 3 / 8, 3 / 8]).log()[torch.repeat_interleave(torch.arange(3), torch.tensor(simulated))]
    values = numbers([0.2, 0.5, 0.9])
    equal = simulation_penalty(torch.zeros(3).double(), values, values)
    off = gradient_of(lambda q: simulation_penalty(numbers([0.0, 0.0, 4.0]), q, values), values)
    return [
        Figure("largest gap of a transition's log-ratio", "<", 1e-5, max_gap(estimate, expected)),
        Figure("penalty at equal dynamics", "=", float(values.exp().mean().log() - values.mean()), float(equal)),
        Figure("push on the transition that is off over another one", ">", math.exp(4), float(off[2] / off[0])),
    ]


@exact("towards-robust-offline-online-reinforcement-learning", of=(pessimistic_value, consistency))
def pessimism_is_below_every_mean() -> list[Figure]:
    """The value of an ensemble is at most its mean, equal to it only if the critics agree, and below the true
    value in all states of a table whose critics are unbiased with known errors."""
    true = numbers([0.2, 0.5, 0.9, 0.4])
    errors = numbers([[0.2, -0.1, 0.0, 0.3], [-0.2, 0.1, 0.0, -0.1], [0.0, 0.0, 0.0, -0.2]])
    least, deviation = pessimistic_value(true + errors), pessimistic_value(true + errors, by="deviation", strength=1.0)
    both = numbers([0.3, 0.7])
    left = gradient_of(lambda x: consistency(x[:1], x[1:]).loss.sum(), both)
    return [
        Figure("largest excess of the minimum over the true value", "=", 0.0, float((least - true).max())),
        Figure("largest excess of mean less deviation", "=", 0.0, float((deviation - true).max())),
        Figure("value where critics agree", "=", 0.9, float(deviation[2])),
        Figure("mean less deviation of errors 0.2, -0.2 and 0", "=", 0.2 - (0.08 / 3) ** 0.5, float(deviation[0])),
        Figure("sum of the gradients of clean and perturbed value", "=", 0.0, float(left.sum())),
    ]


@exact("train-once-get-family", of=(famo2o, balance_coefficient))
def strength_follows_what_is_known() -> list[Figure]:
    """The balance of a state is the largest if the critics agree, falls with their deviation to the smallest,
    and at 0 for all states it is plain imitation."""
    b = balance_coefficient(numbers([0.0, 0.1, 50.0]), min_coef=0.5, max_coef=3.0, scale=0.1)
    weights = famo2o(numbers([0.4, 0.4]), numbers([0.0, 50.0]), min_coef=0.5, max_coef=3.0)
    plain = famo2o(numbers([0.4, -2.0]), numbers([0.0, 1.0]), min_coef=0.0, max_coef=0.0)
    return [
        Figure("critics agree", "=", 3.0, float(b[0])),
        Figure("deviation of one scale", "=", 0.5 + 2.5 / math.e, float(b[1])),
        Figure("far apart", "=", 0.5, float(b[2])),
        Figure(
            "weight of an advantage of 0.4, known over unknown",
            "=",
            math.exp(0.4 * 2.5),
            float(weights[0] / weights[1]),
        ),
        Figure("largest gap of plain imitation to 1", "=", 0.0, float((plain - 1).abs().max())),
    ]


@exact("offline-data-enhanced-policy-policy-gradient", of=hybrid_weight)
def stored_turns_add_a_mean_of_their_own() -> list[Figure]:
    """The critic's loss with weighted stored turns equals the mean over fresh turns plus λ times the mean over
    stored ones, and is the on-policy loss at λ = 0."""
    fresh, stored = numbers([0.5, 0.1, 0.3]), numbers([1.0, 0.2, 0.4, 0.8, 0.6])
    weight = hybrid_weight(3, 5, offline_weight=0.7)
    joined = float((fresh.sum() + weight * stored.sum()) / 3)
    return [
        Figure("joined loss", "=", 0.3 + 0.7 * 0.6, joined),
        Figure("weight at λ = 0", "=", 0.0, hybrid_weight(3, 5, offline_weight=0.0)),
        Figure("weight without stored turns", "=", 0.0, hybrid_weight(3, 0)),
    ]


@exact("moorl", of=reptile_step)
def meta_step_follows_both_kinds_of_data() -> list[Figure]:
    """Alternating inner loops on two quadratic losses, the meta-weights converge to the point between both
    minima, where each single kind of data would leave it."""
    weights = numbers([4.0])
    for step in range(2000):
        goal = 1.0 if step % 2 else -1.0
        adapted = weights.clone()
        for _ in range(3):
            adapted = adapted - 0.1 * (adapted - goal)
        weights = reptile_step(weights, adapted, rate=0.02)
    return [Figure("distance to the middle of -1 and 1", "<", 0.01, float(weights.abs()))]


@exact("webrl", of=probability_band)
def replay_is_within_the_band() -> list[Figure]:
    """Replayed turns keep their advantage exactly if their mean token probability is above the lower and at
    most the upper bound; fresh turns always do."""
    probabilities = numbers([0.3, 0.5, 0.7, 0.95, 0.99, 0.99])
    replayed = torch.tensor([1, 1, 1, 1, 1, 0])
    index = torch.arange(6)
    credit = probability_band(torch.ones(6), probabilities.log(), index, index, replayed, low=0.5, high=0.951)
    return [
        Figure("replayed turns kept of 5 (0.7 and 0.95)", "=", 2, float(credit[:5].sum())),
        Figure("fresh turn kept", "=", 1, float(credit[5])),
    ]


@exact("filtering-learning-histories-enhances-context-reinforcement", of=(compute_improvement, compute_priorities))
def rising_histories_are_preferred() -> list[Figure]:
    """A history that rises steadily is preferred to one that rises as far unsteadily, a flat one and a falling
    one."""
    steady, unsteady, flat, falling = (
        [0.0, 0.25, 0.5, 0.75, 1.0],
        [0.0, 0.55, 0.2, 0.75, 1.0],
        [0.5] * 5,
        [1.0, 0.5, 0.0],
    )
    values = [compute_improvement(history) for history in (steady, unsteady, flat, falling)]
    return [
        Figure("steady rise from 0 to 1", "=", 1.0, values[0]),
        Figure("unsteady rise, bound: steady", "<", values[0], values[1]),
        Figure("unsteady rise, bound: flat", ">", values[2], values[1]),
        Figure("flat", "=", 0.0, values[2]),
        Figure("falling from 1 to 0", "=", -1.0, values[3]),
        Figure(
            "groups with a preference",
            "=",
            18,
            len(compute_priorities([steady, unsteady, flat, falling], "improvement")),
        ),
    ]


@exact("openclaw-rl", of=on_policy_distillation)
def distillation_has_the_gradient_of_the_divergence() -> list[Figure]:
    """The expected gradient over sampled tokens is that of the divergence from the teacher that reads the hint,
    and is 0 at the teacher."""
    teacher, student = numbers([0.8, -0.3, 0.1]).log_softmax(0), numbers([0.1, 0.5, -0.4])

    def slope(logits: Tensor) -> Tensor:
        old = logits.log_softmax(0)

        def loss(z: Tensor) -> Tensor:
            return (old.exp() * on_policy_distillation(z.log_softmax(0), old, teacher, torch.zeros(3)).loss).sum()

        return gradient_of(loss, logits)

    def divergence(z: Tensor) -> Tensor:
        logprobs = z.log_softmax(0)
        return (logprobs.exp() * (logprobs - teacher)).sum()

    return [
        Figure("largest gap of the gradient", "=", 0.0, max_gap(slope(student), gradient_of(divergence, student))),
        Figure("largest gradient at the teacher", "=", 0.0, float(slope(teacher).abs().max())),
    ]
