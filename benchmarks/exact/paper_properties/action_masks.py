"""Action masks on a model of three tokens, whose answers are enumerated."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paper_properties import exact
from whetstone.algorithms.objectives.clipped import clipped
from whetstone.analysis.exact import Figure
from whetstone.inference import Generation, Sampling
from whetstone.inference.sampling import SampledToken, sample_tokens
from whetstone.rollout.action_masks import AdmissibleActions, TokenTrie
from whetstone.rollout.action_masks.admissible_actions import mask_fraction
from whetstone.rollout.actors import mark_masked
from whetstone.rollout.protocol import ALLOWED_LOGPROB, EpisodeKey, EpisodeState
from whetstone.trajectory import Task

A, B, END = 0, 1, 2
_ANSWERS = [(END,), *((first, END) for first in (A, B)), *((*pair, END) for pair in itertools.product((A, B), (A, B)))]
"""All answers of at most two tokens; the third token of an answer is always the end."""
_ALLOWED = [(A, END), (A, B, END), (B, B, END)]
"""Answers that the mask allows."""


def model_logits(prefix: Sequence[int], weights: Tensor) -> Tensor:
    """Return [3] logits of the model after a prefix: its own row for each prefix, and only the end after two tokens."""
    row = {(): 0, (A,): 1, (B,): 2}.get(tuple(prefix))
    return weights[row] if row is not None else torch.tensor([-torch.inf, -torch.inf, 0.0])


def answer_logprobs(answer: Sequence[int], weights: Tensor) -> Tensor:
    """Return [T] log-probs of the tokens of an answer under the model."""
    rows = [model_logits(answer[:place], weights).log_softmax(-1)[token] for place, token in enumerate(answer)]
    return torch.stack(rows)


def sample_masked(answer: tuple[int, ...], weights: Tensor) -> Generation:
    """Return the generation of an answer under the mask, with the numbers that the engine's sampling returns."""
    trie, sampling = TokenTrie(_ALLOWED), Sampling(3, forced=answer, stop_ids=frozenset({END}))
    rows: list[SampledToken] = []
    for place in range(len(answer)):
        logits = model_logits(answer[:place], weights).unsqueeze(0)
        rows += sample_tokens(logits, [sampling], [place], [trie.allowed(answer[:place])]).iterate_tokens()
    assert tuple(row.token for row in rows) == answer
    nothing = (math.nan,) * len(answer)
    logprobs, model = tuple(row.logprob for row in rows), tuple(row.model_logprob for row in rows)
    return Generation(answer, logprobs, nothing, (0,) * len(answer), "stop", model_logprobs=model)


def masked_probability(answer: Sequence[int], weights: Tensor) -> float:
    """Return the probability of an answer if each token is renormalized over those that continue an allowed answer."""
    total = 1.0
    for place, token in enumerate(answer):
        chances = model_logits(answer[:place], weights).softmax(-1).tolist()
        following = {each[place] for each in _ALLOWED if each[:place] == tuple(answer[:place])}
        total *= chances[token] / sum(chances[each] for each in following)
    return total


@exact("camel", of=[AdmissibleActions, TokenTrie, mark_masked], note="discrete actions in the place of ranges")
def masked_turns_have_the_distribution_that_was_sampled() -> list[Figure]:
    """On a model of three tokens of whose seven answers three are allowed, the recorded log-probs of masked turns are
    those of the renormalized distribution and sum to probability 1; the expectation of the metric `allowed_probability`
    is the probability of an allowed answer without the mask; with the recorded log-probs in an unclipped ratio of the
    whole answer, the expected gradient of the objective is that of the policy's return from allowed answers (ratios of
    single tokens ignore the tokens before them, as everywhere). The fraction of masked turns falls linearly to 0."""
    weights = torch.tensor([[0.4, -0.3, 1.1], [0.2, 0.9, -0.5], [-1.0, 0.3, 0.6]], dtype=torch.float64)
    rewards: Mapping[tuple[int, ...], float] = {(A, END): 1.0, (A, B, END): -0.5, (B, B, END): 2.0}
    tokens = {answer: mark_masked(sample_masked(answer, weights), trained=True, is_plain=True) for answer in _ALLOWED}
    recorded = {answer: math.exp(sum(each.logprobs)) for answer, each in tokens.items()}
    gap = max(abs(recorded[answer] - masked_probability(answer, weights)) for answer in _ALLOWED)
    allowed = sum(recorded[a] * math.exp(sum(tokens[a].measured[ALLOWED_LOGPROB])) for a in _ALLOWED)
    without = sum(math.exp(float(answer_logprobs(answer, weights).sum())) for answer in _ALLOWED)

    # the ratio of a whole answer: its probability under the policy over the recorded one
    own = weights.clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for answer in _ALLOWED:
        learner = answer_logprobs(answer, own).sum().unsqueeze(0)
        old = torch.tensor([sum(tokens[answer].logprobs)], dtype=torch.float64)
        advantage = torch.tensor([rewards[answer]], dtype=torch.float64)
        result = clipped(learner, old, advantage, clip_low=1.0, clip_high=1e9)
        loss = loss + recorded[answer] * result.loss.sum()
    (measured,) = torch.autograd.grad(loss, own)
    own = weights.clone().requires_grad_()
    value = sum(answer_logprobs(answer, own).sum().exp() * rewards[answer] for answer in _ALLOWED)
    assert isinstance(value, Tensor)
    (expected,) = torch.autograd.grad(-value, own)

    mask = AdmissibleActions(fraction=0.8, fade_updates=100)
    counts = {step: _count_masked(mask, step) for step in (0, 50, 100)}
    return [
        Figure("probability of all masked answers, as recorded", "=", 1, sum(recorded.values())),
        Figure("largest gap to the renormalized probability", "=", 0, gap),
        Figure("expectation of allowed_probability", "=", without, allowed),
        Figure("largest gap of the expected gradient", "=", 0, float((measured - expected).abs().max())),
        Figure("fraction at update 25 of 100, from 0.8", "=", 0.6, mask_fraction(25, fraction=0.8, fade_updates=100)),
        Figure("turns of 2,000 masked at update 0, less 1,600", "<", 60, abs(counts[0] - 1600)),
        Figure("turns of 2,000 masked at update 50, less 800", "<", 75, abs(counts[50] - 800)),
        Figure("turns masked at update 100", "=", 0, counts[100]),
    ]


def _count_masked(mask: AdmissibleActions, step: int) -> int:
    """Return how many of 2,000 first turns are masked at an update."""

    async def admissible() -> Sequence[str]:
        return ["a"]

    async def count() -> int:
        task = Task("t", "")
        states = [EpisodeState(EpisodeKey(task, seed, step)) for seed in range(2000)]
        return sum([await mask(state, admissible) is not None for state in states])

    return asyncio.run(count())
