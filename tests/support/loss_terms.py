"""Custom loss terms, and a naive implementation of all terms of an update: loops over floats, with derivatives."""

import math
from dataclasses import dataclass, field

import torch

from whetstone.algorithms import PerToken, TokenLoss


def squared_drift(learner_logprobs: PerToken, sampler_logprobs: PerToken, *, power: float = 2.0) -> TokenLoss:
    """Penalize the distance to the sampler."""
    drift = (learner_logprobs - sampler_logprobs).abs()
    return TokenLoss(drift**power, {"drift/mean": drift.detach()})


def rewarded(learner_logprobs: PerToken, rewards: PerToken) -> TokenLoss:
    """Read a column with one number per trajectory."""
    return TokenLoss(-rewards * learner_logprobs, {})


def of_values(critic_values, critic_targets) -> TokenLoss:
    """Read columns of critics."""
    return TokenLoss((critic_values - critic_targets.nan_to_num()).abs().sum(1), {})


def of_noise(learner_logprobs: PerToken, perturbed_logprobs: PerToken) -> TokenLoss:
    """Read the second forward pass."""
    return TokenLoss((learner_logprobs - perturbed_logprobs).abs(), {})


def of_nothing(learner_logprobs: PerToken, unheard_of: PerToken) -> TokenLoss:
    """Read a column that no component provides."""
    return TokenLoss(unheard_of * learner_logprobs, {})


def averaged(learner_logprobs: PerToken) -> TokenLoss:
    """Return one loss instead of one per token."""
    return TokenLoss(learner_logprobs.mean(), {})


@dataclass
class Naive:
    """Sum of the terms of an update and its derivatives, token by token."""

    loss: float = 0.0
    by_term: dict = field(default_factory=dict)
    logprobs: dict = field(default_factory=dict)
    perturbed: dict = field(default_factory=dict)
    entropies: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)

    def add(self, name, scale, loss, token, **derivatives):
        """Add a token's loss in a term; derivatives by the input, at the token or at (token, head)."""
        self.loss += scale * loss
        self.by_term[name] = self.by_term.get(name, 0.0) + scale * loss
        for kind, slope in derivatives.items():
            of_kind = getattr(self, kind)
            of_kind[token] = of_kind.get(token, 0.0) + scale * slope


def naive_update(c, weight, options):
    """Compute all terms of an update, token by token.

    Args:
    c: Columns as lists: now, old, sampler, advantage, reference, first, entropy, usual, perturbed, expert, scale,
    critic_scale, values, targets, old_values, perturbed_values.
    weight: Weight of each term.
    options: `clip`, `band`, `strength`, `cap`, `value_clip`, `power`.
    """
    update = Naive()
    for t, now in enumerate(c["now"]):
        expert, scale = c["expert"][t], c["scale"][t]
        if expert:
            update.add("imitation", weight["imitation"], -now, t, logprobs=-1.0)
        else:
            importance = min(math.exp(c["old"][t] - c["sampler"][t]), options["cap"])
            rho, a = math.exp(now - c["old"][t]), c["advantage"][t]
            inside = min(max(rho, 1 - options["clip"]), 1 + options["clip"])
            slope = -a * rho if -a * rho >= -a * inside else 0.0
            update.add("policy", scale * weight["policy"] * importance, max(-a * rho, -a * inside), t, logprobs=slope)
            d = now - c["reference"][t]
            update.add("reference_kl", scale * weight["reference_kl"], d * d / 2, t, logprobs=d)
            first = c["first"][t] * weight["first_attempt_kl"]
            update.add("first_attempt_kl", scale * first, d * d / 2, t, logprobs=d)
            entropy, usual = c["entropy"][t], c["usual"][t]
            penalty, slope = 0.0, 0.0
            low, high = (1 - options["band"]) * usual, (1 + options["band"]) * usual  # NaN: neither is beyond
            if entropy < low:
                penalty, slope = low - entropy, -1.0
            elif entropy > high:
                penalty, slope = entropy - high, 1.0
            strength, w = options["strength"], scale * weight["entropy"]
            update.add("entropy", w, -(entropy - strength * penalty), t, entropies=-1 + strength * slope)
            gap, w = now - c["perturbed"][t], scale * weight["consistency"]
            update.add("consistency", w, gap * gap / 2, t, logprobs=gap, perturbed=-gap)
            for h, target in enumerate(c["targets"][t]):
                if math.isnan(target):
                    continue
                value, before = c["values"][t][h], c["old_values"][t][h]
                near = min(max(value, before - options["value_clip"]), before + options["value_clip"])
                plain, clipped_loss = (value - target) ** 2 / 2, (near - target) ** 2 / 2
                slope = value - target if plain >= clipped_loss else 0.0
                w = c["critic_scale"][t] * weight["value"]
                update.add("value", w, max(plain, clipped_loss), (t, h), values=slope)
                perturbed = c["perturbed_values"][t][h]
                w = c["critic_scale"][t] * weight["value_consistency"]
                update.add("value_consistency", w, (value - perturbed) ** 2 / 2, (t, h), values=value - perturbed)
        drift, power = now - c["sampler"][t], options["power"]
        slope = power * abs(drift) ** (power - 1) * (1 if drift > 0 else -1)
        update.add("squared_drift", scale * weight["squared_drift"], abs(drift) ** power, t, logprobs=slope)
    return update


class Micro:
    """A micro-batch of segments with given numbers of action tokens."""

    def __init__(self, counts, *, sampler, advantages, expert, turns):
        self.indices, self.counts = tuple(range(len(counts))), tuple(counts)
        self.sampler_logprobs, self.advantages, self.expert, self.turns = sampler, advantages, expert, turns

    def by_segment(self, values):
        """See `MicroBatch.by_segment`."""
        return zip(self.indices, torch.split(values, list(self.counts)), strict=True)
